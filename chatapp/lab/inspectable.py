"""Which models can be inspected, the interface for it, and what a constraint did to a reply."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, check_changeable
from chatapp.engine.errors import ModelError
from chatapp.engine.generation import LocalGenerator
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.engine.models.running import RunningModel, model_here
from chatapp.lab.encoder_decoder import EncoderDecoderTrace
from chatapp.lab.predictions import Limit, Stepper, limit_of
from chatapp.lab.traces import DecoderTrace, Trace, TransformersTrace


@runtime_checkable
class Inspectable(Protocol):
    """A model that can be inspected."""

    def inspect(
        self,
        ids: Sequence[int],
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
    ) -> Trace:
        """Run the model on `ids` and record its states.

        interventions: changes inside the model during the run. reply: tokens after the text, which
        a decoder writes where an encoder reads the text. Raises ContextOverflow when they
        exceed the window, ValueError when there are none, ModelError when this model cannot be
        inspected.
        """
        ...

    def stepper(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> Stepper:
        """Continue `ids` one token at a time. constraint: for what is added to them.

        Raises as `inspect` does, and ConstraintError.
        """
        ...


def inspectable(model: LanguageModel) -> Inspectable | None:
    """The inspectable form of a model; None for one that is not in this process."""
    if isinstance(model, LocalGenerator | RunningModel):
        return _InspectableGenerator(model)
    return model if isinstance(model, Inspectable) else None


class _InspectableGenerator:
    """A local model as an `Inspectable`."""

    def __init__(self, model: LocalGenerator | RunningModel) -> None:
        self._given = model

    @property
    def _model(self) -> LocalGenerator:
        """The model in this process. Raises ModelError."""
        model = model_here(self._given)
        assert isinstance(model, LocalGenerator)
        return model

    def inspect(
        self,
        ids: Sequence[int],
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
    ) -> Trace:
        """See `Inspectable.inspect`."""
        model, prompt, ids = self._model, ids, [*ids, *reply]
        model.check_text(ids)
        if isinstance(model, LocalModel):
            with model.lock:
                return DecoderTrace(model.decoder, ids, model.piece, model.start, interventions)
        check_changeable(model.name, interventions, is_changeable=False)
        if isinstance(model, EncoderDecoderModel):
            return EncoderDecoderTrace(model, prompt, reply)
        if isinstance(model, TransformersModel) and not model.is_permuted:
            return TransformersTrace(model, ids)
        raise ModelError(f"{model.name}: this model is not autoregressive and cannot be inspected")

    def stepper(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> Stepper:
        """See `Inspectable.stepper`."""
        model: LocalGenerator = self._model
        if isinstance(model, EncoderDecoderModel):
            model = model.replying_to(len(ids))
        ids = [*ids, *reply]
        model.check_text(ids)
        logits = partial(model.logits, interventions=interventions)

        def follow(taken: Sequence[int]) -> Matcher | None:
            return None if constraint is None else matcher_after(model, constraint, taken)

        return Stepper(logits, model.piece, ids, sampling, model.context, model.end_ids, follow)


def limits_of(
    model: LocalGenerator, trace: Trace, start: int, constraint: Constraint
) -> tuple[Limit | None, ...]:
    """What a constraint did at each token from `start` on, in the place of the token.

    None before them, and where it does not apply. Nothing for a reply that does not follow it,
    because it was generated without it, and for a model that cannot follow any.
    """
    try:
        matcher = matcher_after(model, constraint)
    except ConstraintError:
        return ()
    limits: list[Limit | None] = [None] * start
    text = model.tokenizer.stream()
    for position in range(start, len(trace.ids)):
        id, limit = trace.ids[position], None
        if matcher.is_on and not matcher.is_over:
            allowed = matcher.allowed()
            if not allowed.mask[id]:
                return ()
            limit = limit_of(allowed, trace.logits(position - 1, position)[0])
        limits.append(limit)
        matcher.take(id, text.push(id))
    return tuple(limits)


def matcher_after(
    model: LocalGenerator, constraint: Constraint, reply: Sequence[int] = ()
) -> Matcher:
    """The state of a constraint after the first tokens of a reply. Raises ConstraintError."""
    mark = model.tokenizer.special.get(constraint.after)
    matcher = Matcher(constraint, model.vocab_bytes, model.end_ids, mark)
    text = model.tokenizer.stream()
    for id in reply:
        matcher.take(id, text.push(id))
    return matcher
