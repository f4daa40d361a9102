"""What is shown of experiments on the parts of a model: one result type for each question.

Invariant: as `findings`, they hold every number that is drawn and know no screen.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.progress import Progress, no_progress
from chatapp.common.shading import visible
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import Finding

if TYPE_CHECKING:
    from chatapp.engine.decoder.interventions import Interventions, Part
    from chatapp.engine.model import LanguageModel, Tokenizer
    from chatapp.lab.ablation import Effect
    from chatapp.lab.attribution import Component
    from chatapp.lab.circuit import Circuit
    from chatapp.lab.patching import Direction, Patching
    from chatapp.lab.reruns import Contrast, Reading

MEAN = "mean"
"""Stands for the mean of all logits in place of a token to compare with."""


@dataclass(frozen=True, slots=True)
class Question:
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

    def to_json(self) -> dict[str, Any]:
        """The two tokens."""
        return {"token": self.token, "against": self.against}


def ask(
    model: "LanguageModel",
    ids: Sequence[int],
    token: int | None = None,
    against: int | str | None = None,
    interventions: "Interventions | None" = None,
) -> Question:
    """Let a model read `ids`, and compare what may come after them.

    token: the most likely one by default. against: the runner-up by default, `MEAN` for the mean of
    all logits. Raises UserError for a model whose inside cannot be measured, and for ids that it
    does not take.
    """
    from chatapp.engine.backends.background import model_here
    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.decoder.interventions import UNCHANGED
    from chatapp.lab.attribution import runner_up
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
    return Question(
        reading,
        contrast,
        tuple(model.piece(id) for id in ids),
        model.piece(token),
        None if contrast.against is None else model.piece(contrast.against),
        model.decoder.architecture.logit_cap is not None,
    )


def token_of(tokenizer: "Tokenizer", text: str, option: str) -> int:
    """The token that a text is. Raises UserError where it is none, or several."""
    ids = tokenizer.encode(text, begins=False)
    if len(ids) != 1:
        spaced = tokenizer.encode(f" {text}", begins=False)
        hint = f'; " {text}" is one' if text and len(spaced) == 1 else ""
        raise UserError(f"{option} is {text!r}, which is {len(ids)} tokens, not one{hint}")
    return ids[0]


@dataclass(frozen=True, slots=True)
class Why(Finding):
    """What each part of the model adds to the difference of two logits.

    difference: of the logits, before a cap. components: all parts, those of the first layer first.
    """

    name: ClassVar[str] = "why"

    question: Question
    difference: float
    components: "tuple[Component, ...]"

    @classmethod
    def of(
        cls, question: Question, *, effects: bool = True, progress: Progress = no_progress
    ) -> Self:
        """effects: whether each head and MLP is switched off to measure its total effect."""
        from dataclasses import replace

        from chatapp.lab.attribution import effects as measure
        from chatapp.lab.attribution import shares

        reading, contrast = question.reading, question.contrast
        parts = shares(reading, contrast)
        if effects:
            by_name = measure(reading, contrast, progress)
            parts = [replace(part, effect=by_name.get(part.name)) for part in parts]
        return cls(question, float(contrast.of(reading.logits)), tuple(parts))

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
    def sentence(self) -> str:
        note = ", before the cap" if self.question.is_capped else ""
        return (
            f"{self.question.words}: the shares of {len(self.components)} parts add up to "
            f"{self.total:.4f}, the logits differ by {self.difference:.4f}{note}"
        )

    def to_json(self) -> dict[str, Any]:
        return self.question.to_json() | {
            "difference": self.difference,
            "sum": self.total,
            "components": [asdict(part) for part in self.components],
        }


@dataclass(frozen=True, slots=True)
class Ablation(Finding):
    """What the model says without some parts together, or without each part alone.

    effects: one for parts that are off together. is_mean: whether means replace the parts.
    """

    name: ClassVar[str] = "ablation"

    question: Question
    effects: "tuple[Effect, ...]"
    is_mean: bool = False
    is_each: bool = False

    @classmethod
    def of(cls, question: Question, parts: "Sequence[Part]", *, is_mean: bool = False) -> Self:
        """Without these parts. is_mean: replaced by their means over the text's tokens."""
        from chatapp.engine.decoder.interventions import switched_off
        from chatapp.lab.ablation import effect_of, means

        off = means(question.reading, parts) if is_mean else switched_off(parts)
        return cls(question, (effect_of(question.reading, question.contrast, off),), is_mean)

    @classmethod
    def of_each(cls, question: Question, progress: Progress = no_progress) -> Self:
        """Without each head and each MLP."""
        from chatapp.lab.ablation import effects_of_all

        effects = effects_of_all(question.reading, question.contrast, progress)
        return cls(question, tuple(effects), is_each=True)

    @property
    def order(self) -> "list[Effect]":
        """That first which changes the token's probability most."""
        return sorted(self.effects, key=lambda effect: -abs(effect.change))

    @property
    def sentence(self) -> str:
        place = "replaced by the mean over the text" if self.is_mean else "replaced by zeros"
        if self.is_each:
            return f"{self.question.words}: what each head and MLP does, alone and {place}"
        (effect,) = self.effects
        return (
            f"{self.question.words}: {effect.name}, {place}; log p {effect.log_probability:.3f} "
            f"({effect.change:+.3f}), logits differ by {effect.difference:.3f} "
            f"({effect.difference_change:+.3f}), KL {effect.kl:.3f} nats"
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


@dataclass(frozen=True, slots=True)
class Losses(Finding):
    """How a text's loss rises without each head and each MLP, replaced by zeros.

    loss: the mean of the text's tokens, in nats. changes: by part.
    """

    name: ClassVar[str] = "losses"

    loss: float
    tokens: int
    changes: dict[str, float]

    @classmethod
    def of(cls, question: Question, progress: Progress = no_progress) -> Self:
        from chatapp.lab.ablation import losses_without

        loss, changes = losses_without(question.reading, progress)
        return cls(loss, len(question.texts) - 1, changes)

    @property
    def order(self) -> list[str]:
        """The parts, that first whose loss counts most."""
        return sorted(self.changes, key=lambda name: -abs(self.changes[name]))

    @property
    def sentence(self) -> str:
        return (
            f"The loss of {self.tokens:,} tokens is {self.loss:.4f} nats; how it rises without "
            "each head and MLP, replaced by zeros"
        )

    def to_json(self) -> dict[str, Any]:
        parts = [{"name": name, "change": change} for name, change in self.changes.items()]
        return {"loss": self.loss, "tokens": self.tokens, "parts": parts}


@dataclass(frozen=True, slots=True)
class Patches(Finding):
    """Which states carry the difference between two prompts.

    corrupt_texts: the tokens of the corrupt prompt. noise: the tokens of the clean one that noise
    was put on instead; none for a second prompt.
    """

    name: ClassVar[str] = "patching"

    question: Question
    corrupt_texts: tuple[str, ...]
    result: "Patching"
    is_estimated: bool
    noise: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        question: Question,
        corrupt: Question | Sequence[int],
        direction: "Direction" = "restore",
        *,
        estimate: bool = False,
        progress: Progress = no_progress,
    ) -> Self:
        """corrupt: the other prompt, or the tokens of the first that get noise. Raises LabError."""
        from chatapp.lab.patching import patch, with_noise

        reading, contrast = question.reading, question.contrast
        noise = () if isinstance(corrupt, Question) else tuple(corrupt)
        if isinstance(corrupt, Question):
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
    def sentence(self) -> str:
        result = self.result
        way = "clean into corrupt" if result.direction == "restore" else "corrupt into clean"
        measure = "restored" if result.direction == "restore" else "destroyed"
        words = (
            f"{self.question.words}: {result.clean:.3f} clean, {result.corrupt:.3f} corrupt; {way}"
        )
        if result.is_divided:
            words += f", the share {measure}"
        else:
            words += ", in logits: the two differ by less than 0.5, too little for shares"
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


@dataclass(frozen=True, slots=True)
class SmallestCircuit(Finding):
    """The fewest heads and MLPs that keep most of a difference of logits."""

    name: ClassVar[str] = "circuit"

    question: Question
    circuit: "Circuit"

    @classmethod
    def of(
        cls, question: Question, *, is_mean: bool = True, progress: Progress = no_progress
    ) -> Self:
        """Raises LabError where the difference is below 0.5."""
        from chatapp.lab.circuit import smallest_circuit

        return cls(
            question,
            smallest_circuit(
                question.reading, question.contrast, is_mean=is_mean, progress=progress
            ),
        )

    @property
    def sentence(self) -> str:
        circuit = self.circuit
        place = "their means over the text" if circuit.is_mean else "zeros"
        return (
            f"{self.question.words}: {len(circuit.parts)} of {circuit.total} heads and MLPs keep "
            f"{circuit.faithfulness:.0%} of {circuit.difference:.3f} (faithfulness); without them "
            f"{circuit.completeness:.0%} is left (completeness); the others are replaced by {place}"
        )

    def to_json(self) -> dict[str, Any]:
        circuit = self.circuit
        return self.question.to_json() | {
            "parts": list(circuit.parts),
            "of": circuit.total,
            "difference": circuit.difference,
            "faithfulness": circuit.faithfulness,
            "completeness": circuit.completeness,
            "replaced_by": "mean" if circuit.is_mean else "zeros",
        }
