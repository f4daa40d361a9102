"""Scores of a chat's replies by a reward model, computed on threads, one after the other.

Invariant: nobody waits for a score. No scoring begins during a reply, and a score that arrives
after the reward model or the instructions have changed is dropped.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from textual.screen import Screen
from textual.signal import Signal

from chatapp.tui.platform.runtime import in_words

if TYPE_CHECKING:
    from chatapp.dialogue.reply_scores import ReplyScorer
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.widgets.transcript import Transcript

_Key = tuple[int, str]
"""A reply's id, and its text, which changes when the reply is continued."""


@dataclass(slots=True, eq=False)
class _Request:
    """A reward model to load. follows: whether for a chat that was opened, not for a command.

    has_begun: whether it is being loaded.
    """

    name: str
    follows: bool
    has_begun: bool = False


class Display(Protocol):
    """The parts of the chat screen that show scores and notices about them."""

    transcript: "Transcript"

    def inform(self, words: str) -> None: ...
    def show_problem(self, problem: str) -> None: ...
    def store_errors(self) -> AbstractContextManager[None]: ...


class Scoring:
    """Scores the replies of a conversation as they are shown. Runs on the event loop."""

    def __init__(
        self,
        conversation: "Conversation",
        screen: Screen[None],
        widgets: Display,
    ) -> None:
        self._conversation = conversation
        self._screen = screen
        self._widgets = widgets
        self._request: _Request | None = None
        """The newest, until it is answered."""
        self._name = ""
        self._scorer: ReplyScorer | None = None
        """The scorer of the previous name; None if that is "", or could not be loaded."""
        self._scores: dict[_Key, float | str] = {}
        self._wanted: dict[_Key, StoredMessage] = {}
        self._is_scoring = False
        self.changed = Signal[None](screen, "scores changed")
        widgets.transcript.score_words = self.words

    # The reward model

    def use(self, name: str) -> None:
        """Score replies with a reward model, as soon as it is loaded, or with "" not at all."""
        if name:
            # The chat may be opened again from another folder.
            path = os.path.abspath(os.path.expanduser(name))
            self._load(_Request(path if os.path.isdir(path) else name, follows=False))
            self._widgets.inform("Loading the reward model …")
        else:
            self._request = None
            self._change("", None)
            self._keep("Replies are not scored any more.")

    def follow(self, *, is_other: bool) -> None:
        """Score the replies of the opened chat with its own reward model.

        is_other: whether it is another chat, which keeps nothing of the previous one.
        """
        self._wanted.clear()
        name, request = self._conversation.chat.reward, self._request
        if name != self._name:
            self._change(name, None)
        elif not is_other or (request is not None and request.follows):
            return  # the running request is for this chat as well
        is_missing = bool(name) and self._scorer is None
        self._request = _Request(name, follows=True) if is_missing else None
        self.go_on()

    def _load(self, request: _Request) -> None:
        self._request = request
        request.has_begun = True

        def run() -> None:
            from chatapp.dialogue.reply_scores import ReplyScorer

            loaded: ReplyScorer | str
            try:
                loaded = ReplyScorer.load(request.name)
            except BaseException as error:  # a broken installation fails in its own ways
                loaded = in_words(error)
            self._screen.call_later(self._take_model, request, loaded)

        self._conversation.start_thread(run, "loading the reward model")

    def _take_model(self, request: _Request, loaded: "ReplyScorer | str") -> None:
        if request is not self._request:
            return  # another one has been requested since
        self._request = None
        if isinstance(loaded, str):
            words = "This chat's replies are not scored" if request.follows else "/reward"
            self._widgets.show_problem(f"{words}: {loaded}")
            return
        self._change(request.name, loaded)
        if not request.follows:
            self._keep(f"Replies are scored by {request.name}.")

    def renew(self) -> None:
        """Score all replies again, because the chat's instructions have changed."""
        self._change(self._name, self._scorer)

    def _change(self, name: str, scorer: "ReplyScorer | None") -> None:
        self._name, self._scorer = name, scorer
        self._scores = {}  # a new object, by which a running scoring sees that it is late
        self._wanted.clear()
        self._show()

    def _keep(self, words: str) -> None:
        """Store the chat's reward model, and confirm that."""
        with self._widgets.store_errors():
            self._conversation.chat.use_reward(self._name)
        self._widgets.inform(words)

    # Scores

    def score(self, reply: "StoredMessage") -> float | None:
        """A reply's score; None if there is none yet, and then it is requested."""
        known = self._known(reply)
        return known if isinstance(known, float) else None

    def words(self, reply: "StoredMessage") -> str:
        """A reply's score in words, or why it has none; "" while it is only requested."""
        known = self._known(reply)
        if known is None:
            return ""
        return f"score {known:.2f}" if isinstance(known, float) else f"not scored: {known}"

    def _known(self, reply: "StoredMessage") -> float | str | None:
        if self._scorer is None:
            return None
        from chatapp.dialogue.reply_scores import can_be_scored  # the first frame does not need it

        key = reply.id, reply.text
        if key not in self._scores and can_be_scored(reply):
            self._wanted[key] = reply
            self._screen.call_later(
                self.go_on
            )  # when the others on the screen are requested as well
        return self._scores.get(key)

    def go_on(self) -> None:
        """Continue with the work that waited for the chat's model, or for the end of a turn."""
        conversation, request = self._conversation, self._request
        if request is not None and not request.has_begun and conversation.model is not None:
            self._load(request)
        if conversation.turn is None and not self._is_scoring and self._wanted:
            self._score_next()

    def _score_next(self) -> None:
        """Score the last request first: that is the visible one."""
        scorer, scores = self._scorer, self._scores
        store = self._conversation.chat.store
        assert scorer is not None
        key, reply = self._wanted.popitem()
        self._is_scoring = True

        def run() -> None:
            from chatapp.dialogue.reply_scores import stored_score

            score: float | str
            try:
                score = stored_score(scorer, store, reply)
            except BaseException as error:  # a template may fail in its own ways
                score = in_words(error)
            self._screen.call_later(self._take_score, scores, key, score)

        self._conversation.start_thread(run, "scoring replies")

    def _take_score(self, scores: dict[_Key, float | str], key: _Key, score: float | str) -> None:
        self._is_scoring = False
        if scores is self._scores:
            scores[key] = score
            self._wanted.pop(key, None)
            self._show(key[0])
        self.go_on()

    def _show(self, message_id: int | None = None) -> None:
        """Show the known scores of a reply, or of all."""
        transcript = self._widgets.transcript
        for view in transcript.views:
            if message_id in (None, view.message.id):
                transcript.refresh_message(view.message)
        self.changed.publish(None)
