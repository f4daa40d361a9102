"""Chooses the template of a chat."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE, TOKENIZER_CONFIG
from chatapp.common.userfiles import parse_json_object, read_required, shown
from chatapp.dialogue.writers.chat_template import SERVED, ChatWriter, MessagesWriter
from chatapp.dialogue.writers.prompt import ToolChoice, Writer
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles, TokenizerFiles
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.template import (
    PLAIN,
    TEMPLATES,
    ShippedTemplate,
    TemplateError,
    Wording,
    load_template,
    named,
    saved_fingerprint,
)

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile


def load_chat_template(files: TokenizerFiles, special: Collection[str]) -> ChatTemplate | None:
    """Load a tokenizer's chat template, or None.

    special: the names of the tokenizer's special tokens. Its own file wins over the key in the
    tokenizer's configuration, as in transformers. Raises ChatTemplateError, naming the file.
    """
    try:
        config = files.config
    except ModelError as error:
        raise ChatTemplateError(str(error)) from None
    if files.gguf is not None:
        return chat_template_of(config, str(files.path), special)
    file = files.path / CHAT_TEMPLATE
    if not file.is_file():
        return chat_template_of(config, str(files.path / TOKENIZER_CONFIG), special)
    source = read_required(file, ChatTemplateError)
    return chat_template_of({**config, "chat_template": source}, str(file), special)


def chat_template_of(
    config: Mapping[str, Any], origin: str, special: Collection[str]
) -> ChatTemplate | None:
    """The chat template in the keys of a tokenizer_config.json, or None.

    origin: of the keys. special: the names of the tokenizer's special tokens. Of several named
    templates it is "default", and "tool_use" with tools. Raises ChatTemplateError.
    """
    source, tool_source = config.get("chat_template"), ""
    if isinstance(source, list) and source:
        named = {str(e.get("name")): e.get("template") for e in source if isinstance(e, dict)}
        if "default" not in named:
            raise ChatTemplateError(
                f"{origin}: chat_template is a list of {shown(sorted(named))}, expected one that "
                "is named 'default'"
            )
        source, tool_source = named["default"], named.get("tool_use") or ""
    if not source:
        return None
    for program in (source, tool_source):
        if not isinstance(program, str):
            raise ChatTemplateError(
                f"{origin}: chat_template is {shown(program)}, expected a string"
            )
    named_tokens = _named_tokens(config)
    return ChatTemplate(
        source, origin, tuple(sorted(special)), named_tokens, tool_source=tool_source
    )


def _named_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens with a name in a tokenizer_config.json, such as bos_token, by that name."""
    tokens = {}
    for name, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


INSIST = "!"
"""After a template's name: use it even if the model was trained with another one."""


def choose_template(
    model: LanguageModel, requested: str, template_of_chat: str = "", thinking: bool | None = None
) -> ChatTemplate:
    """Choose the template for a chat with `model`.

    requested: a template's name, perhaps with INSIST, or "" for the model's own, or `plain` when it
    has none. A model whose server renders chats accepts any other, as text.
    template_of_chat: used when the model has no template of its own. thinking: whether the model
    thinks before it replies, if the template has a switch for that; None leaves the switch to the
    template. Raises ValueError with one sentence when there is no such template, when the model was
    trained with another one, or when its template is damaged.
    """
    if model.takes_messages:
        name = requested.removesuffix(INSIST)
        return SERVED if name in ("", SERVED.name) else named(name)
    own = _own(model)
    if template_of_chat in TEMPLATES and own is None:
        return TEMPLATES[template_of_chat]
    template = _choice(model.name, own, requested)
    if thinking is not None and template.switch:
        return replace(template, thinking=thinking)
    return template


def tool_choice_of(files: ModelFiles) -> ToolChoice:
    """How tools are called by a model that is not loaded. Raises ValueError as `own_template`."""
    own = own_template(files, ())
    return "own" if own is not None and own.has_calls else "scored"


def template_of(files: ModelFiles, special: Collection[str], requested: str) -> ChatTemplate:
    """The template for a chat with a model that is not loaded; see `choose_template`.

    special: the names of its tokenizer's special tokens.
    """
    return _choice(str(files.path), own_template(files, special), requested)


def mismatch(model: LanguageModel, template: ChatTemplate) -> str:
    """A warning if `model` was trained with another template, else "". Raises ValueError as
    `choose_template` does.
    """
    own = None if model.takes_messages else _own(model)
    if own is None or own.fingerprint == template.fingerprint:
        return ""
    return (
        f"the model {model.name} was trained with {_describe_own(own, template)}; in "
        f"{template.name!r} it sees a format that it was not trained on, so its replies may be poor"
    )


def _own(model: LanguageModel) -> ChatTemplate | None:
    return own_template(model.files, model.tokenizer.special) if model.files else None


def _choice(model: str, own: ChatTemplate | None, requested: str) -> ChatTemplate:
    """The requested template, if it suits the model."""
    name = requested.removesuffix(INSIST)
    if not name:
        return own or PLAIN
    if own and name == own.name and name not in TEMPLATES:
        return own
    template = named(name)
    if own and own.fingerprint != template.fingerprint and not requested.endswith(INSIST):
        raise ValueError(
            f"the model {model} was trained with {_describe_own(own, template)} and does not "
            f"understand the template {template.name!r}; {template.name}{INSIST} forces it"
        )
    return template


def _describe_own(own: ChatTemplate, other: ChatTemplate) -> str:
    """A model's own template in words, next to another one."""
    return f"{'another ' if own.name == other.name else 'the '}template {own.name!r}"


def with_thinking(model: LanguageModel, template: ChatTemplate, thinking: bool) -> ChatTemplate:
    """The template with its switch for thinking set. Raises ValueError if it has none."""
    if template.switch:
        return replace(template, thinking=thinking)
    raise ValueError(f"the model {model.name} has no switch for thinking in its template")


def writer_for(model: LanguageModel, template: ChatTemplate) -> Writer:
    """The writer for chats with `model` in the chosen template."""
    return (MessagesWriter if template == SERVED else ChatWriter)(model, template)


def own_template(files: ModelFiles, special: Collection[str]) -> ChatTemplate | None:
    """The template stored with a model trained here, else its tokenizer's, or None.

    special: the names of its tokenizer's special tokens. Raises ValueError with one sentence when
    it is damaged, or is not the one of the model's training.
    """
    if files.gguf is not None:
        return _saved_in(files.gguf) or load_chat_template(files.tokenizer, special)
    folder = files.path if files.template is None else files.template.parent
    own = load_template(folder)
    if own is not None:
        return own
    brought = load_chat_template(files.tokenizer, special)
    trained = saved_fingerprint(folder)
    if trained and (brought is None or brought.fingerprint != trained):
        current = f"{brought.origin} has a different one now" if brought else "there is none now"
        raise TemplateError(
            f"{folder}: the model was trained with its tokenizer's chat template, but {current}; "
            "restore the template that it was trained with"
        )
    return brought


def _saved_in(file: "GGUFFile") -> ShippedTemplate | None:
    """The template in a GGUF file that this program wrote for a model trained with it."""
    saved = file.metadata.get(GGUF_TEMPLATE)
    if saved is None:
        return None
    place = f"{file.path}: {GGUF_TEMPLATE}"
    data = parse_json_object(str(saved), place, TemplateError)
    return ShippedTemplate.of(Wording.from_dict(data, place))
