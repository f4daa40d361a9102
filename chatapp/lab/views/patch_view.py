"""The view of patches between two prompts: which states carry their difference."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.userfiles import Progress, UserError, no_progress, quoted
from chatapp.lab.drawing.blocks import Block, Cell, Heading, Map, Note, Pieces, Table
from chatapp.lab.view import Compared, Subject, View, named_token, option
from chatapp.lab.views.part_views import MEAN, WhyQuestion, ask, question_at

if TYPE_CHECKING:
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.patching import Direction, PatchGrid, Patching

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True)
class PatchOptions(Compared):
    """The corrupt prompt, and how it is patched."""

    other: str | None = option(
        "A text of as many tokens: the corrupt prompt.", flag="--with", metavar="TEXT"
    )
    noise: str | None = option(
        "Instead of --with, put noise on tokens of the text, as 2-4,7.", metavar="TOKENS"
    )
    destroy: bool = option(
        "Patch the other text into this one, instead of this into the other.", False
    )
    estimate: bool = option(
        "Estimate patches by one backward pass; the ten largest are measured.", False
    )


@dataclass(frozen=True, slots=True)
class Patches(View):
    """Which states carry the difference between two prompts.

    corrupt_texts: the tokens of the corrupt prompt. noise: the tokens of the clean one that noise
    was put on instead; none for a second prompt.
    """

    name: ClassVar[str] = "patch"
    title: ClassVar[str] = "Patching"
    summary: ClassVar[str] = "Show which states carry the difference between two texts."
    formula: ClassVar[str] = (
        "restored = (LD patched - LD corrupt) / (LD clean - LD corrupt), LD the difference of the "
        "logits of the two likeliest answers; Heimersheim and Nanda 2024, arXiv 2404.15255; Zhang "
        "and Nanda 2024, arXiv 2309.16042."
    )
    Options: ClassVar[type[Any]] = PatchOptions

    question: WhyQuestion
    corrupt_texts: tuple[str, ...]
    result: "Patching"
    is_estimated: bool
    noise: tuple[int, ...] = ()

    @classmethod
    def look(cls, subject: Subject, options: PatchOptions) -> "Patches":
        if options.other is not None and options.noise is not None:
            raise UserError("use either --with or --noise, not both")
        question = question_at(subject, options)
        other: WhyQuestion | list[int]
        if options.noise is not None:
            other = _places(options.noise)
        elif options.other:
            corrupt = subject.model.tokenizer.encode(options.other)
            other = ask(subject.model, corrupt, question.contrast.token, MEAN, subject.changes)
        else:
            raise UserError("give --with and a text of as many tokens, or --noise and tokens")
        return cls.of(
            question,
            other,
            "destroy" if options.destroy else "restore",
            estimate=options.estimate,
            progress=subject.progress,
        )

    @classmethod
    def of(
        cls,
        question: WhyQuestion,
        corrupt: WhyQuestion | Sequence[int],
        direction: "Direction" = "restore",
        *,
        estimate: bool = False,
        progress: Progress = no_progress,
    ) -> Self:
        """corrupt: the other prompt, or the tokens of the first that get noise. Raises LabError."""
        from chatapp.lab.patching import patch, with_noise

        reading, contrast = question.reading, question.contrast
        noise = () if isinstance(corrupt, WhyQuestion) else tuple(corrupt)
        if isinstance(corrupt, WhyQuestion):
            other, texts = corrupt.reading, corrupt.texts
        else:
            other, texts = with_noise(reading, noise), question.texts
        result = patch(reading, other, contrast, direction, estimate=estimate, progress=progress)
        return cls(question, texts, result, estimate, noise)

    @property
    def differing(self) -> list[int]:
        """The tokens in which the two prompts differ, or that have noise."""
        pairs = zip(self.question.texts, self.corrupt_texts, strict=True)
        return list(self.noise) or [n for n, (one, other) in enumerate(pairs) if one != other]

    @property
    def reading(self) -> str:
        result, (stream, heads) = self.result, self.result.grids
        into = "the corrupt prompt" if result.direction == "restore" else "the clean prompt"
        verb = "restores" if result.direction == "restore" else "destroys"
        (layer, place, value), *_ = stream.largest(1)
        (at, head, share), *_ = heads.largest(1)
        form = "{:.0%}" if result.is_divided else "{:+.2f} logits"
        words = (
            f"{self.question.words}: {result.clean:.3f} clean, {result.corrupt:.3f} corrupt; put "
            f"into {into}, the state at {named_token(self.question.texts, place)} before layer "
            f"{layer} {verb} {form.format(value)}, head {at}.{head} {form.format(share)}"
        )
        if not result.is_divided:
            words += "; the two differ by less than 0.5, too little for shares"
        if self.is_estimated:
            words += "; estimated by one backward pass, the ten largest of each map measured"
        return words

    @property
    def remark(self) -> str:
        """Which patches change nothing; "" where each does."""
        parts = [
            f"{grid.count_unchanged} of {sum(map(len, grid.values))} of the "
            + ("residual stream" if grid.kind == "residual" else "heads")
            for grid in self.result.grids
            if grid.count_unchanged
        ]
        if not parts:
            return ""
        return f"Patches that change nothing, because both states are equal: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        result = self.result
        return self.question.to_json() | {
            "clean": result.clean,
            "corrupt": result.corrupt,
            "direction": result.direction,
            "divided": result.is_divided,
            "estimated": self.is_estimated,
            "noise": list(self.noise),
            "clean_tokens": list(self.question.texts),
            "corrupt_tokens": list(self.corrupt_texts),
            "grids": [asdict(grid) for grid in result.grids],
        }

    def blocks(self) -> Sequence[Block]:
        pairs = list(zip(self.question.texts, self.corrupt_texts, strict=True))
        differing = set(self.differing)
        rows: list[list[Cell]] = [
            [str(place), Pieces.of(one), Pieces.of(other), "differs" if place in differing else ""]
            for place, (one, other) in enumerate(pairs)
        ]
        blocks: list[Block] = [Table([">#", "clean", "corrupt", ""], rows)]
        if self.remark:
            blocks.append(Note(self.remark))
        for grid in self.result.grids:
            blocks += self._grid_blocks(grid)
        return blocks

    def streams(self) -> Sequence[Block]:
        """The two texts, and the map of the residual stream alone."""
        return self.blocks()[:-2]

    def _grid_blocks(self, grid: "PatchGrid") -> list[Block]:
        """A map of patches: tokens in rows, so that they can be read, or layers."""
        cells = (f"{layer}.{place} {value:+.2f}" for layer, place, value in grid.largest(5))
        largest = ", ".join(cells)
        if grid.kind != "residual":
            title = Heading("Heads, at all tokens", f"largest: {largest}")
            return [title, Map(grid.values, is_signed=True)]
        by_token = [list(column) for column in zip(*grid.values, strict=True)]
        names = [f"{place} │{text}│" for place, text in enumerate(self.question.texts)]
        title = Heading("Residual stream before each layer", f"largest, layer.token: {largest}")
        return [title, Map(by_token, ("token", "layer"), rows=names, is_signed=True)]


def compare(
    model: "LanguageModel",
    clean: Sequence[int],
    corrupt: Sequence[int],
    direction: "Direction" = "restore",
    interventions: "Interventions | None" = None,
    progress: Progress = no_progress,
) -> Patches:
    """Patch between two texts of as many tokens.

    Measured on the most likely token after the first against that after the second, or the
    runner-up where both have the same. Raises LabError, and UserError as `ask` does.
    """
    question = ask(model, clean, None, None, interventions)
    other = ask(model, corrupt, None, None, interventions)
    if other.contrast.token != question.contrast.token:
        pair = question.contrast.token, other.contrast.token
        question = ask(model, clean, *pair, interventions)
    return Patches.of(question, other, direction, progress=progress)


def _places(text: str) -> list[int]:
    """The tokens that `2-4,7` stands for. Raises UserError."""
    indices: list[int] = []
    for part in re.split(r"[\s,]+", text.strip()):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UserError(f"--noise is {quoted(text)}; expected numbers of tokens, such as 2-4,7")
        first, last = int(match[1]), int(match[2] or match[1])
        indices += range(first, min(last, 10**6) + 1)
    return indices
