"""Applies the options of `run` and `eval` to a prompt file.

Invariant: an option means what the prompt file's key means, and an invalid one is refused in a
sentence that names it and its possible values.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Literal, TypeVar, cast, get_args

from chatapp.common.progress import Progress
from chatapp.common.userfiles import quoted, suggestion
from chatapp.engine.model import LanguageModel
from chatapp.prompting.examples import PromptError
from chatapp.tasks.files.keys import Scoring, Style
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.encoders import load_encoder
from chatapp.tasks.selection.installed import find_method, listed_methods, usable_methods
from chatapp.tasks.selection.methods import Selector, with_encoder
from chatapp.tasks.selection.select import ShotOrder, build_selector

ORDERS: tuple[ShotOrder, ...] = get_args(ShotOrder)
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)
STYLES: tuple[Style, ...] = get_args(Style)

Switch = Literal["on", "off"]
SWITCHES: tuple[Switch, ...] = get_args(Switch)

_Name = TypeVar("_Name", bound=str)


def one_of(value: str, known: Collection[_Name], option: str) -> _Name:
    """Check that a value is one of the known names. Raises PromptError that lists them."""
    if value not in known:
        raise PromptError(_not_known(option, value, known))
    return cast(_Name, value)


def _not_known(option: str, value: str, known: Collection[str]) -> str:
    return f"{option} is {quoted(value)}, which is not known{suggestion(value, known)}"


def method_and_encoder(value: str) -> tuple[str, str | None]:
    """Split `knn` or `knn:minilm` into method and encoder. Raises PromptError."""
    name, colon, encoder = value.partition(":")
    method = _named(name)
    if colon and not method.needs_encoder:
        known = ", ".join(with_encoder(usable_methods()))
        raise PromptError(f"--select is {quoted(value)}; only {known} take an encoder")
    if colon and not encoder:
        raise PromptError(f"--select is {quoted(value)}; expected an encoder after the colon")
    return name, encoder or None


def method_of(selection: str) -> type[Selector]:
    """The method of a selection such as "knn:minilm". Raises PromptError."""
    name, _ = method_and_encoder(selection)
    return _named(name)


def _named(name: str) -> type[Selector]:
    method = find_method(name)
    if method is None:
        known, clashes = listed_methods()
        raise PromptError(f"{_not_known('--select', name, known)}{clashes}")
    return method


def changed(
    prompt: PromptFile,
    *,
    shots: int | None = None,
    select: str | None = None,
    order: str | None = None,
    score: str | None = None,
    seed: int | None = None,
    style: str | None = None,
    instruction: str | None = None,
) -> PromptFile:
    """A copy of the prompt file with changed keys; None leaves one unchanged.

    seed: of the selection, and of sampling. instruction: whether it is there. Raises PromptError.
    """
    keys: dict[str, object] = {}
    if select is not None:
        method, encoder = method_and_encoder(select)
        keys["method"] = method
        # The file's encoder applies unless the option names one.
        keys |= {"encoder": encoder} if encoder else {}
    if order is not None:
        keys["order"] = one_of(order, ORDERS, "--order")
    keys |= {"k": shots} if shots is not None else {}
    keys |= {"seed": seed} if seed is not None else {}
    switch = one_of(instruction, SWITCHES, "--instruction") if instruction is not None else "on"
    return replace(
        prompt,
        instruction=prompt.instruction if switch == "on" else "",
        select=prompt.select.model_copy(update=keys),
        scoring=one_of(score, SCORINGS, "--score") if score is not None else prompt.scoring,
        style=one_of(style, STYLES, "--style") if style is not None else prompt.style,
        generate=dict(prompt.generate) | ({"seed": seed} if seed is not None else {}),
    )


def selector_for(
    prompt: PromptFile, model: LanguageModel | None, progress: Progress | None = None
) -> Selector | None:
    """The selector for the prompt file; None when it has no demonstrations.

    model: for the encoder `lm`. Raises ModelError when the encoder is not available, PromptError
    when its embeddings are invalid.
    """
    if not len(prompt.pool) or prompt.text is not None:
        return None
    encoder = None
    if prompt.select.selector.needs_encoder:
        own = model if hasattr(model, "embed") else None
        encoder = load_encoder(prompt.select, own, progress)
    return build_selector(prompt.pool, prompt.select, encoder)
