"""The template that a chat is held in.

Keep: a model is chatted with in the template it was trained in, unless the user insists on another
one and is told what that means.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE, TOKENIZER_CONFIG
from chatapp.common.userfiles import parse_json_object, read_required, shown
from chatapp.dialogue.writers.chat_template import ChatWriter
from chatapp.dialogue.writers.prompt import Writer
from chatapp.dialogue.writers.template import SERVED, MessagesWriter, PromptWriter
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles, TokenizerFiles
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError, Template
from chatapp.prompting.template import (
    PLAIN,
    TEMPLATES,
    DialogueTemplate,
    TemplateError,
    load_template,
    named,
    saved_fingerprint,
)

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile


def load_chat_template(files: TokenizerFiles, special: Collection[str]) -> ChatTemplate | None:
    """The chat template that a tokenizer brings, or None.

    special: the names of the tokenizer's special tokens.
    Its own file wins over the key in the tokenizer's configuration, as in transformers.
    Raises ChatTemplateError, naming the file.
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

    origin: where they were found. special: the names of the tokenizer's special tokens.
    Of several named templates it is "default". Raises ChatTemplateError.
    """
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {
            each.get("name"): each.get("template") for each in source if isinstance(each, dict)
        }
        source = named.get("default")
    if source is None or source == "":
        return None
    if not isinstance(source, str):
        raise ChatTemplateError(f"{origin}: chat_template is {shown(source)}, expected a string")
    return ChatTemplate(source, origin, tuple(sorted(special)), _named_tokens(config))


def _named_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that a tokenizer_config.json gives a name, such as bos_token, by that name."""
    tokens = {}
    for name, token in config.items():
        text = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


INSIST = "!"
"""After a template's name: in this one, whatever the model was trained in."""


def choose_template(
    model: LanguageModel, requested: str, asked: str = "", thinking: bool | None = None
) -> Template:
    """The template to chat with `model` in.

    requested: a template's name, perhaps with INSIST, or "" for the model's own, or `plain`
        when it has none. A model that its server writes for can be chatted with in any other,
        as text.
    asked: what the chat asks for, and gets when the model has none of its own.
    thinking: whether the model thinks before it replies, where the template has a switch for
        that; None leaves the switch to the template.
    Raises ValueError in one sentence when there is no such template, when the model was
    trained in another one, or when its template is damaged.
    """
    if model.takes_messages:
        name = requested.removesuffix(INSIST)
        return SERVED if name in ("", SERVED.name) else named(name)
    own = _own(model)
    if asked in TEMPLATES and own is None:
        return TEMPLATES[asked]
    template = _choice(model.name, own, requested)
    if thinking is not None and isinstance(template, ChatTemplate) and template.switch:
        return replace(template, thinking=thinking)
    return template


def template_of(files: ModelFiles, special: Collection[str], requested: str) -> Template:
    """The template to chat with a model in, without loading it; see `choose_template`.

    special: the names of its tokenizer's special tokens.
    """
    return _choice(str(files.path), own_template(files, special), requested)


def mismatch(model: LanguageModel, template: Template) -> str:
    """What it means to chat with `model` in a template, in a sentence where it was trained in
    another one, else nothing. Raises ValueError as `choose_template` does."""
    own = None if model.takes_messages else _own(model)
    if own is None or own.fingerprint == template.fingerprint:
        return ""
    return (
        f"the model {model.name} was trained with {_told(own, template)}; in "
        f"{template.name!r} it sees a format that it was not trained on, so its replies may be poor"
    )


def _own(model: LanguageModel) -> Template | None:
    return own_template(model.files, model.tokenizer.special) if model.files else None


def _choice(model: str, own: Template | None, requested: str) -> Template:
    """The template asked for, if a model of that name can be chatted with in it."""
    name = requested.removesuffix(INSIST)
    if not name:
        return own or PLAIN
    if own and name == own.name and name not in TEMPLATES:
        return own
    template = named(name)
    if own and own.fingerprint != template.fingerprint and not requested.endswith(INSIST):
        raise ValueError(
            f"the model {model} was trained with {_told(own, template)} and does not "
            f"understand the template {template.name!r}; {template.name}{INSIST} forces it"
        )
    return template


def _told(own: Template, other: Template) -> str:
    """A model's own template in words, beside another one."""
    return f"{'another ' if own.name == other.name else 'the '}template {own.name!r}"


def with_thinking(model: LanguageModel, template: Template, thinking: bool) -> Template:
    """The template with its switch for thinking set. Raises ValueError where there is none."""
    if isinstance(template, ChatTemplate) and template.switch:
        return replace(template, thinking=thinking)
    raise ValueError(f"the model {model.name} has no switch for thinking in its template")


def writer_for(model: LanguageModel, template: Template) -> Writer:
    """What writes chats with `model` in a template that was chosen for it."""
    if isinstance(template, ChatTemplate):
        return ChatWriter(model, template)
    return (MessagesWriter if template == SERVED else PromptWriter)(model, template)


def own_template(files: ModelFiles, special: Collection[str]) -> Template | None:
    """The template saved with a model that was trained here, else its tokenizer's, or None.

    special: the names of its tokenizer's special tokens.
    Raises ValueError in one sentence when it is damaged, or is not the one that the model was
    trained in.
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
        found = f"{brought.origin} has a different one now" if brought else "there is none now"
        raise TemplateError(
            f"{folder}: the model was trained with its tokenizer's chat template, but {found}; "
            "restore the template that it was trained with"
        )
    return brought


def _saved_in(file: "GGUFFile") -> DialogueTemplate | None:
    """The template in a GGUF file that was written here of a model trained in it."""
    saved = file.metadata.get(GGUF_TEMPLATE)
    if saved is None:
        return None
    place = f"{file.path}: {GGUF_TEMPLATE}"
    return DialogueTemplate.from_dict(parse_json_object(str(saved), place, TemplateError), place)
