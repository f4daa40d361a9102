"""The open chat: which one, sending, unsent text, its replies on the screen, and its model,
template and precision.

Invariant: a text that the user has sent is in the chat, being sent, or back in the prompt. The
screen shows the path to the chat's leaf in the store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.timer import Timer

from chatapp.common.paths import drafts_dir
from chatapp.dialogue.drafts import Drafts
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Basis
from chatapp.tui.conversation.model_loading import LoadFailed, LoadRequest, ModelLoaded
from chatapp.tui.conversation.turn import ReplyTurn, Start
from chatapp.tui.platform import runtime
from chatapp.tui.platform.actions import shown_key
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.screens.library import persona_of
from chatapp.tui.screens.parameters import Parameters
from chatapp.tui.widgets.approval import ToolQuestion
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.status import ASKING, RUNNING_TOOL

if TYPE_CHECKING:
    from chatapp.dialogue.chat import Decision
    from chatapp.dialogue.events import Started
    from chatapp.engine.events import Finished
    from chatapp.engine.model import LanguageModel
    from chatapp.engine.models.catalogue import ListedModel
    from chatapp.prompting.messages import Call
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.conversation.turn import ShownReply
    from chatapp.tui.events import Submitted
    from chatapp.tui.screens.history import ChatChoice
    from chatapp.tui.screens.library import PromptChoice


class ModelSwitch:
    """Loads the models of a conversation."""

    def __init__(self, conversation: "Conversation", widgets: "ChatWidgets") -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._names: list[str] | None = None
        self._followed = ""

    def load(self) -> None:
        """Load the chat's model, or try again."""
        self._widgets.status.state = "loading"
        self._conversation.load()

    def load_other(self, name: str, precision: str = "", *, follows: bool = False) -> None:
        """Load another model and use it afterwards.

        precision: another than now. follows: whether the model belongs to a chat that was opened.
        """
        precision = precision or self._conversation.precision
        device, say = self._conversation.device, self._widgets.inform

        def load() -> "LanguageModel":
            from chatapp.engine.models.loading import load_model

            return load_model(name, precision=precision, device=device, say=say)

        self._widgets.status.state = "loading"
        self._widgets.status.model = name
        self._followed = name if follows else ""
        self._conversation.load_other(LoadRequest(load, precision))

    def follow(self, name: str) -> None:
        """Use the model of a chat, if it is another one.

        Only after the first model is loaded, because that is the one that the program was started
        for.
        """
        is_here = name in ("", self._widgets.status.model)
        if not is_here and self._conversation.model is not None:
            self.load_other(name, follows=True)

    def take(self, event: ModelLoaded | LoadFailed) -> str:
        """Use a loaded model, or after a failure the previous one.

        event: the answer to the newest request. Returns the reason of a failure; "" for success.
        """
        if isinstance(event, ModelLoaded):
            from chatapp.engine.files.model_files import read_generation_config

            runtime.mark("model_ready")
            is_switch = self._conversation.model is not None
            try:
                self._conversation.attach(event.request, event.model)
            except (ValueError, StoreError) as error:
                return self._recover(in_words(error))
            runtime.settle(is_switch=is_switch)
            self.show()
            if (remote := self._conversation.remote()) is not None and remote.remark:
                self._widgets.inform(remote.remark)
            for sentence in read_generation_config(event.model.files).ignored:
                self._widgets.inform(sentence)
            return ""
        self._conversation.loading = None
        return self._recover(event.reason)

    def _recover(self, reason: str) -> str:
        """Return to the previous model; return a sentence on that."""
        words = f"The model could not be loaded: {reason}"
        if self._followed:
            words = f"This chat used {self._followed}, which cannot be loaded: {reason}"
        self._widgets.status.state = "no model"
        if self._conversation.recover():
            self.show()
            return words
        key = shown_key(self._widgets.status.app, "models")
        return f"{words}\n{key} chooses another one; the next message tries this one again."

    def show(self) -> None:
        """Show the chat's model and template."""
        session, status = self._conversation.session, self._widgets.status
        if session is None:
            return
        status.state = "ready"
        status.model = session.model.name
        status.limit = session.model.context
        status.template, status.is_prompt_file = session.layout, bool(session.chat.basis.prompt)
        status.persona = persona_of(session.chat.basis.system)
        status.changes = session.chat.interventions.words
        remote = self._conversation.remote()
        status.is_estimate = remote is not None and remote.estimates_tokens
        self._conversation.measure()

    def names(self) -> list[str]:
        """The names of the known models."""
        if self._names is None:
            self._names = []
            self._conversation.find_models()
        return self._names

    def set_known(self, models: "Sequence[ListedModel]") -> None:
        """Store the list of known models."""
        self._names = [model.name for model in models]
        self._widgets.prompt.suggest_again()

    def parameters(self) -> Parameters:
        """The parameters of the next reply."""
        session, choices = self._conversation.session, self._conversation.choices
        template = session.template.name if session is not None else ""
        precision = self._conversation.precision
        return Parameters(choices.sampling, template, precision, choices.origins)

    def use(self, now: Parameters, new: Parameters, for_all: bool) -> None:
        """Use other parameters than `now`.

        for_all: the sampling in all chats. Raises ValueError or SettingsError with a sentence.
        """
        if (new.template, new.precision) != (now.template, now.precision):
            self._use_other(now, new)
        self._conversation.set_sampling(new.sampling, for_all=for_all)
        where = "All chats use" if for_all else "The next message uses"
        self._widgets.inform(f"{where} the new sampling settings.")

    def _use_other(self, now: Parameters, new: Parameters) -> None:
        """Change the template or precision. Raises ValueError with a sentence."""
        model = self._conversation.model
        if model is None or self._conversation.loading is not None:
            raise ValueError("the model is still loading; template and precision can be set later")
        if self._conversation.turn is not None:
            raise ValueError("a reply is being written; Esc stops it")
        if new.template != now.template:
            self._conversation.use_template(new.template)
            self.show()
        if new.precision != now.precision:
            self.load_other(model.name, new.precision)


_TRY_EVERY_SECONDS = 2.0
"""Interval at which a reply that did not fit on the disk is stored again."""

_DELETED = (
    "This chat was deleted in another window. What is on the screen is now saved as a new chat."
)


class ChatControls:
    """The user's actions on a chat: open, send, stop.

    Keys, slash commands and screens over the chat all use it.
    """

    def __init__(self, conversation: "Conversation", widgets: "ChatWidgets") -> None:
        self.conversation = conversation
        self.widgets = widgets
        self.models = ModelSwitch(conversation, widgets)
        self._storing: Timer | None = None
        self._queue: list[Submitted] = []
        """Messages that are sent after the current reply."""
        self._drafts = Drafts(drafts_dir() if conversation.chat.store.is_kept else None)

    @property
    def screen(self) -> Screen[Any]:
        """The chat screen, whose actions commands run as well."""
        return self.widgets.prompt.screen

    # Which chat

    async def open(self, chat_id: int | None) -> None:
        """Open a chat, or with None a new one."""
        if (turn := self.conversation.turn) is not None and not turn.has_begun:
            await self.refuse("")
        widgets, conversation = self.widgets, self.conversation
        with widgets.store_errors():
            if chat_id != conversation.chat.id:
                self._empty_queue()
            is_other = chat_id is not None and chat_id != conversation.chat.id
            turn = conversation.turn
            conversation.open(chat_id)
            if turn is not None:
                turn.leave(partial(self._give_back, turn.submitted))
            chat = conversation.chat
            widgets.withdraw_question()
            widgets.transcript.live = None
            self.show_feedback()
            widgets.transcript.show_markdown(chat.markdown)
            await widgets.transcript.show(chat.messages, chat.finish_reasons())
            widgets.show_welcome(not chat.messages)
            widgets.show_problem("")
            widgets.status.used = widgets.status.dropped = 0
            widgets.status.speed = 0.0
            self.models.show()
            widgets.prompt.focus()
            widgets.show_title()
            widgets.look_again()
            if is_other and chat_id is not None:
                self.models.follow(chat.store.chat(chat_id).model)

    async def open_at(self, message_id: int) -> None:
        """Show the branch of a message, and the message."""
        with self.widgets.store_errors():
            store = self.conversation.chat.store
            message = store.message(message_id)
            if message_id not in [above.id for above in store.path(message.chat_id)]:
                store.set_leaf(message.chat_id, store.latest_leaf(message_id))
            await self.open(message.chat_id)
            await self.widgets.transcript.reveal(message_id)

    async def fork(self, message_id: int | None) -> None:
        """Go on in a new chat with the messages up to one, or with all of the open path."""
        if self.is_busy():
            return
        with self.widgets.store_errors():
            chat = self.conversation.chat
            if (forked := chat.fork(message_id)) is None:
                self.widgets.inform("There is no message yet.")
                return
            await self.open(forked)
            self.widgets.inform("This is a new chat with the same messages.")

    async def open_chosen(self, choice: "ChatChoice") -> None:
        """Open a chat chosen from a list, at the search result in it."""
        if choice.message_id is None:
            await self.open(choice.chat_id)
        else:
            await self.open_at(choice.message_id)

    def show_changes(self) -> str:
        """Show what is changed inside the model, in the status line and the open inspector."""
        words = self.conversation.chat.interventions.words
        self.widgets.status.changes = words
        self.widgets.look_again()
        return words

    async def leave_deleted(self) -> None:
        """Begin a new chat when the open one has been deleted."""
        with self.widgets.store_errors():
            if self.conversation.chat.is_deleted():
                await self.open(None)
        self.widgets.show_title()

    async def _go_on_anew(self) -> None:
        """Continue in a new chat when the open one has been deleted in another window."""
        prompt, chat = self.widgets.prompt, self.conversation.chat
        session = self.conversation.session
        with self.widgets.store_errors():
            if session is not None and chat.is_deleted():
                await self.open(chat.store_anew(session.template.name, session.model.name))
                text = prompt.text
                prompt.leave_edit()
                prompt.give_back(text)
                self.widgets.show_problem(_DELETED)

    def use_prompt(self, choice: "PromptChoice") -> None:
        """Use a persona or a prompt file, or neither."""
        if self.is_busy():
            return
        with self.widgets.store_errors():
            self.conversation.use_basis(choice.basis)
            self.widgets.show_problem("")
            self.models.show()
            self.widgets.look_again()
            kind = "prompt file" if choice.basis.prompt else "persona"
            is_none = choice.basis == Basis()
            used = "no prompt file or persona" if is_none else f"{kind} {choice.name}"
            self.widgets.inform(f"The next message uses {used}.")

    def show_feedback(self) -> None:
        """Show the user's feedback on the chat's replies."""
        chat = self.conversation.chat
        with self.widgets.store_errors():
            feedback = {} if chat.id is None else chat.store.feedback(chat.id)
            self.widgets.transcript.show_feedback(feedback)

    # Turns

    async def send(self, submitted: "Submitted") -> None:
        """Send a message, or an edited version of an earlier one."""
        editing = submitted.editing
        if self.conversation.turn is not None and editing is None:
            self._queue.append(submitted)
            self._show_queue()
            return
        if self.is_busy():
            self.widgets.prompt.give_back(submitted.text, editing)
            return
        text = submitted.text + submitted.contents
        self.widgets.show_problem("")
        self.widgets.show_welcome(False)
        ready = self.conversation.session is not None
        note = "" if ready else "waiting for the model to be loaded"
        await self.widgets.transcript.wait(text, note)
        if editing is None:
            self._begin(lambda session, cancel: [session.say(text, cancel)], submitted)
        else:
            id = editing.id
            self._begin(lambda session, cancel: [session.edit(id, text, cancel)], submitted)
        self.keep_draft()  # until it is stored

    def begin(self, start: Start) -> None:
        """Begin a turn for an existing message."""
        if self.conversation.session is None:
            self.widgets.inform("The model is not loaded yet.")
        elif not self.is_busy():
            self.widgets.show_problem("")
            self._begin(start)

    def _begin(self, start: Start, submitted: "Submitted | None" = None) -> None:
        display = ReplyDisplay(self.conversation, self.widgets, submitted, self._turn_changed)
        self.conversation.turn = ReplyTurn(start, [display], submitted)
        self.begin_waiting()
        if self.conversation.session is None and self.conversation.loading is None:
            self.models.load()

    def begin_waiting(self) -> None:
        """Begin the turn that waits for the model, if there is one."""
        turn = self.conversation.turn
        if turn is not None and not turn.has_begun and self.conversation.begin(turn):
            self.widgets.status.state = "thinking"
            self.widgets.status.speed = 0.0

    def is_busy(self) -> bool:
        """Whether a turn is running; if so, the user is told."""
        turn = self.conversation.turn
        if turn is None:
            return False
        busy = (
            "A reply is being written." if turn.has_begun else "A message is waiting for the model."
        )
        self.widgets.inform(f"{busy} Esc stops it.")
        return True

    async def stop(self) -> bool:
        """Stop the running turn, or cancel the waiting one; False when there is none."""
        turn = self.conversation.turn
        if turn is None:
            return False
        if turn.has_begun:
            turn.cancel.set()
        else:
            await self.refuse("")
        return True

    async def refuse(self, reason: str) -> None:
        """Explain why a turn is impossible, and give its text back."""
        turn = self.conversation.end()
        self._empty_queue()
        await self.widgets.take_back(turn.submitted if turn is not None else None, reason)

    def _give_back(self, submitted: "Submitted | None", reason: str) -> None:
        """Give back the user's text of a failed turn that is no longer shown."""
        if submitted is not None:
            self.widgets.prompt.give_back(submitted.text)
            self.widgets.show_problem(reason, submitted.text)

    # Messages that wait for the current reply

    def _show_queue(self) -> None:
        self.widgets.queued.show([submitted.text for submitted in self._queue])
        self.keep_draft()

    def take_last_queued(self) -> bool:
        """Put the last queued message back into the prompt; False when there is none."""
        if not self._queue:
            return False
        self.widgets.prompt.give_back(self._queue.pop().text)
        self._show_queue()
        return True

    def _empty_queue(self) -> None:
        """Put all queued messages back into the prompt."""
        while self.take_last_queued():
            pass

    async def _turn_changed(self, *, has_ended: bool, goes_on: bool = False) -> None:
        self.keep_draft()
        if not has_ended:
            return
        self.widgets.withdraw_question()
        if self.conversation.has_rest and self._storing is None:
            store_rest = self._store_rest
            self._storing = self.widgets.status.set_interval(_TRY_EVERY_SECONDS, store_rest)
        await self._go_on_anew()
        if self._queue and goes_on:
            submitted = self._queue.pop(0)
            self._show_queue()
            await self.send(submitted)
        else:
            self._empty_queue()

    async def _store_rest(self) -> None:
        """Store replies that did not fit on the disk before."""
        with suppress(StoreError):
            await asyncio.to_thread(self.conversation.store_rest)
            if self._storing is not None:
                self._storing.stop()
                self._storing = None
                self.widgets.show_problem("")
                self.widgets.inform("There is disk space again: the reply is saved.")

    # Text that is not stored yet

    def restore_draft(self) -> None:
        """Put the draft of the last run back into the prompt."""
        if left := self._drafts.take_left():
            self.widgets.prompt.give_back(left)

    def keep_draft(self) -> None:
        """Store the text that would be lost if the program ended now."""
        queued = [submitted.text for submitted in self._queue]
        texts = [self.conversation.unsent, *queued, self.widgets.prompt.text]
        self._drafts.keep("\n".join(text for text in texts if text))

    def finish_draft(self, patience: float) -> None:
        """Wait until that text is stored, at most this many seconds."""
        self._drafts.finish(patience)

    # Tools that need permission

    def ask(self, question: ToolQuestion) -> None:
        """Ask whether a tool may run, unless its turn is over."""
        if self.conversation.turn is None:
            question.answer("no")
        else:
            self.widgets.approval.ask(question)
            self.widgets.status.state = ASKING

    def answer(self, question: ToolQuestion, decision: "Decision") -> None:
        """Answer a turn's question, and return the focus."""
        self.widgets.prompt.focus()
        self.widgets.status.state = RUNNING_TOOL
        question.answer(decision)


class ReplyDisplay:
    """Shows one reply in the transcript and in the status line.

    submitted: goes back into the prompt if the reply is refused. on_change: called when the reply
    is stored, and at its end; goes_on: whether the next message may be sent.
    """

    def __init__(
        self,
        conversation: "Conversation",
        widgets: "ChatWidgets",
        submitted: "Submitted | None",
        on_change: Callable[..., Awaitable[None]],
    ) -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._submitted = submitted
        self._on_change = on_change
        self._started: Started | None = None
        self._view: MessageView | None = None

    async def begin(self, started: "Started") -> None:
        transcript, status = self._widgets.transcript, self._widgets.status
        self._started = started
        new = [message for message in (started.user_message, started.message) if message]
        ids = [message.id for message in transcript.path]
        above = new[0].parent_id
        kept = 0 if above is None else ids.index(above) + 1
        transcript.live = started.message.id
        was_on_message = isinstance(transcript.screen.focused, MessageView)
        await transcript.show([*transcript.path[:kept], *new])
        self._view = transcript.view(started.message.id)
        if was_on_message and self._view is not None:
            self._view.focus(scroll_visible=False)  # a second r generates another reply
        status.used, status.dropped = started.prompt_tokens, started.dropped
        self._widgets.show_title()
        await self._on_change(has_ended=False)

    def go_on(self, reply: "ShownReply", text: str, thought: str) -> None:
        status, view, started = self._widgets.status, self._view, self._started
        if view is None or started is None:
            return
        if text:
            if status.state == "thinking":
                status.state = "streaming"
                view.call_after_refresh(runtime.mark, "first_token")
            view.append(text)
        if reply.thought_tokens:
            view.think(thought, started.message.thought_tokens + reply.thought_tokens)
        status.used = started.prompt_tokens + reply.tokens
        status.speed = reply.tokens_per_second

    def show_call(self, call: "Call", *, has_ended: bool) -> None:
        if self._view is None:
            return
        self._view.show_call(call, has_ended=has_ended)
        self._widgets.status.state = "thinking" if has_ended else RUNNING_TOOL

    async def end(self, finished: "Finished") -> None:
        status = self._widgets.status
        self._show_stored(finished.reason)
        status.speed = finished.tokens_per_second
        status.state = {"cancelled": "stopped", "error": "error"}.get(finished.reason, "ready")
        if finished.reason == "error":
            self._widgets.show_problem(f"The model failed: {finished.message}")
        await self._on_change(has_ended=True, goes_on=finished.reason not in ("cancelled", "error"))

    async def fail(self, reason: str) -> None:
        if self._started is not None:  # it failed half-way
            self._show_stored("error")
            self._widgets.show_problem(reason)
        else:
            if self._submitted is not None:
                key = shown_key(self._widgets.prompt.app, "interrupt")
                reason += f"\n{key} empties the prompt."
            await self._widgets.take_back(self._submitted, reason)
        self._widgets.status.state = "error"
        await self._on_change(has_ended=True)

    def _show_stored(self, reason: str) -> None:
        """Show the complete stored reply."""
        transcript = self._widgets.transcript
        live, transcript.live = transcript.live, None
        with self._widgets.store_errors():
            if live is not None:
                transcript.refresh_message(self._conversation.chat.message(live), reason)
        self._conversation.measure()
        self._widgets.look_again()
