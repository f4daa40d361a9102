"""The passages that support a reply: which of those found fit a prompt, and their form in it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from chatapp.common.foreign import one_line

if TYPE_CHECKING:
    from chatapp.dialogue.documents.index import Passage

_LEAD = "Passages of documents:\n\n"

NO_PASSAGE = "no passage of the documents has enough of the question, so none was given"


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that was found for a message.

    file, place, text, score: see `Passage`. number: in the prompt, from 1; 0 if it was left out for
    length.
    """

    file: str
    place: str
    text: str
    score: float
    number: int = 0

    @property
    def in_prompt(self) -> str:
        """Its text in the prompt."""
        return f"[{self.number}] {self.name}, {self.place}\n{self.text}\n\n"

    @property
    def name(self) -> str:
        """The name of its file, without the folder, on one printable line."""
        return one_line(PurePath(self.file).name)


def fitting(
    passages: "Iterable[Passage]", room: int, count: Callable[[str], int]
) -> tuple[Source, ...]:
    """Number the passages that fit, nearest first, and return all as sources.

    room: available tokens. count: counts the tokens of a text.
    """
    sources: list[Source] = []
    room -= count(_LEAD)
    count_fitting = 0
    for passage in passages:
        source = Source(passage.file, passage.place, passage.text, passage.score, count_fitting + 1)
        tokens = count(source.in_prompt)
        if tokens <= room:
            count_fitting += 1
            room -= tokens
        else:
            source = replace(source, number=0)
        sources.append(source)
    return tuple(sources)


def texts_in_prompt(sources: Iterable[Source]) -> tuple[str, ...]:
    """The texts before the question: each numbered passage, the first with an introduction."""
    first, *others = [source.in_prompt for source in sources if source.number] or [""]
    return (_LEAD + first, *others) if first else ()
