"""A prompt file with other settings, and the selector of its demonstrations."""

from dataclasses import replace
from typing import cast

from chatapp.common.userfiles import Progress, quoted, suggestion
from chatapp.engine.model import LanguageModel
from chatapp.rows.examples import PromptError
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.encoders import load_encoder
from chatapp.tasks.selection.methods import METHODS, Selector, with_encoder
from chatapp.tasks.selection.select import build_selector
from chatapp.tasks.settings import Scoring, Style


def method_and_encoder(value: str) -> tuple[str, str | None]:
    """Split `knn` or `knn:minilm` into method and encoder. Raises PromptError."""
    name, colon, encoder = value.partition(":")
    if name not in METHODS:
        message = f"--select is {quoted(name)}, which is not known{suggestion(name, METHODS)}"
        raise PromptError(message)
    if colon and not METHODS[name].needs_encoder:
        known = ", ".join(with_encoder(METHODS))
        raise PromptError(f"--select is {quoted(value)}; only {known} take an encoder")
    if colon and not encoder:
        raise PromptError(f"--select is {quoted(value)}; expected an encoder after the colon")
    return name, encoder or None


def method_of(selection: str) -> type[Selector]:
    """The method of a selection such as "knn:minilm". Raises PromptError."""
    return METHODS[method_and_encoder(selection)[0]]


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

    The values are those that `Setting.read` gives. seed: of the selection, and of sampling. select:
    a method, and perhaps an encoder. instruction: whether it is there. Raises PromptError.
    """
    keys: dict[str, object] = {"k": shots, "seed": seed, "order": order}
    if select is not None:
        # The file's encoder applies unless the option names one.
        keys["method"], keys["encoder"] = method_and_encoder(select)
    chosen = {key: value for key, value in keys.items() if value is not None}
    return replace(
        prompt,
        instruction="" if instruction == "off" else prompt.instruction,
        select=prompt.select.model_copy(update=chosen),
        scoring=cast(Scoring, score or prompt.scoring),
        style=cast(Style, style or prompt.style),
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
