"""Python's collector of reference cycles, while models come and go.

Keep: no model that is out of use is in memory when the next one is in use, whatever screens,
which are full of cycles, referred to it.
"""

import gc


def settle(*, is_switch: bool) -> None:
    """Let the collector pass over all that is in memory, once a model is in use.

    What has been imported by then stays for good. The collector would look through all of it
    again and again, and the screen would stand still for that long.

    is_switch: whether there was a model before, which is collected first: it would stay for
        good as well.
    """
    if is_switch:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
