"""Prompts in a model's own chat template.

Such a template may rewrite earlier turns (it drops thoughts, it moves instructions into the last
message), so a prompt is rendered again from all remaining messages, and the cache reuses what it
can.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer
from chatapp.engine.encoding import without_start
from chatapp.engine.model import LanguageModel
from chatapp.prompting.calls import as_text
from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import Message, Segment, fit
from chatapp.prompting.thinking import ends_in_thought
from chatapp.tasks.files.documents import set_apart


class ChatWriter(Writer):
    """Writes chats in a model's own template."""

    def __init__(self, model: LanguageModel, template: ChatTemplate) -> None:
        super().__init__(model)
        self._template = template
        self.name = template.name
        self.stop = template.stop
        self.calls = template.calls
        self.tool_choice = "own" if template.has_calls else "scored"
        # The estimated size of the template's text around an exchange, for choosing turns. The
        # resulting prompt is counted exactly.
        newest = [Exchange("a")]
        together = self._count(self._segments(None, [Exchange("a", "b"), *newest]))
        self._around = together - self._count(self._segments(None, newest))

    def use_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        if tuple(tools) != self.tools:
            super().use_tools(tools)
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
            history=[self._around + self._length(exchange) for exchange in history],
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
        return [Segment("assistant", reply)] if reply else []

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

    def _length(self, exchange: Exchange) -> int:
        texts = [Segment("user", exchange.user), Segment("assistant", exchange.reply or "")]
        called = (text for call in exchange.calls for text in as_text(call))
        return self._count([*texts, *(Segment("tool", text) for text in called)])
