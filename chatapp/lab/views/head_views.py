"""Views of what the heads of a model do, and of the texts where one of them is strongest."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from chatapp.common.shading import percent, visible
from chatapp.common.userfiles import Progress, UserError, no_progress
from chatapp.lab.drawing.blocks import Block, Cell, Heading, Map, Note, Number, Shaded, Table
from chatapp.lab.view import Subject, View, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.engine.model import LanguageModel
    from chatapp.lab.heads import HeadText


@dataclass(frozen=True, slots=True)
class Measure:
    """What one score of a head is. formula, source: for a reader who wants to know exactly."""

    title: str
    formula: str
    source: str


_OLSSON = "Olsson et al. 2022, arXiv 2209.11895"
_HEADVIS = "the measures of HeadVis"
_RANDOM = "on random tokens r₁…rₛ that come twice"

MEASURES = {
    "previous": Measure("previous token", f"mean of A[i, i−1] {_RANDOM}", _OLSSON),
    "duplicate": Measure(
        "duplicate token", f"mean of A[i, i−s] in the second half, {_RANDOM}", _OLSSON
    ),
    "induction": Measure(
        "induction", f"prefix matching: mean of A[i, i−s+1] in the second half, {_RANDOM}", _OLSSON
    ),
    "self": Measure("itself, on text", "mean of A[i, i]", _HEADVIS),
    "previous_text": Measure("previous token, on text", "mean of A[i, i−1]", _HEADVIS),
    "induction_text": Measure(
        "induction, on text",
        "mean of Σⱼ A[i, j+1] over earlier places j < i−1 of token i, where there are some",
        _HEADVIS,
    ),
    "entropy": Measure("entropy, in bits", "mean of −Σⱼ A[i, j] log₂ A[i, j]", _HEADVIS),
    "distance": Measure("distance, in tokens", "mean of Σⱼ A[i, j] (i−j)", _HEADVIS),
    "spread": Measure(
        "variance of the distance", "mean of Σⱼ A[i, j] (i−j)² − (Σⱼ A[i, j] (i−j))²", _HEADVIS
    ),
    "copying": Measure(
        "copying",
        "Σ Re λ / Σ |λ| of the eigenvalues λ of W_U W_O W_V W_E, with the norms' weights in it",
        "Elhage et al. 2021, A mathematical framework for transformer circuits",
    ),
}
"""In the order in which they are shown. The first token of a text, which sees itself alone, does
not count."""

NAMED = {
    "induction": "looks at what followed the same token before",
    "previous": "looks at the token before",
    "duplicate": "looks at the same token before",
}
NAMED_FROM = 0.4
"""A head is called by the largest of `NAMED` from this score on."""

_SHOWN = 20


@dataclass(frozen=True)
class HeadsOptions:
    """How heads are scored."""

    sort: str = option("The measure to sort by.", "induction", names=tuple(MEASURES))
    texts: Path | None = option(
        "A file of texts to measure on, an empty line after each.", is_local=True
    )
    against: str | None = option(
        "A model of the same shape to show what differs from it.", metavar="MODEL", is_local=True
    )


@dataclass(frozen=True, eq=False)
class HeadScores(View):
    """Each head by each measure.

    values: (layers, heads) of each measure in `MEASURES`. model: its name. sorted_by: a measure.
    against: of a model with as many layers and heads, from which the differences are shown.
    """

    name: ClassVar[str] = "heads"
    title: ClassVar[str] = "Heads"
    summary: ClassVar[str] = (
        "Show what each head does. It is scored by induction, previous token, copying and more; "
        "without a text, on the texts of --texts, or on a sample."
    )
    formula: ClassVar[str] = (
        "Scores of random tokens that come twice: previous = mean A[i, i-1], duplicate = mean "
        "A[i, i-s], induction = mean A[i, i-s+1] s the length of a half; Olsson et al. 2022, "
        "arXiv 2209.11895. copying = sum Re λ / sum |λ| of W_U W_O W_V W_E; Elhage et al. 2021."
    )
    takes_text: ClassVar[Any] = "possibly"
    Options: ClassVar[type[Any]] = HeadsOptions

    model: str
    values: "dict[str, NDArray[np.float64]]"
    sorted_by: str = "induction"
    against: "HeadScores | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_measure(self.sorted_by)

    @classmethod
    def look(cls, subject: Subject, options: HeadsOptions) -> "HeadScores":
        check_measure(options.sort)
        texts, other = chosen_texts(subject, options.texts), None
        if options.against is not None:
            from chatapp.engine.models.loading import load_model
            from chatapp.lab.heads import check_same_shape, own_decoder

            device = own_decoder(subject.model).device.type
            other = load_model(options.against, precision="float32", device=device)
            check_same_shape(subject.model, other)
        sort, tell = options.sort, subject.progress
        before = score_heads(other, texts, sorted_by=sort, progress=tell) if other else None
        scores = score_heads(subject.model, texts, sorted_by=sort, progress=tell)
        return HeadScores(scores.model, scores.values, sort, before)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        layers, heads = self.values["previous"].shape
        return layers, heads

    @property
    def changes(self) -> "dict[str, NDArray[np.float64]]":
        """What this model has more than the other; {} where there is none."""
        if self.against is None:
            return {}
        return {name: self.values[name] - self.against.values[name] for name in self.values}

    @property
    def order(self) -> list[tuple[int, int]]:
        """Layers and heads, the largest score first; or the largest change, in either direction."""
        key = self.values[self.sorted_by]
        if self.against is not None:
            key = abs(self.changes[self.sorted_by])
        places = (-key).argsort(axis=None, kind="stable")
        return [(int(p) // self.shape[1], int(p) % self.shape[1]) for p in places]

    def called(self, layer: int, head: int) -> str:
        """What a head is called, one of `NAMED`; "" for one that does none of it."""
        best = max(NAMED, key=lambda name: self.values[name][layer, head])
        return best if self.values[best][layer, head] >= NAMED_FROM else ""

    @property
    def reading(self) -> str:
        title = MEASURES[self.sorted_by].title
        layer, head = self.order[0]
        if self.against is None:
            value = self.values[self.sorted_by][layer, head]
            does = NAMED.get(self.called(layer, head), "does none of what heads are named for")
            return f"Head {layer}.{head} has the largest {title} score, {value:.2f}: it {does}"
        value = self.changes[self.sorted_by][layer, head]
        return (
            f"From {self.against.model} to {self.model}, the {title} score of head {layer}.{head} "
            f"moved most, by {value:+.2f}"
        )

    def to_json(self) -> list[dict[str, Any]]:
        changes = self.changes
        rows = []
        for layer, head in self.order:
            row: dict[str, Any] = {"name": f"{layer}.{head}", "called": self.called(layer, head)}
            row |= {name: float(value[layer, head]) for name, value in self.values.items()}
            if changes:
                row["change"] = {name: float(v[layer, head]) for name, v in changes.items()}
            rows.append(row)
        return rows

    def table(self, most: int | None = None) -> Table:
        """The heads with the largest scores first, by all measures. most: of them; None for all."""
        values = self.changes or self.values
        form = "+.2f" if self.changes else ".2f"
        measures = list(dict.fromkeys((self.sorted_by, *NAMED, *MEASURES)))
        rows: list[list[Cell]] = []
        for layer, head in self.order[:most]:
            numbers = [Number(float(values[name][layer, head]), form) for name in measures]
            rows.append([f"{layer}.{head}", *numbers, self.called(layer, head)])
        columns = ["head", *(f">{name}" for name in measures), "called"]
        return Table(columns, rows, optional=len(measures) - 1)

    def blocks(self) -> Sequence[Block]:
        by, values = self.sorted_by, self.changes or self.values
        title = MEASURES[by].title
        blocks: list[Block] = [self.table(_SHOWN)]
        if self.changes:
            blocks.append(Heading("Layers and heads", f"what changed of {title}"))
            return [*blocks, Map(values[by].tolist(), is_signed=True)]
        largest = float(values[by].max())
        of = "percent" if largest <= 1 else f"percent of {largest:.1f}"
        return [
            *blocks,
            Heading("Layers and heads", f"{title}, in {of}"),
            self.map(),
            Heading("Names", "I induction, P previous token, D duplicate token"),
            self.map(True),
        ]

    def map(self, is_named: bool = False) -> Map:
        """The measure that it is sorted by, as shares; with the letters of names in their place."""
        values = self.values[self.sorted_by]
        scale = max(float(values.max()), 1.0)
        layers, heads = self.shape
        letters = [
            [self.called(layer, head)[:1].upper() or "·" for head in range(heads)]
            for layer in range(layers * is_named)
        ]
        return Map((values / scale).clip(0, 1).tolist(), letters=letters, scale=scale)


def check_measure(name: str) -> None:
    """Raises UserError for a name that is not in `MEASURES`."""
    if name not in MEASURES:
        known = ", ".join(MEASURES)
        raise UserError(f"{name!r} is not a measure of a head; expected one of {known}")


def chosen_texts(subject: Subject, file: Path | None) -> list[str]:
    """What heads are measured on: the subject's text, those of a file, or the sample."""
    from chatapp.lab.heads import sample_texts

    if subject.ids and not subject.is_chat:
        if file is not None:
            raise UserError("give either a text or --texts")
        return [subject.model.tokenizer.decode(subject.ids)]
    return sample_texts() if file is None else sample_texts(file)


def score_heads(
    model: "LanguageModel",
    texts: Sequence[str] = (),
    *,
    sorted_by: str = "induction",
    progress: Progress = no_progress,
    **drawn: Any,
) -> HeadScores:
    """All measures of all heads. Formulas and sources are in `MEASURES`.

    texts: natural text, the bundled sample by default. drawn: how random tokens are drawn, see
    `lab.heads.head_measures`. Raises UserError for a model that is not computed by this program's
    decoder, and for texts of one token.
    """
    from chatapp.lab.heads import head_measures

    values = head_measures(model, texts, progress=progress, **drawn)
    return HeadScores(model.name, {name: values[name] for name in MEASURES}, sorted_by)


@dataclass(frozen=True)
class HeadTextsOptions:
    """Which head, and among which texts."""

    head: str = option("A head, such as 3.5.", is_argument=True)
    texts: Path | None = option(
        "A file of texts to look at, an empty line after each.", is_local=True
    )


@dataclass(frozen=True, slots=True)
class HeadTexts(View):
    """Where one head is strongest, that text first."""

    name: ClassVar[str] = "texts"
    title: ClassVar[str] = "Texts"
    summary: ClassVar[str] = (
        "Show the texts where a head is strongest. They are those of --texts, or of a sample."
    )
    formula: ClassVar[str] = (
        "strength = mean over the tokens i of the largest A[i, j], 0 < j < i; a weight on the "
        "first token and on the token itself does not count."
    )
    takes_text: ClassVar[Any] = "possibly"
    Options: ClassVar[type[Any]] = HeadTextsOptions

    layer: int
    head: int
    rows: "tuple[HeadText, ...]"

    @classmethod
    def here(cls, subject: Subject) -> HeadTextsOptions:
        return HeadTextsOptions(subject.head)

    @classmethod
    def look(cls, subject: Subject, options: HeadTextsOptions) -> "HeadTexts":
        from chatapp.lab.heads import texts_of_head

        part = subject.part(options.head)
        if part.head is None:
            raise UserError(f"{options.head}: expected a head, such as 3.5")
        texts = chosen_texts(subject, options.texts)
        rows = texts_of_head(subject.model, part.layer, part.head, texts, progress=subject.progress)
        return cls(part.layer, part.head, rows)

    @property
    def reading(self) -> str:
        best = self.rows[0].links[0]
        texts = self.rows[0].texts
        return (
            f"Head {self.layer}.{self.head} is strongest where │{visible(texts[best.source])}│ "
            f"attends to │{visible(texts[best.target])}│ ({percent(best.weight).strip()}), by the "
            "mean of each token's largest weight on an earlier one, the first apart"
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = []
        for row in self.rows:
            first = row.links[0].source
            rest = len(row.texts) - len(row.weights)
            notes = [f"token {n}: weight {weight:.6g}" for n, weight in enumerate(row.weights)]
            links = "; ".join(
                f"│{visible(row.texts[link.source])}│ {link.source} attends to "
                f"│{visible(row.texts[link.target])}│ {link.target}, "
                f"{percent(link.weight).strip()}"
                for link in row.links
            )
            weights = [*row.weights, *[None] * rest]
            blocks.append(Shaded(row.texts, weights, [*notes, *[""] * rest], first))
            blocks.append(Note(f"{row.strength:.2f}  {links}"))
        return blocks
