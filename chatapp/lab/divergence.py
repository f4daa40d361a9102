"""Where in the layers two models of one shape diverge.

    KL_l = mean over tokens of Σ_v p_l(v) · log(p_l(v) / q_l(v))

with p_l the prediction of the base after layer l and q_l that of the tuned model, both by the same
lens; in nats (logit lens: nostalgebraist 2020; Jacobian lens: see `lab.lens`).

Invariant: both models read the same tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chatapp.common.foreign import printable
from chatapp.common.progress import Progress, no_progress
from chatapp.common.userfiles import UserError
from chatapp.engine.model import LanguageModel
from chatapp.lab.findings import Finding, state_name
from chatapp.lab.heads import own_decoder
from chatapp.lab.inspectable import inspectable
from chatapp.lab.traces import Trace


@dataclass(frozen=True, slots=True)
class Divergence(Finding):
    """The divergence of `model` from `base` after each layer, from the embeddings on, in nats.

    logit, jacobian: by the two lenses; the second is empty unless both models have one.
    """

    name: ClassVar[str] = "divergence"

    model: str
    base: str
    tokens: int
    logit: tuple[float, ...]
    jacobian: tuple[float, ...]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        base: LanguageModel,
        text: str,
        progress: Progress = no_progress,
    ) -> Self:
        """Read a text with both. Raises UserError for models that cannot be compared."""
        _check_comparable(model, base, text)
        base_trace, trace = _trace(base, text), _trace(model, text)
        tokens = len(trace.ids)
        logit, jacobian = [], []
        for position in range(tokens):
            progress(position, tokens)
            both = base_trace, trace
            logit.append(_kl(*(one.layer_logits(position) for one in both)))
            before, after = (one.jacobian_logits(position) for one in both)
            if before is not None and after is not None:
                jacobian.append(_kl(before, after))
        return cls(model.name, base.name, tokens, _mean(logit), _mean(jacobian))

    @property
    def lenses(self) -> dict[str, tuple[float, ...]]:
        """What there is to show, by the lens's name."""
        lenses = {"logit lens": self.logit, "Jacobian lens": self.jacobian}
        return {name: values for name, values in lenses.items() if values}

    @property
    def steepest(self) -> str:
        """The layer at which the divergence by the logit lens rises most, or `embed`."""
        rises = [b - a for a, b in zip((0.0, *self.logit), self.logit, strict=False)]
        return state_name(rises.index(max(rises)))

    @property
    def sentence(self) -> str:
        where = "embed" if self.steepest == "embed" else f"layer {self.steepest}"
        return (
            f"Mean KL({printable(self.base)} ‖ {printable(self.model)}) of what each layer would "
            f"predict, over {self.tokens} tokens, in nats: {self.logit[-1]:.3f} in the end; by the "
            f"logit lens it rises most at {where}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"steepest": self.steepest}


def _check_comparable(model: LanguageModel, base: LanguageModel, text: str) -> None:
    one, two = (own_decoder(either) for either in (model, base))
    shapes = [(own.decoder.architecture.layers, own.vocabulary) for own in (one, two)]
    if shapes[0] != shapes[1]:
        words = [f"{layers} layers and {size:,} tokens" for layers, size in shapes]
        raise UserError(
            f"{one.name} has {words[0]}, {two.name} has {words[1]}; layers are compared where "
            "these are the same"
        )
    if one.tokenizer.encode(text) != two.tokenizer.encode(text):
        raise UserError(f"{one.name} and {two.name} read the text as different tokens")


def _trace(model: LanguageModel, text: str) -> Trace:
    opened = inspectable(model)
    assert opened is not None  # as it is one of this program's decoders
    return opened.inspect(model.tokenizer.encode(text))


def _kl(before: Tensor, after: Tensor) -> Tensor:
    """KL(before ‖ after) of rows of logits: (rows,)."""
    p, q = (logits.float().log_softmax(-1) for logits in (before, after))
    return (p.exp() * (p - q)).sum(-1)


def _mean(rows: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(torch.stack(list(rows)).mean(0).tolist()) if rows else ()
