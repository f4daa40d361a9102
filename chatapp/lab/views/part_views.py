"""Views of what parts of a model do for one token and not another: shares, ablation, a circuit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import visible
from chatapp.common.userfiles import Progress, UserError, no_progress
from chatapp.lab.drawing.blocks import Block, Cell, Heading, Map, Number, Table
from chatapp.lab.view import AtToken, Compared, Subject, View, option, token_of

if TYPE_CHECKING:
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.circuit import Circuit
    from chatapp.lab.contributions import Component, Effect
    from chatapp.lab.reruns import Contrast, Reading

MEAN = "mean"
"""Stands for the mean of all logits in place of a token to compare with."""

ALL = "all"  # stands for each head and each MLP, one after the other

_SHOWN = 15


@dataclass(frozen=True, slots=True)
class WhyQuestion:
    """Why one token and not another: a text, what comes after it, and what that is compared with.

    texts: of the text's tokens. token, against: their own texts; against is None for the mean of
    all logits. is_capped: whether the model caps its logits after what is measured here.
    """

    reading: "Reading"
    contrast: "Contrast"
    texts: tuple[str, ...]
    token: str
    against: str | None
    is_capped: bool

    @property
    def words(self) -> str:
        """For a sentence."""
        other = "the mean of all logits" if self.against is None else f"│{visible(self.against)}│"
        return f"│{visible(self.token)}│ against {other}"

    @property
    def difference(self) -> float:
        """The difference of the two logits, before a cap."""
        return float(self.contrast.of(self.reading.logits))

    def to_json(self) -> dict[str, Any]:
        """The two tokens."""
        return {"token": self.token, "against": self.against}


def ask(
    model: "LanguageModel",
    ids: Sequence[int],
    token: int | None = None,
    against: int | str | None = None,
    interventions: "Interventions | None" = None,
) -> WhyQuestion:
    """Let a model read `ids`, and compare what may come after them.

    token: the most likely one by default. against: the runner-up by default, `MEAN` for the mean of
    all logits. Raises UserError for a model whose inside cannot be measured, and for ids that it
    does not take.
    """
    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.decoder.interventions import UNCHANGED
    from chatapp.engine.models.running import model_here
    from chatapp.lab.contributions import runner_up
    from chatapp.lab.reruns import Contrast, Reading

    model = model_here(model)
    if not isinstance(model, LocalModel):
        raise UserError(
            f"{model.name}: the parts of this kind of model cannot be measured; only models that "
            "chatapp computes with its own decoder can"
        )
    model.check_text(ids)
    with model.lock:
        reading = Reading(model.decoder, ids, model.start, interventions or UNCHANGED)
    token = int(reading.logits.argmax()) if token is None else token
    other = runner_up(reading.logits, token) if against is None else against
    contrast = Contrast(token, None if isinstance(other, str) else other)
    return WhyQuestion(
        reading,
        contrast,
        tuple(model.piece(id) for id in ids),
        model.piece(token),
        None if contrast.against is None else model.piece(contrast.against),
        model.decoder.architecture.logit_cap is not None,
    )


def question_at(subject: Subject, options: Compared) -> WhyQuestion:
    """What is asked about the token after the place that is looked at. Raises UserError."""
    tokenizer, answer, against = subject.model.tokenizer, options.answer, options.against
    token = subject.following if answer is None else token_of(tokenizer, answer, "--answer")
    other: int | str | None = against
    if against is not None and against != MEAN:
        other = token_of(tokenizer, against, "--against")
    return ask(subject.model, subject.ids_up_to_token, token, other, subject.changes)


def part_in_words(name: str, *, begins: bool = False) -> str:
    """A part of a model in a sentence: `4.1` is a head, `4.mlp` an MLP. begins: the sentence."""
    layer, _, inner = name.partition(".")
    words = f"the MLP of layer {layer}" if inner == "mlp" else f"head {name}"
    if not inner:
        words = {"embed": "the embedding", "norm": "the final norm's bias"}.get(name, f"the {name}")
    return words[0].upper() + words[1:] if begins else words


@dataclass(frozen=True, slots=True)
class Why(View):
    """What each part of the model adds to the difference of two logits.

    difference: of the logits, before a cap. components: all parts, those of the first layer first.
    """

    name: ClassVar[str] = "why"
    title: ClassVar[str] = "Why"
    summary: ClassVar[str] = "Show what each part of the model adds to a logit."
    formula: ClassVar[str] = (
        "share = (part, with the final norm's scale) · (W_U[token] - W_U[other]); Elhage et al. "
        "2021, transformer-circuits.pub. total = the difference lost with the part replaced by "
        "zeros; Heimersheim and Nanda 2024, arXiv 2404.15255."
    )
    Options: ClassVar[type[Any]] = Compared

    question: WhyQuestion
    difference: float
    components: "tuple[Component, ...]"

    @classmethod
    def look(cls, subject: Subject, options: Compared) -> "Why":
        return cls.of(question_at(subject, options), progress=subject.progress)

    @classmethod
    def of(
        cls, question: WhyQuestion, *, effects: bool = True, progress: Progress = no_progress
    ) -> Self:
        """effects: whether each head and MLP is switched off to measure its total effect."""
        from dataclasses import replace

        from chatapp.lab.contributions import effects as measure
        from chatapp.lab.contributions import shares

        reading, contrast = question.reading, question.contrast
        parts = shares(reading, contrast)
        if effects:
            by_name = measure(reading, contrast, progress)
            parts = [replace(part, effect=by_name.get(part.name)) for part in parts]
        return cls(question, question.difference, tuple(parts))

    @property
    def total(self) -> float:
        """The sum of the shares."""
        return sum(part.share for part in self.components)

    @property
    def order(self) -> "list[Component]":
        """The parts, those with the largest shares first."""
        return sorted(self.components, key=lambda part: -abs(part.share))

    @property
    def by_head(self) -> list[list[float]]:
        """The share of each head: a row a layer."""
        shape = self.question.reading.decoder.architecture
        by_name = {part.name: part.share for part in self.components}
        return [
            [by_name[f"{layer}.{head}"] for head in range(shape.heads)]
            for layer in range(shape.layers)
        ]

    @property
    def reading(self) -> str:
        best = max(self.components, key=lambda part: part.share)
        worst = min(self.components, key=lambda part: part.share)
        note = ", before the cap" if self.question.is_capped else ""
        return (
            f"{part_in_words(best.name, begins=True)} does most for {self.question.words} "
            f"({best.share:+.2f}), {part_in_words(worst.name)} least ({worst.share:+.2f}); the "
            f"shares of {len(self.components)} parts add up to {self.total:.4f}, the logits differ "
            f"by {self.difference:.4f}{note}"
        )

    def to_json(self) -> dict[str, Any]:
        return self.question.to_json() | {
            "difference": self.difference,
            "sum": self.total,
            "components": [asdict(part) for part in self.components],
        }

    def blocks(self) -> Sequence[Block]:
        return [
            self.table(_SHOWN),
            Heading("Layers and heads", "direct share of each head, in logits"),
            Map(self.by_head, is_signed=True),
        ]

    def table(self, most: int | None = None) -> Table:
        """The parts with the largest shares. most: of them; None for all."""
        rows: list[list[Cell]] = [
            [part.name, Number(part.share), "" if part.effect is None else Number(part.effect)]
            for part in self.order[:most]
        ]
        return Table(["part", ">direct", ">total effect"], rows)


@dataclass(frozen=True)
class AblationOptions(Compared):
    """Which parts are off, and what replaces them."""

    parts: str = option(
        "Parts, such as 3.5,4.mlp (head 5 of layer 3, the MLP of layer 4); all is each head and "
        "MLP alone.",
        is_argument=True,
    )
    mean: bool = option("Replace parts by their means over the text, not by zeros.", False)


@dataclass(frozen=True, slots=True)
class Ablation(View):
    """What the model says without some parts together, or without each part alone.

    effects: one for parts that are off together. is_mean: whether means replace the parts.
    """

    name: ClassVar[str] = "ablate"
    title: ClassVar[str] = "Ablation"
    summary: ClassVar[str] = "Show what changes without some parts of the model."
    formula: ClassVar[str] = (
        "The parts are replaced by zeros, or by their means over the text; change of log p and of "
        "the difference of the logits, KL(whole || without); Heimersheim and Nanda 2024, arXiv "
        "2404.15255."
    )
    key: ClassVar[str] = "b"
    Options: ClassVar[type[Any]] = AblationOptions

    question: WhyQuestion
    effects: "tuple[Effect, ...]"
    is_mean: bool = False
    is_each: bool = False

    @classmethod
    def here(cls, subject: Subject) -> AblationOptions:
        return AblationOptions("{}.{}".format(*subject.cell) if subject.cell else ALL)

    @classmethod
    def look(cls, subject: Subject, options: AblationOptions) -> "Ablation":
        from chatapp.engine.decoder.interventions import parse_parts, switched_off
        from chatapp.lab.contributions import effect_of, effects_of_all, means

        question = question_at(subject, options)
        reading, contrast, is_mean = question.reading, question.contrast, options.mean
        if options.parts.strip() == ALL:
            if is_mean:
                raise UserError("all replaces by zeros; leave --mean out, or name the parts")
            effects = effects_of_all(reading, contrast, subject.progress)
            return cls(question, tuple(effects), is_each=True)
        parts = parse_parts(options.parts, reading.decoder.architecture)
        off = means(reading, parts) if is_mean else switched_off(parts)
        return cls(question, (effect_of(reading, contrast, off),), is_mean)

    @property
    def order(self) -> "list[Effect]":
        """That first which changes the token's probability most."""
        return sorted(self.effects, key=lambda effect: -abs(effect.change))

    @property
    def reading(self) -> str:
        place = "replaced by the mean over the text" if self.is_mean else "replaced by zeros"
        effect = self.order[0]
        verb = "falls" if effect.change < 0 else "rises"
        if self.is_each:
            return (
                f"{part_in_words(effect.name, begins=True)} matters most for "
                f"{self.question.words}: alone and {place}, log p {verb} by "
                f"{abs(effect.change):.3f}"
            )
        return (
            f"W{effect.name[1:]}, {place}, log p of {self.question.words} {verb} by "
            f"{abs(effect.change):.3f} to {effect.log_probability:.3f}; the logits differ by "
            f"{effect.difference:.3f} ({effect.difference_change:+.3f}), KL {effect.kl:.3f} nats"
        )

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "ablated": effect.name.removeprefix("without ").split(),
                "log_probability": effect.log_probability,
                "change": effect.change,
                "difference": effect.difference,
                "difference_change": effect.difference_change,
                "kl": effect.kl,
            }
            for effect in self.effects
        ]
        common = self.question.to_json() | {"replaced_by": "mean" if self.is_mean else "zeros"}
        return common | ({"parts": rows} if self.is_each else rows[0])

    def blocks(self) -> Sequence[Block]:
        rows: list[list[Cell]] = [
            [
                effect.name,
                Number(effect.log_probability, ".3f"),
                Number(effect.change),
                Number(effect.difference_change),
                Number(effect.kl, ".4f"),
            ]
            for effect in self.order[: 2 * _SHOWN]
        ]
        return [Table(["part", ">log p", ">change", ">of the difference", ">KL"], rows)]


@dataclass(frozen=True, slots=True)
class Losses(View):
    """How a text's loss rises without each head and each MLP, replaced by zeros.

    loss: the mean of the text's tokens, in nats. changes: by part.
    """

    name: ClassVar[str] = "losses"
    title: ClassVar[str] = "Losses"
    summary: ClassVar[str] = "Show how the text's loss rises without each head and MLP."
    formula: ClassVar[str] = (
        "loss = mean of -log p over the text's tokens, in nats; each part is replaced by zeros, "
        "alone."
    )
    key: ClassVar[str] = "o"

    loss: float
    tokens: int
    changes: dict[str, float]

    @classmethod
    def look(cls, subject: Subject, options: AtToken) -> "Losses":
        from chatapp.lab.contributions import losses_without

        question = ask(subject.model, subject.ids_up_to_token, interventions=subject.changes)
        loss, changes = losses_without(question.reading, subject.progress)
        return cls(loss, len(question.texts) - 1, changes)

    @property
    def order(self) -> list[str]:
        """The parts, that first whose loss counts most."""
        return sorted(self.changes, key=lambda name: -abs(self.changes[name]))

    @property
    def reading(self) -> str:
        best = self.order[0]
        return (
            f"The loss of {self.tokens:,} tokens is {self.loss:.4f} nats; without "
            f"{part_in_words(best)}, replaced by zeros, it changes most, by "
            f"{self.changes[best]:+.4f}"
        )

    def to_json(self) -> dict[str, Any]:
        parts = [{"name": name, "change": change} for name, change in self.changes.items()]
        return {"loss": self.loss, "tokens": self.tokens, "parts": parts}

    def blocks(self) -> Sequence[Block]:
        rows: list[list[Cell]] = [
            [name, Number(self.changes[name], "+.4f")] for name in self.order[: 2 * _SHOWN]
        ]
        return [Table(["part", ">loss"], rows)]


@dataclass(frozen=True)
class CircuitOptions(Compared):
    """Which other prompt the circuit is tried on."""

    patch: str | None = option(
        "Another prompt, such as this one with two names swapped: its means replace the other "
        "parts, and the circuit is tried on it as well.",
        metavar="TEXT",
    )


@dataclass(frozen=True, slots=True)
class SmallCircuit(View):
    """A few heads and MLPs that keep most of a difference of logits on this prompt.

    other: the tokens of another prompt that it was tried on, and whose means replaced the rest.
    """

    name: ClassVar[str] = "circuit"
    title: ClassVar[str] = "A small circuit of this prompt"
    summary: ClassVar[str] = (
        "Find a small circuit of the text. It is a few heads and MLPs that keep 90 % of the answer."
    )
    formula: ClassVar[str] = (
        "Greedy ablation to few heads and MLPs that keep 90 % of the difference of the logits, of "
        "which no single one can go; faithfulness = LD(circuit) / LD(model), completeness = "
        "LD(model without it) / LD(model); Wang et al. 2023, arXiv 2211.00593; Conmy et al. 2023, "
        "arXiv 2304.14997."
    )
    key: ClassVar[str] = "c"
    Options: ClassVar[type[Any]] = CircuitOptions

    question: WhyQuestion
    circuit: "Circuit"
    other: tuple[str, ...] = ()

    @classmethod
    def look(cls, subject: Subject, options: CircuitOptions) -> "SmallCircuit":
        from chatapp.lab.circuit import small_circuit

        question = question_at(subject, options)
        named = options.answer is not None or options.against is not None
        if question.difference < 0 and not named and question.contrast.against is not None:
            # Another token was likelier than the one that followed.
            pair = question.contrast.against, question.contrast.token
            question = ask(subject.model, subject.ids_up_to_token, *pair, subject.changes)
        if options.patch == "":
            raise UserError("--patch is empty; expected another prompt")
        other = None
        if options.patch is not None:
            ids = subject.model.tokenizer.encode(options.patch)
            other = ask(subject.model, ids, question.contrast.token, MEAN, subject.changes)
        circuit = small_circuit(
            question.reading,
            question.contrast,
            None if other is None else other.reading,
            progress=subject.progress,
        )
        return cls(question, circuit, () if other is None else other.texts)

    @property
    def reading(self) -> str:
        circuit = self.circuit
        text = "the other prompt" if circuit.other is not None else "the text"
        words = (
            f"On this prompt, {len(circuit.parts)} of {circuit.total} heads and MLPs keep "
            f"{circuit.faithfulness:.0%} of {circuit.difference:.3f}, {self.question.words} "
            f"(faithfulness); without them {circuit.completeness:.0%} is left (completeness); the "
            f"others are replaced by their means over {text}"
        )
        if (other := circuit.other) is None:
            return f"{words}; on another prompt it may keep less, which --patch TEXT shows"
        if other.faithfulness is None:
            return (
                f"{words}; on the other prompt the logits differ by {other.difference:.3f}, too "
                "little for a share"
            )
        return (
            f"{words}; on the other prompt they keep {other.faithfulness:.0%} of "
            f"{other.difference:.3f}"
        )

    def to_json(self) -> dict[str, Any]:
        circuit = self.circuit
        document = self.question.to_json() | {
            "parts": list(circuit.parts),
            "of": circuit.total,
            "difference": circuit.difference,
            "faithfulness": circuit.faithfulness,
            "completeness": circuit.completeness,
            "replaced_by": "mean",
        }
        if circuit.other is not None:
            document["other"] = {"tokens": list(self.other)} | asdict(circuit.other)
        return document

    def blocks(self) -> Sequence[Block]:
        by_layer: dict[str, list[str]] = {}
        for part in self.circuit.parts:
            by_layer.setdefault(part.partition(".")[0], []).append(part)
        rows: list[list[Cell]] = [[layer, "  ".join(parts)] for layer, parts in by_layer.items()]
        return [Table([">layer", "parts"], rows)]
