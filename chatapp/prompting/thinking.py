"""Separates a model's thought from its reply by the marks around it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from chatapp.prompting.messages import Segment


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts before and after a thought."""

    begin: str
    end: str


_KNOWN = (
    Marks("<think>", "</think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
)


def marks_in(template: str, special: Collection[str]) -> Marks | None:
    """The marks that a chat template writes or looks for, or that are special tokens."""
    return next(
        (
            marks
            for marks in _KNOWN
            if marks.end in template or (marks.begin in special and marks.end in special)
        ),
        None,
    )


def ends_in_thought(segments: Sequence[Segment], marks: Marks) -> bool:
    """Whether a prompt ends within a thought that it or its template has begun."""
    tail = ""
    for segment in reversed(segments):
        if segment.kind not in ("marker", "special", "thinking"):
            break
        tail = segment.text + tail
    return tail.rfind(marks.begin) > tail.rfind(marks.end)


class ThoughtFilter:
    """Splits text into thoughts and reply.

    is_open: whether the prompt has already begun the thought.
    """

    def __init__(self, marks: Marks, *, is_open: bool = False) -> None:
        self._marks = marks
        self._held = ""
        self._phase: Literal["begin", "thinking", "saying"] = "thinking" if is_open else "begin"

    def push(self, text: str) -> tuple[str | None, str]:
        """The text that certainly belongs to the thought, and to the reply, once `text` is added.

        The thought is None where no part of `text` belongs to one.
        """
        self._held += text
        if self._phase == "begin":
            start = self._held.lstrip()
            if start.startswith(self._marks.begin):
                self._phase, self._held = "thinking", start[len(self._marks.begin) :]
            elif self._marks.begin.startswith(start):
                return None, ""
            else:
                self._phase = "saying"
        thought: str | None = None
        if self._phase == "thinking":
            thought, mark, rest = self._held.partition(self._marks.end)
            if not mark:
                self._held = possible_start(thought, self._marks.end)
                return thought.removesuffix(self._held), ""
            self._phase, self._held = "saying", rest
        reply, self._held = self._held, ""
        return thought, reply

    def flush(self) -> tuple[str | None, str]:
        """The text held back so far, at the end of the reply."""
        held, self._held = self._held, ""
        return (held, "") if self._phase == "thinking" else (None, held)


def possible_start(text: str, mark: str) -> str:
    """The longest end of a text that may be the beginning of a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((mark[:size] for size in sizes if text.endswith(mark[:size])), "")
