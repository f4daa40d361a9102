"""What the user says of replies: good or bad, what it should have been, which is better.

Keep: what is shown of a verdict is what the store has of it.
"""

from typing import TYPE_CHECKING

from chatapp.dialogue.store.database import StoreError
from chatapp.tui.screens.ranking import RankScreen

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.conversation.reply_scores import Scoring


class Verdicts:
    """Takes the verdicts on the replies of a conversation, stores and shows them."""

    def __init__(
        self,
        conversation: "Conversation",
        store: "Store",
        widgets: "ChatWidgets",
        scoring: "Scoring",
    ) -> None:
        self._conversation = conversation
        self._store = store
        self._widgets = widgets
        self._scoring = scoring

    def show(self) -> None:
        """Show what the user has said of the chat's replies."""
        with self._widgets.store_errors():
            chat_id = self._conversation.chat.id
            feedback = {} if chat_id is None else self._store.feedback(chat_id)
            self._widgets.transcript.show_feedback(feedback)

    def rate(self, reply: "StoredMessage", thumb: int) -> None:
        """Call a reply good (1) or bad (-1); said twice, it is taken back."""
        with self._widgets.store_errors():
            feedback = self._store.feedback(reply.chat_id).get(reply.id)
            is_repeated = feedback is not None and feedback.thumb == thumb
            self._store.set_thumb(reply.id, 0 if is_repeated else thumb)
            self.show()

    def begin_correction(self, reply: "StoredMessage") -> None:
        """Let the user write what a reply should have been."""
        with self._widgets.store_errors():
            feedback = self._store.feedback(reply.chat_id).get(reply.id)
            correction = feedback.correction if feedback is not None else None
            self._widgets.prompt.edit_message(reply, correction or reply.text)
            self._widgets.prompt.focus()

    def keep_correction(self, reply: "StoredMessage", text: str) -> None:
        """Store what a reply should have been; its own words, or none, take a correction back."""
        try:
            stored = self._store.message(reply.id)
            is_withdrawn = text.strip() in ("", stored.text.strip())
            self._store.set_correction(stored.id, None if is_withdrawn else text)
        except StoreError as error:
            self._widgets.prompt.give_back(text, reply)
            self._widgets.show_problem(str(error))
        else:
            self.show()

    async def rank(self, reply: "StoredMessage") -> None:
        """Let the user put a reply and its siblings in order. To be called in a worker."""
        with self._widgets.store_errors():
            siblings = self._store.siblings(reply.id)
            feedback = self._store.feedback(reply.chat_id)
            ranks = {id: verdict.rank for id, verdict in feedback.items() if verdict.rank}
            app = self._widgets.transcript.app
            ranking = await app.push_screen_wait(RankScreen(siblings, ranks, self._scoring))
            if ranking is not None:
                self._store.set_ranking(ranking)
                self.show()
