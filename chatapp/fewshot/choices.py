"""What the options of `run` and `eval` make of a prompt file.

The one invariant: an option says what the prompt file's own key would say, and is refused in
a sentence that names it and the values there are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, cast, get_args

from chatapp.engine.checkpoint import ModelError
from chatapp.engine.model import LanguageModel
from chatapp.fewshot.encoders import EmbeddingModel, Progress, load_encoder
from chatapp.prompting.examples import PromptError
from chatapp.prompting.promptfile import PromptFile, Scoring
from chatapp.prompting.selection import Method, Order, Selector, build_selector
from chatapp.userfiles import did_you_mean, quoted

METHODS: tuple[Method, ...] = get_args(Method)
ORDERS: tuple[Order, ...] = get_args(Order)
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)
EMBEDDING: tuple[Method, ...] = ("knn", "mmr", "vote")
"""Methods that need vectors of texts."""

_Name = TypeVar("_Name", bound=str)


def one_of(value: str, known: Sequence[_Name], option: str) -> _Name:
    """The value as one of the known names. Raises PromptError that lists them."""
    if value not in known:
        hint = did_you_mean(value, known) or f"; there are {', '.join(known)}"
        raise PromptError(f"{option} is {quoted(value)}, which is not known{hint}")
    return cast(_Name, value)


def method_and_encoder(value: str) -> tuple[Method, str | None]:
    """`knn` or `knn:minilm`: how to select, and by which encoder. Raises PromptError."""
    name, colon, encoder = value.partition(":")
    method = one_of(name, METHODS, "--select")
    if colon and method not in EMBEDDING:
        raise PromptError(
            f"--select is {quoted(value)}; only {', '.join(EMBEDDING)} take an encoder"
        )
    if colon and not encoder:
        raise PromptError(f"--select is {quoted(value)}; expected an encoder after the colon")
    return method, encoder or None


def changed(
    prompt: PromptFile,
    *,
    shots: int | None = None,
    select: str | None = None,
    order: str | None = None,
    scoring: str | None = None,
    seed: int | None = None,
) -> PromptFile:
    """The prompt file with some of its keys changed; None leaves one as it is.

    seed: of the selection, and of sampling. Raises PromptError.
    """
    keys: dict[str, object] = {}
    if select is not None:
        method, encoder = method_and_encoder(select)
        keys["method"] = method
        # The file's encoder stays in force where the option names none.
        keys |= {"encoder": encoder} if encoder else {}
    if order is not None:
        keys["order"] = one_of(order, ORDERS, "--order")
    keys |= {"k": shots} if shots is not None else {}
    keys |= {"seed": seed} if seed is not None else {}
    return replace(
        prompt,
        select=prompt.select.model_copy(update=keys),
        scoring=one_of(scoring, SCORINGS, "--score") if scoring is not None else prompt.scoring,
        generate=dict(prompt.generate) | ({"seed": seed} if seed is not None else {}),
    )


def selector_for(
    prompt: PromptFile, model: LanguageModel | None, progress: Progress | None = None
) -> Selector | None:
    """What chooses demonstrations as the prompt file says; None where there are none to choose.

    model: for the encoder `lm`. Raises ModelError when the encoder cannot be had.
    """
    if not len(prompt.pool) or prompt.text is not None:
        return None
    encoder = None
    if prompt.select.method in EMBEDDING:
        own = cast(EmbeddingModel, model) if hasattr(model, "embed") else None
        encoder = load_encoder(prompt.select, own, progress)
    try:
        return build_selector(prompt.pool, prompt.select, encoder)
    except ValueError as error:  # vectors that are not numbers
        raise ModelError(str(error)) from None
