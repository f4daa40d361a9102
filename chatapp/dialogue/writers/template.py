"""Chats that are sent as messages, which a server writes in its model's own template.

Keep: what is shown of such a prompt, counted and stored is what the messages say, and nothing
that is not sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from chatapp.dialogue.prompt import Exchange, Prompt, PromptWriter
from chatapp.engine.events import CALLING, THINKING
from chatapp.prompting.calls import JSONCalls
from chatapp.prompting.messages import Message
from chatapp.prompting.template import DialogueTemplate
from chatapp.prompting.thinking import Marks

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
"""How messages are shown, and what stands between them where they have to be sent as one text,
because a reply is to go on where it ended."""


class MessagesWriter(PromptWriter):
    """Writes chats as messages, but for a reply that has begun.

    What was thought before earlier replies is left out, as makers of such models want it.
    """

    calls = JSONCalls(CALLING[0])
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
    """Users' and replies in turn, because many templates take nothing else: a message that
    nobody answered becomes the beginning of the next one."""
    messages: list[Message] = []
    unanswered: list[str] = []
    for exchange in exchanges:
        unanswered.append(exchange.asked.strip())
        if replied := exchange.replied():
            messages.append(Message("user", "\n\n".join(unanswered)))
            messages += [replace(message, text=message.text.strip()) for message in replied]
            unanswered = []
    if unanswered:
        messages.append(Message("user", "\n\n".join(unanswered)))
    return messages
