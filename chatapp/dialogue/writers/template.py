"""Writers for dialogue templates, and for servers that render messages themselves.

Invariant: the prompt that is shown, counted and stored has exactly the content that is sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer
from chatapp.engine.events import CALLING, THINKING
from chatapp.engine.model import LanguageModel
from chatapp.prompting.messages import END_OF_TEXT, JSONCalls, Message, Segment, fit
from chatapp.prompting.template import DialogueTemplate
from chatapp.prompting.thinking import Marks
from chatapp.tasks.files.documents import set_apart


class PromptWriter(Writer):
    """Writes chats in a dialogue template."""

    def __init__(self, model: LanguageModel, template: DialogueTemplate) -> None:
        super().__init__(model)
        self._template = template
        self.name = template.name
        self.stop = template.stop

    def write(
        self, system: str | None, exchanges: Sequence[Exchange], *, max_tokens: int
    ) -> Prompt:
        *history, newest = exchanges
        instructions = self.render_instruction(system)
        turns = [self._closed(exchange) for exchange in history]
        last = self._template.render_user(newest.full_message, after=END_OF_TEXT)
        if newest.passages:
            last = set_apart(last, newest.passages)
        # The first remaining turn follows the instructions, not a reply.
        first = self._template.render_user("", after=next(iter(instructions), None))[0]
        last += self._replied(newest, self.render_reply(newest.reply or ""))
        window = self._model.context
        budget = fit(
            window=window,
            instructions=self._count([*instructions, first]) - self._count(last[:1]),
            history=[self._count(turn) for turn in turns],
            newest=self._count(last),
            reserve=min(max_tokens, window // 4),
        )
        self._check_room(last, budget.room, begun=bool(newest.reply))
        _, *rest = (part for turn in [*turns[budget.dropped :], last] for part in turn)
        segments = (*instructions, first, *rest)
        return Prompt(segments, self._tokens(segments), budget.dropped)

    def render_instruction(self, system: str | None) -> list[Segment]:
        return self._template.render_instruction(system)

    def render_reply(self, reply: str) -> list[Segment]:
        return self._template.render_reply(reply, closed=False)

    def _closed(self, exchange: Exchange) -> list[Segment]:
        """A past exchange. An unanswered message is followed by no reply, because an empty one
        would teach the model to say nothing.
        """
        segments = self._template.render_user(exchange.user, after=END_OF_TEXT)
        if exchange.reply or exchange.calls:
            reply = self._template.render_reply(exchange.reply or "")
            return segments + self._replied(exchange, reply)
        return segments[:-1]


SERVED = DialogueTemplate(
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
"""The form of messages on the screen, and their separators when they must be sent as one text,
because a reply is continued.
"""


class MessagesWriter(PromptWriter):
    """Sends chats as messages, except when a reply is continued.

    Thoughts before earlier replies are left out, as the authors of such models recommend.
    """

    calls = JSONCalls(CALLING[0])
    tool_choice = "own"
    _MARKS = Marks(*THINKING)

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
