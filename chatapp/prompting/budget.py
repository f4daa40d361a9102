"""What of a chat fits the context window, and what is left out. Pure arithmetic on counts.

Keep: the oldest whole turns go first, in steps of at least a quarter of the window, and where the
steps lie depends on the turns before them alone. So the prompt of the next turn nearly always
starts like that of the last one, whose keys and values the model still holds, and a chat that is
opened again leaves out what it left out before.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """How a prompt is made to fit.

    dropped: how many of the oldest turns are left out.
    prompt: tokens of the prompt that remains.
    room: tokens the window leaves for the reply; none or less means that even the
        instructions and the newest message alone do not fit.
    """

    dropped: int
    prompt: int
    room: int


def fit(
    *, window: int, instructions: int, history: Sequence[int], newest: int, reserve: int
) -> Budget:
    """Choose which turns of the history to leave out.

    window: longest sequence of the model. instructions, newest: what is never left out.
    history: the length of each whole turn, a message with its reply, oldest first.
    reserve: what the reply should at least find room for. All counts are in tokens.
    """
    fixed = instructions + newest
    excess = fixed + sum(history) + reserve - window
    step = max(1, window // 4)
    dropped = freed = since_step = 0
    for position, length in enumerate(history, start=1):
        if freed >= excess:
            break
        since_step += length
        if since_step >= step or position == len(history):
            freed, since_step, dropped = freed + since_step, 0, position
    prompt = fixed + sum(history) - freed
    return Budget(dropped, prompt, window - prompt)
