"""What is wrong with a model, in words.

Keep: free of torch, so that screens and commands can catch these errors before torch is loaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from chatapp.common.userfiles import UserError


class ModelError(UserError):
    """Something is wrong with a model. The message is one sentence for the user."""


class NoDecoder(ModelError):
    """A model may be in order, but this program's own decoder does not compute its kind."""


def first_line(error: BaseException) -> str:
    """What a library says went wrong, without the pages that may follow."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Whatever a library raises within, as a ModelError that begins with `what`.

    Panics of Rust among it, which are no `Exception`; interrupts and user errors go through.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(f"{what}: {first_line(error)}") from None
