"""The title that the chat's model writes, in the background.

Invariant: a message never waits for a title: it stops the search, which the next reply repeats.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from textual.message_pump import MessagePump

from chatapp.tui.events import TitleSuggested

if TYPE_CHECKING:
    from chatapp.dialogue.session import Session
    from chatapp.tui.conversation.conversation import Conversation


def find_title(conversation: "Conversation", listener: MessagePump, before: str) -> None:
    """Let the model write a title for the open chat; ends in a TitleSuggested, unless stopped.

    before: the title that it takes the place of.
    """
    cancel = conversation.until_next_turn

    def run(session: "Session") -> None:
        from chatapp.dialogue.titles import suggest_title

        chat = session.chat
        if cancel.is_set() or chat.id is None:
            return
        with suppress(Exception):  # whatever fails here fails again at a reply, and is reported
            title = suggest_title(session, cancel)
            if not cancel.is_set():
                listener.post_message(TitleSuggested(chat.id, before, title))

    conversation.in_background(run)
