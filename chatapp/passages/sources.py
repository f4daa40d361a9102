"""The passages that a reply is grounded in: which of those found fit a prompt, and how they
stand in it.

Keep: a passage is numbered in the prompt as it is in the reply's list of sources, and what is
stored with a reply gives the same prompt again, whatever became of the files.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from chatapp.common.foreign import printable

if TYPE_CHECKING:
    from chatapp.passages.index import Passage

_LEAD = "Passages of documents:\n\n"


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that was found for a message.

    file, place, text, score: see `Passage`. number: in the prompt, from 1; 0 is left out for
    length.
    """

    file: str
    place: str
    text: str
    score: float
    number: int = 0

    @property
    def in_prompt(self) -> str:
        """What stands in the prompt for it."""
        return f"[{self.number}] {self.name}, {self.place}\n{self.text}\n\n"

    @property
    def name(self) -> str:
        """Of its file, without the folder, on one line and printable."""
        return " ".join(printable(PurePath(self.file).name).split())


def fitting(
    passages: "Iterable[Passage]", room: int, count: Callable[[str], int]
) -> tuple[Source, ...]:
    """The passages as sources, numbered as far as they fit, the nearest first.

    room: tokens there are for them. count: the tokens of a text.
    """
    sources: list[Source] = []
    room -= count(_LEAD)
    kept = 0
    for passage in passages:
        source = Source(passage.file, passage.place, passage.text, passage.score, kept + 1)
        tokens = count(source.in_prompt)
        if tokens <= room:
            kept += 1
            room -= tokens
        else:
            source = replace(source, number=0)
        sources.append(source)
    return tuple(sources)


def texts_in_prompt(sources: Iterable[Source]) -> tuple[str, ...]:
    """What stands before the question: each numbered passage, the first with what opens them."""
    first, *others = [source.in_prompt for source in sources if source.number] or [""]
    return (_LEAD + first, *others) if first else ()
