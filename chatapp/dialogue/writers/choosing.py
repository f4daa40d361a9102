"""Prompts in a chat template, also for servers that render messages themselves, and the choice of
the template of a chat.

A model's own template may rewrite earlier turns (it drops thoughts, it moves instructions into the
last message), so a prompt is rendered again from all remaining messages, and the cache reuses what
it can.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE, TOKENIZER_CONFIG
from chatapp.common.userfiles import parse_json_object, read_required, shown
from chatapp.dialogue.writers.prompt import Exchange, Prompt, ToolChoice, Writer
from chatapp.engine.encoding import without_start
from chatapp.engine.errors import ModelError
from chatapp.engine.events import CALLING, THINKING
from chatapp.engine.files.model_files import ModelFiles, TokenizerFiles
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import JSONCalls, Message, Segment, fit, set_apart
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
from chatapp.prompting.thoughts_and_calls import Marks, as_text, ends_in_thought

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile


class ChatWriter(Writer):
    """Writes chats in a template."""

    def __init__(self, model: LanguageModel, template: ChatTemplate) -> None:
        super().__init__(model)
        self._template = template
        self.name = template.name
        self.stop = template.stop
        self.calls = template.calls
        self.tool_choice = "own" if template.has_calls else "scored"
        self._lead = template.wording.lead if isinstance(template, ShippedTemplate) else None
        # The size of the template's text around an exchange without and with a reply, for choosing
        # turns; in a model's own template an estimate of the latter alone.
        newest = [Exchange("a")]
        alone = self._count(self._segments(None, newest))
        self._around = [0, 0]
        for exchange in (Exchange("a"), Exchange("a", "b"))[self._lead is None :]:
            together = self._count(self._segments(None, [exchange, *newest]))
            texts = 0 if self._lead is None else self._length(exchange)
            self._around[exchange.reply is not None] = together - alone - texts

    def use_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if tuple(tools) != self.tools:
            super().use_tools(tools)
            if self._lead is None:  # nobody trained with it learnt from a description
                self._template = replace(self._template, tools=self.tools)

    def write(
        self, system: str | None, exchanges: Sequence[Exchange], *, max_tokens: int
    ) -> Prompt:
        *history, newest = exchanges
        window = self._model.context
        bare = self._count(self._segments(system, [newest]))
        budget = fit(
            window=window,
            instructions=0,
            history=[self._length(exchange) for exchange in history],
            newest=bare,
            reserve=min(max_tokens, window // 4),
        )
        for dropped in range(budget.dropped, len(exchanges)):
            segments = self._segments(system, exchanges[dropped:])
            ids = self._tokens(segments)
            if not ids:
                origin = self._template.origin
                raise ChatTemplateError(
                    f"{origin}: the chat template renders this chat as an empty text"
                )
            if len(ids) < window:
                marks = None if newest.rest else self._template.marks
                is_thinking = marks is not None and ends_in_thought(segments, marks)
                return Prompt(tuple(segments), ids, dropped, marks=marks, is_thinking=is_thinking)
        self._check_room(segments, window - bare, begun=bool(newest.reply or newest.thoughts))
        raise AssertionError("the newest exchange alone fits the window and does not")

    def render_instruction(self, system: str | None) -> list[Segment]:
        text = self._template.instruction if system is None else system.strip()
        return [Segment("instruction", text)] if text else []

    def render_reply(self, reply: str) -> list[Segment]:
        return self._template.reply(reply)

    def render_thoughts(self, thoughts: str, *, over: bool) -> list[Segment]:
        marks = self._template.marks
        if marks is None:
            return []
        begin, end = (
            Segment("special" if mark in self._model.tokenizer.special else "marker", mark)
            for mark in (marks.begin, marks.end)
        )
        after = [end, Segment("marker", "\n\n")] if over else []
        return [begin, Segment("thinking", thoughts), *after]

    def _segments(self, system: str | None, exchanges: Sequence[Exchange]) -> list[Segment]:
        messages = [] if system is None else [Message("system", system.strip())]
        if self._lead is not None:
            return self._with_calls(messages, exchanges)
        for exchange in exchanges:
            messages.append(Message("user", exchange.full_message.strip()))
            messages += exchange.replied()
        newest = exchanges[-1]
        if not newest.thoughts or newest.calls:
            rendered = self._template.render(messages, open_reply=True)
            return without_start(set_apart(rendered, newest.passages), self._model)
        # A reply with thoughts continues in the form in which it was written: templates insert
        # thoughts in their own way, and only into finished replies.
        reply = newest.reply or ""
        if reply:
            messages.pop()
        segments = set_apart(self._template.render(messages), newest.passages)
        thoughts = self.render_thoughts(newest.thoughts, over=bool(reply))
        marks = self._template.marks
        if marks is not None and ends_in_thought(segments, marks):
            del thoughts[0]
        return without_start([*segments, *thoughts, *self.render_reply(reply)], self._model)

    def _with_calls(self, messages: list[Message], exchanges: Sequence[Exchange]) -> list[Segment]:
        """The exchanges in a template of this program, which leaves calls to the text.

        An unanswered message is followed by no reply, because an empty one would teach the model to
        say nothing.
        """
        for exchange in exchanges:
            messages.append(Message("user", exchange.full_message))
            if _is_replied(exchange):  # "-" stands for the calls
                messages.append(Message("assistant", exchange.reply or "-"))
        segments: list[Segment] = []
        replied = filter(_is_replied, exchanges)
        for segment in self._template.render(messages, open_reply=True):
            reply = next(replied) if segment.kind == "assistant" else None
            segments += self._replied(reply) if reply and reply.calls else [segment]
        return set_apart(segments, exchanges[-1].passages)

    def _length(self, exchange: Exchange) -> int:
        """The tokens of an exchange with the template's text around it."""
        if self._lead is not None:
            around = self._around[_is_replied(exchange)]
            user = Segment("user", self._lead + exchange.user.strip())
            return around + self._count([user, *self._replied(exchange)])
        texts = [Segment("user", exchange.user), Segment("assistant", exchange.reply or "")]
        called = (text for call in exchange.calls for text in as_text(call))
        return self._around[1] + self._count([*texts, *(Segment("tool", text) for text in called)])


def _is_replied(exchange: Exchange) -> bool:
    return bool(exchange.reply or exchange.calls)


SERVED = ShippedTemplate.of(
    replace(
        PLAIN.wording,
        name="server's own",
        instruction="",
        user_marker="User:\n",
        assistant_marker="Assistant:\n",
        lead="",
        after_user="\n\n",
        after_reply="\n\n",
        stop=("\n\nUser:\n", "\n\nAssistant:\n"),
    )
)
"""The form of messages on the screen, and their separators when they must be sent as one text,
because a reply is continued.
"""


class MessagesWriter(ChatWriter):
    """Sends chats as messages, except when a reply is continued.

    Thoughts before earlier replies are left out, as the authors of such models recommend.
    """

    _MARKS = Marks(*THINKING)

    def __init__(self, model: LanguageModel, template: ChatTemplate = SERVED) -> None:
        super().__init__(model, template)
        self.calls, self.tool_choice = JSONCalls(CALLING[0]), "own"

    def write(
        self, system: str | None, exchanges: Sequence[Exchange], *, max_tokens: int
    ) -> Prompt:
        prompt = super().write(system, exchanges, max_tokens=max_tokens)
        if exchanges[-1].rest:
            return prompt
        opening = [Message("system", part.text) for part in self.render_instruction(system)]
        turns = _messages(exchanges[prompt.dropped :])
        return replace(prompt, messages=(*opening, *turns), marks=self._MARKS, tools=self.tools)


def _messages(exchanges: Sequence[Exchange]) -> list[Message]:
    """Alternating messages of user and assistant, because many templates require that: an
    unanswered message is merged into the next one.
    """
    messages: list[Message] = []
    unanswered: list[str] = []
    for exchange in exchanges:
        unanswered.append(exchange.full_message.strip())
        if replied := exchange.replied():
            messages.append(Message("user", "\n\n".join(unanswered)))
            messages += [replace(message, text=message.text.strip()) for message in replied]
            unanswered = []
    if unanswered:
        messages.append(Message("user", "\n\n".join(unanswered)))
    return messages


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
        raise TemplateError(
            f"the model {model} was trained with {_describe_own(own, template)} and does not "
            f"understand the template {template.name!r}; {template.name}{INSIST} forces it"
        )
    return template


def _describe_own(own: ChatTemplate, other: ChatTemplate) -> str:
    """A model's own template in words, next to another one."""
    return f"{'another ' if own.name == other.name else 'the '}template {own.name!r}"


def with_thinking(model: LanguageModel, template: ChatTemplate, thinking: bool) -> ChatTemplate:
    """The template with its switch for thinking set. Raises TemplateError if it has none."""
    if template.switch:
        return replace(template, thinking=thinking)
    raise TemplateError(f"the model {model.name} has no switch for thinking in its template")


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
