"""Prompts in a chat template, also for servers that render messages themselves.

A model's own template may rewrite earlier turns (it drops thoughts, it moves instructions into the
last message), so a prompt is rendered again from all remaining messages, and the cache reuses what
it can.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer
from chatapp.engine.encoding import without_start
from chatapp.engine.events import CALLING, THINKING
from chatapp.engine.model import LanguageModel
from chatapp.prompting.calls import as_text
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import JSONCalls, Message, Segment, fit
from chatapp.prompting.template import ShippedTemplate, Wording
from chatapp.prompting.thinking import Marks, ends_in_thought
from chatapp.tasks.files.documents import set_apart


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
            is_reply = segment.kind == "assistant"
            segments += self._replied(next(replied)) if is_reply else [segment]
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
    Wording(
        name="server's own",
        instruction="",
        after_instruction="\n\n",
        user_marker="User:\n",
        assistant_marker="Assistant:\n",
        lead="",
        after_user="\n\n",
        after_reply="\n\n",
        stop=("\n\nUser:\n", "\n\nAssistant:\n"),
        end_of_reply=False,
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
