"""Converts a chat to the tokens that a model continues, and its output to a reply.

Invariants: the tokens of a prompt are those of its segments, encoded one by one, so the prompt of a
chat begins with the prompt of its previous turn, including the tokens that the model drew, which
are still in its cache. The prompt that is shown, counted and stored has exactly the content that is
sent.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from chatapp.common.userfiles import UserError
from chatapp.dialogue.documents.sources import Source, fitting
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.encoding import in_order, segment_ids
from chatapp.engine.model import ContextOverflow, LanguageModel
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Call, CallPattern, Message, Segment, text_of
from chatapp.prompting.thoughts_and_calls import CALCULATOR, Marks, with_calls
from chatapp.tasks.files.documents import DocumentSet

if TYPE_CHECKING:
    from chatapp.dialogue.documents.index import Passage


class MessageTooLong(UserError, ValueError):
    """A user's message that does not fit the window, even without everything optional.

    tokens: its length. limit: the longest message that would fit. Both are in its text.
    """

    def __init__(self, tokens: int, limit: int, window: int) -> None:
        self.tokens = tokens
        self.limit = limit
        super().__init__(
            f"the message is {tokens} tokens long; at most {max(limit, 0)} fit the model's "
            f"window of {window} tokens together with the instructions; a model with a larger "
            "window reads more, and passages of a file (--docs, /docs) take less"
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user's message and its reply; None if there is none yet.

    thoughts: the model's thoughts before the reply. passages: of documents, placed before the
    message in the prompt for its reply only. calls: of tools, within the reply.
    """

    user: str
    reply: str | None = None
    thoughts: str = ""
    passages: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()

    @property
    def full_message(self) -> str:
        """The message with its passages."""
        return "".join(self.passages) + self.user

    @property
    def rest(self) -> str:
        """The reply after its last call; all of it if no template writes calls."""
        written = [call.at for call in self.calls if not call.inside]
        return (self.reply or "")[written[-1] :].strip() if written else self.reply or ""

    def replied(self) -> list[Message]:
        """The reply as messages: the text before each call, its result, and the rest."""
        messages: list[Message] = []
        start = 0
        for call in self.calls:
            if not call.inside:
                text_before = (self.reply or "")[start : call.at].strip()
                messages.append(Message("assistant", text_before, call=call))
                messages.append(Message("tool", call.result, call=call))
                start = call.at
        if self.rest:
            messages.append(Message("assistant", self.rest, "" if messages else self.thoughts))
        return messages


@dataclass(frozen=True, slots=True)
class Shot:
    """A demonstration, and the similarity of its input to the message; None if not ranked."""

    input: str
    output: str
    similarity: float | None


@dataclass(frozen=True, slots=True)
class Label:
    """A reply chosen among all possible ones.

    ids: its tokens. remark: in words, the probability of each.
    """

    ids: tuple[int, ...]
    remark: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A model's input.

    dropped: the number of oldest exchanges left out for length. shots: the demonstrations in it,
    the nearest first; dropped_shots: those that did not fit. choose: lets the model choose the
    reply among labels; None, also as its result, if it is generated. messages: for a model that
    takes messages; empty for tokens. tools: those that such a model may call. sources: the passages
    of documents in it, and those that did not fit. marks: around a thought that may begin the
    reply; None if impossible. is_thinking: whether the prompt ends within a thought. opening: a
    prompt file's messages before the chat, as turns.
    """

    segments: tuple[Segment, ...]
    ids: tuple[int, ...]
    dropped: int
    shots: tuple[Shot, ...] = ()
    dropped_shots: tuple[Shot, ...] = ()
    choose: Callable[[], Label | None] | None = field(default=None, compare=False)
    messages: tuple[Message, ...] = ()
    marks: Marks | None = None
    is_thinking: bool = False
    sources: tuple[Source, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    opening: tuple[Message, ...] = ()

    @property
    def text(self) -> str:
        """The prompt as one string; messages as JSON."""
        if self.messages:
            return json.dumps(self.messages_sent, ensure_ascii=False)
        return text_of(self.segments)

    @property
    def messages_sent(self) -> list[dict[str, Any]]:
        """The messages in the form of `Request.messages`."""
        return in_protocol(self.messages)


def in_protocol(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form of OpenAI's protocol."""
    return [
        {"role": message.role, "content": message.text, **_call_sent(message, place)}
        for place, message in enumerate(messages)
    ]


def _call_sent(message: Message, place: int) -> dict[str, Any]:
    """The fields of OpenAI's protocol for a message with a call or a result."""
    call = message.call
    if call is None:
        return {}
    if message.role == "tool":
        return {"tool_call_id": f"call{place - 1:05}"}
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    return {"tool_calls": [{"id": f"call{place:05}", "type": "function", "function": function}]}


ToolChoice = Literal["own", "scored"]


class Writer(ABC):
    """Renders prompts for one model in one layout, and caches their tokens.

    name: of the layout. stop: the strings at which a reply is cut off. documents: those that the
    layout itself uses. calls: how the model calls tools. goes_on: a prompt contains the chat so
    far, not only the message. ends_anywhere: a message may end within a word, and the reply then
    begins without a space. prefix: inserted before each message. tools: those described in
    the prompt. constraint: the layout's own. tool_choice: "own" if the model opens calls itself,
    because its template or the layout's examples say how; else "scored", see `tools.choosing`.
    """

    name: str
    stop: tuple[str, ...]
    documents: DocumentSet | None = None
    calls: CallPattern = CALCULATOR
    goes_on: bool = True
    ends_anywhere: bool = False
    prefix: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    constraint: Constraint | None = None
    tool_choice: ToolChoice = "scored"

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._encoded: dict[tuple[str, bool], list[int]] = {}
        self._generated: dict[str, list[int]] = {}

    def use_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Use other tools from the next prompt on, in the form of `Tool.to_dict`."""
        self.tools = tuple(tools)

    @abstractmethod
    def write(
        self, system: str | None, exchanges: Sequence[Exchange], *, max_tokens: int
    ) -> Prompt:
        """The prompt for the last exchange's reply, or for continuing it if it exists.

        system: instructions instead of the layout's. exchanges: at least one. max_tokens: the
        longest reply wanted; at most a quarter of the window is reserved for it. Raises
        MessageTooLong, or ContextOverflow when the reply fills the window.
        """

    def sources(
        self, system: str | None, message: str, passages: "Sequence[Passage]", *, max_tokens: int
    ) -> tuple[Source, ...]:
        """Number the passages for a message that fit its prompt; return all.

        They may take half of the window, if the rest of the prompt leaves that; earlier turns are
        dropped for them. Raises MessageTooLong.
        """
        window = self._model.context
        alone = len(self.write(system, [Exchange(message)], max_tokens=max_tokens).ids)
        room = min(window // 2, window - alone - min(max_tokens, window // 4))
        return fitting(passages, room, lambda text: len(self._encode_text(text, begins=False)))

    @abstractmethod
    def render_instruction(self, system: str | None) -> list[Segment]:
        """The opening of a prompt."""

    @abstractmethod
    def render_reply(self, reply: str) -> list[Segment]:
        """An open reply; nothing for an empty one."""

    def render_thoughts(self, thoughts: str, *, over: bool) -> list[Segment]:
        """The thoughts before a reply, as the model wrote them; nothing if the layout has none.
        over: the reply has begun.
        """
        return []

    def remember(self, reply: str, drawn: Sequence[int]) -> None:
        """Keep the drawn tokens of a reply.

        drawn: its tokens in order, including those cut off at the end. They are used when their
        text is exactly what the layout would render.
        """
        rendered = text_of(self.render_reply(reply))
        ids = list(drawn)
        decoded = self._model.tokenizer.decode(ids)
        is_in_word = self.ends_anywhere and not decoded[:1].isspace()
        text = rendered.lstrip(" ") if is_in_word else rendered
        while ids and len(decoded) > len(text):
            del ids[-1]
            decoded = self._model.tokenizer.decode(ids)
        if ids and decoded == text:
            self._generated[rendered] = ids

    def reply_ids(self, reply: str) -> list[int]:
        """The tokens of a reply in a prompt."""
        return [id for part in self.render_reply(reply) for id in self._ids(part)]

    def written_ids(self, prompt: Prompt, reply: str, thoughts: str) -> list[int]:
        """The tokens of a reply as the model wrote it, including thoughts."""
        parts = self.render_thoughts(thoughts, over=bool(reply)) if thoughts else []
        opened = parts[prompt.is_thinking :]
        return [id for part in opened for id in self._ids(part)] + self.reply_ids(reply)

    def render_rest(self, exchange: Exchange) -> list[Segment]:
        """A reply from the result of its last call on."""
        start = exchange.calls[-1].at + exchange.calls[-1].inside
        text = (exchange.reply or "")[start:] if exchange.calls[-1].inside else exchange.rest
        return [Segment("assistant", text)] if text else []

    def rest_ids(self, exchange: Exchange) -> list[int]:
        """The tokens of a reply from the result of its last call on."""
        return [id for part in self.render_rest(exchange) for id in self._encode(part)]

    def instruction_ids(self, system: str | None) -> list[int]:
        """The tokens of a prompt's opening."""
        return in_order(self.render_instruction(system), self._encode)

    def _replied(self, exchange: Exchange) -> list[Segment]:
        """An open reply with the calls in it."""
        reply = exchange.reply or ""
        return with_calls(self.render_reply(reply), reply, exchange.calls)

    def _tokens(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        ids = tuple(in_order(segments, self._ids))
        if len(ids) < self._model.context:
            return ids
        # Drawn tokens can be more than their text needs. Counting the latter makes the choice of
        # turns depend on the chat alone, so drawn tokens are given up if they do not fit.
        return tuple(in_order(segments, self._encode))

    def _check_room(self, last: Sequence[Segment], room: int, *, begun: bool) -> None:
        """Refuse a newest exchange that leaves no room. begun: it has the beginning of a reply."""
        if room >= 1:
            return
        window = self._model.context
        if begun:
            raise ContextOverflow(
                f"the reply fills the model's window of {window} tokens and cannot be continued"
            )
        tokens = sum(self._count([part]) for part in last if part.kind == "user")
        raise MessageTooLong(tokens, tokens + room - 1, window)

    def _count(self, segments: Iterable[Segment]) -> int:
        return len(in_order(segments, self._encode))

    def _ids(self, segment: Segment, begins: bool = False) -> list[int]:
        if segment.kind == "assistant" and segment.text in self._generated:
            return self._generated[segment.text]
        return self._encode(segment, begins)

    def _encode(self, segment: Segment, begins: bool = False) -> list[int]:
        return segment_ids(segment, self._model.tokenizer, self._encode_text, begins=begins)

    def _encode_text(self, text: str, *, begins: bool) -> list[int]:
        if (text, begins) not in self._encoded:
            self._encoded[text, begins] = self._model.tokenizer.encode(text, begins=begins)
        return self._encoded[text, begins]


def with_constraint(
    system: str | None, template: ChatTemplate, constraint: Constraint | None
) -> str | None:
    """Instructions that say what a reply may look like. system: None for the template's own."""
    if constraint is None:
        return system
    own = template.instruction if system is None else system
    return f"{own}\n\nAnswer only with {constraint.in_words}".strip()
