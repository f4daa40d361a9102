"""The chat itself: messages, prompt, status line, and what every key does.

The one invariant: widgets change only here and in the widgets themselves, on the event
loop; what a thread has to say comes as an event, and streamed text through the timer.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.events import Paste
from textual.screen import Screen
from textual.widgets import OptionList, Static, TextArea

from chatapp.dialogue.store import Basis, StoreError
from chatapp.foreign import printable
from chatapp.paths import presets_path
from chatapp.tui import events, timings
from chatapp.tui.branches import BranchScreen
from chatapp.tui.comparing import CompareScreen
from chatapp.tui.completions import Completions
from chatapp.tui.conversation import Conversation, Order, in_words
from chatapp.tui.help import HelpScreen
from chatapp.tui.history import ChatList, HistoryScreen
from chatapp.tui.inspector import Inspector
from chatapp.tui.inspector_look import Target
from chatapp.tui.inspector_step import StepView
from chatapp.tui.inspector_tokens import TokenText
from chatapp.tui.inspector_views import AttentionView, Branch, HeatMap
from chatapp.tui.keybar import KeyBar
from chatapp.tui.keymap import shown_key
from chatapp.tui.library import Choice, LibraryScreen
from chatapp.tui.message import MessageView
from chatapp.tui.models import ModelScreen
from chatapp.tui.parameters import Parameters, ParametersScreen
from chatapp.tui.prompt import Prompt
from chatapp.tui.ranking import RankScreen
from chatapp.tui.slash import SlashCommands, SlashError, is_command
from chatapp.tui.status import StatusLine
from chatapp.tui.transcript import Transcript
from chatapp.tui.welcome import QUESTION, Welcome

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store, StoredMessage
    from chatapp.engine.model import LanguageModel
    from chatapp.settings import Settings

UPDATES_PER_SECOND = 15


class ChatScreen(Screen[None]):
    """One chat with one model."""

    BINDING_GROUP_TITLE = "Chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop the reply; go to the prompt", show=False, id="stop"),
        Binding("ctrl+n", "new_chat", "New", tooltip="Start a new chat", id="new_chat"),
        Binding(
            "ctrl+o", "history", "Chats", tooltip="List, search, open and tidy up chats", id="chats"
        ),
        Binding("ctrl+b", "branches", "All branches of this chat", show=False, id="branches"),
        Binding(
            "f2",
            "parameters",
            "Parameters",
            tooltip="Change how replies are drawn",
            id="parameters",
        ),
        Binding(
            "f3",
            "inspect",
            "Inspect",
            tooltip="Look into the model, also at a draft",
            id="inspect",
        ),
        Binding("f8", "models", "List models; go on with another one", show=False, id="models"),
        Binding(
            "f4", "compare", "Two replies to one message, side by side", show=False, id="compare"
        ),
        Binding(
            "f5",
            "prompts",
            "Hold the chat with a persona or a prompt file",
            show=False,
            id="prompts",
        ),
        Binding("f1", "help", "Help", tooltip="Show all keys", id="help"),
    ]

    def __init__(
        self,
        settings: "Settings",
        store: "Store",
        load: "Callable[[], LanguageModel]",
        chat_id: int | None,
    ) -> None:
        super().__init__()
        self._store = self.store = store
        self._model_name = settings.model
        self._commands = SlashCommands(self)
        self._models: list[str] | None = None
        self._first_chat = chat_id
        self.conversation = Conversation(settings, store, load, self)
        self._streaming: MessageView | None = None
        self._prompt_tokens = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="bar"):
            yield Static(id="title", markup=False)
        yield Welcome()
        yield Transcript()
        with Vertical(id="desk"):
            yield Static(id="problem", markup=False)
            yield Completions()
            yield Prompt(self._earlier_inputs, self._commands.arguments)
            yield StatusLine()
            yield KeyBar(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        self._transcript = self.query_one(Transcript)
        self._prompt = self.query_one(Prompt)
        self._status = self.query_one(StatusLine)
        self._status.model = self._model_name
        self._timer = self.set_interval(1 / UPDATES_PER_SECOND, self._flush, pause=True)
        self._prompt.focus()
        await self._open(self._first_chat)
        self.call_after_refresh(self._after_first_frame)

    def _after_first_frame(self) -> None:
        timings.mark("first_frame")
        self.post_message(events.Shown())
        self._load()

    # The model

    def _load(self) -> None:
        self._status.state = "loading"
        self.conversation.load()

    @on(events.ModelLoaded)
    def _model_loaded(self, event: events.ModelLoaded) -> None:
        timings.mark("model_ready")
        # What has been imported by now stays for good. Python's collector would look through
        # all of it again and again, and the screen would stand still for that long.
        gc.freeze()
        try:
            self.conversation.attach(event.model)
        except (ValueError, StoreError) as error:
            self.post_message(events.LoadFailed(in_words(error)))
            return
        self._model_name = event.model.name
        self.show_model()
        if (remote := self.conversation.remote) is not None and remote.remark:
            self.inform(remote.remark)
        if self.conversation.order is not None:
            self._begin(self.conversation.order)

    def show_model(self) -> None:
        """Show what the chat is held with."""
        session = self.conversation.session
        if session is None:
            return
        self._status.state = "ready"
        self._status.model = session.model.name
        self._status.limit = session.model.context
        self._status.template = session.layout
        self._status.is_estimate = self.conversation.remote is not None
        self.conversation.measure()

    def models(self) -> list[str]:
        """The names of the models there are, as far as they have been found."""
        if self._models is None:
            self._models = []
            self.conversation.find_models()
        return self._models

    @on(events.ModelsFound)
    def _models_found(self, event: events.ModelsFound) -> None:
        self._models = [found.name for found in event.models]
        self._prompt.suggest_again()

    def load_other(self, name: str, precision: str = "") -> None:
        """Go on with another model, when it is loaded; precision: another than now."""
        precision = precision or self.conversation.precision
        device = self.conversation.device

        def load() -> "LanguageModel":
            from chatapp.engine.load import load_model

            return load_model(name, precision=precision, device=device)

        self._status.state = "loading"
        self._status.model = name
        self.conversation.load_other(load, precision)

    @on(events.LoadFailed)
    async def _load_failed(self, event: events.LoadFailed) -> None:
        self.conversation.loading = False
        self._status.state = "no model"
        words = f"The model could not be loaded: {event.reason}"
        if self.conversation.recover():
            self.show_model()
        else:
            key = shown_key(self.app, "models", "F8")
            words += f"\n{key} chooses another one; the next message tries this one again."
        await self._refuse(words)

    # A turn

    @on(events.Submitted)
    async def _submitted(self, event: events.Submitted) -> None:
        text, editing = event.text, event.editing
        if editing is not None and editing.role == "assistant":
            self._keep_correction(editing, text)
            return
        if editing is None and is_command(text):
            await self._run_command(text)
            return
        if self._is_busy():
            self._prompt.give_back(text, editing)
            return
        if editing is None:
            order = Order(lambda session, cancel: session.say(text, cancel), event)
        else:
            order = Order(lambda session, cancel: session.edit(editing.id, text, cancel), event)
        self._tell("")
        self._show_welcome(False)
        ready = self.conversation.session is not None
        await self._transcript.wait(text, "" if ready else "waiting for the model to be loaded")
        self._begin(order)

    async def _run_command(self, text: str) -> None:
        self._tell("")
        try:
            await self._commands.run(text)
        except (SlashError, StoreError) as error:
            self._prompt.give_back(text)
            self._tell(str(error))

    def write_instead(self, text: str) -> None:
        """Put a text into the prompt, to be changed and sent."""
        self._prompt.give_back(text)

    def inform(self, words: str) -> None:
        """Say in passing what has been done."""
        self.notify(printable(words), markup=False)

    @on(events.Suggested)
    def _suggested(self, event: events.Suggested) -> None:
        self.query_one(Completions).show(event.text, event.completions)

    def _begin(self, order: Order) -> None:
        if self.conversation.begin(order):
            self._status.state = "thinking"
            self._status.speed = 0.0
            self._timer.resume()
        elif not self.conversation.loading:
            self._load()

    @on(events.TurnStarted)
    async def _turn_started(self, event: events.TurnStarted) -> None:
        if event.turn is not self.conversation.turn:
            return
        started = event.started
        new = [message for message in (started.user_message, started.message) if message]
        path = self._transcript.path
        ids = [message.id for message in path]
        above = new[0].parent_id
        kept = 0 if above is None else ids.index(above) + 1
        self._transcript.live = started.message.id
        await self._transcript.show([*path[:kept], *new])
        self._streaming = self._transcript.view(started.message.id)
        self._prompt_tokens = self._status.used = started.prompt_tokens
        self._status.dropped = started.dropped
        if not path:
            self._keep_markdown()
        self.show_title()

    def show_markdown(self, markdown: bool) -> None:
        """Show the chat's replies as Markdown or as they are written, now and when reopened."""
        self._transcript.show_markdown(markdown)
        self._keep_markdown()

    def _keep_markdown(self) -> None:
        chat_id = self.conversation.chat_id
        if chat_id is not None:
            with self._store_errors():
                self._store.set_markdown(chat_id, self._transcript.markdown)

    def _flush(self) -> None:
        """Bring what the turn has generated to the screen."""
        turn = self.conversation.turn
        if turn is None or self._streaming is None:
            return
        if text := turn.take():
            if self._status.state == "thinking":
                self._status.state = "streaming"
                self.call_after_refresh(timings.mark, "first_token")
            self._streaming.append(text)
        self._status.used = self._prompt_tokens + turn.tokens
        self._status.speed = turn.tokens_per_second

    @on(events.TurnEnded)
    def _turn_ended(self, event: events.TurnEnded) -> None:
        if event.turn is not self.conversation.turn:
            return
        finished = event.finished
        self._close_turn(finished.reason)
        self._status.speed = finished.tokens_per_second
        self._status.state = {"cancelled": "stopped", "error": "error"}.get(
            finished.reason, "ready"
        )
        if finished.reason == "error":
            self._tell(f"The model failed: {finished.message}")
        elif finished.message:
            self.inform(finished.message)

    @on(events.TurnFailed)
    async def _turn_failed(self, event: events.TurnFailed) -> None:
        reason, submitted = in_words(event.error), event.turn.submitted
        if event.turn is not self.conversation.turn:  # left behind, but its text is not lost
            if event.turn.reply is None and submitted is not None:
                self._prompt.give_back(submitted.text)
                self._tell(reason)
            return
        if self._transcript.live is not None:  # it broke down half-way
            self._close_turn("error")
            self._tell(reason)
        else:
            await self._refuse(reason)
        self._status.state = "error"

    def _close_turn(self, reason: str) -> None:
        """Show what the store has kept of the reply, and be ready for the next."""
        self._flush()
        self._timer.pause()
        live, self._transcript.live, self._streaming = self._transcript.live, None, None
        self.conversation.end()
        with self._store_errors():
            if live is not None:
                self._transcript.refresh_message(self._store.message(live), reason)
        self.conversation.measure()
        self._look_again()

    async def _refuse(self, reason: str) -> None:
        """Say why an order cannot be carried out, and give its text back."""
        order = self.conversation.end()
        self._timer.pause()
        await self._transcript.stop_waiting()
        self._show_welcome(not self._transcript.path)
        if order is not None and order.submitted is not None:
            self._prompt.give_back(order.submitted.text, order.submitted.editing)
        self._tell(reason)

    @on(events.Measured)
    def _measured(self, event: events.Measured) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            self._status.used, self._status.limit = event.used, event.limit
            self._status.dropped = event.dropped

    @on(events.Unmeasured)
    def _unmeasured(self, event: events.Unmeasured) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            self._tell(f"The chat's prompt file cannot be used: {event.reason}")

    def _is_busy(self) -> bool:
        """Whether an order is under way; then the user is told so."""
        if self.conversation.order is None:
            return False
        waits = self.conversation.turn is None
        words = "A message is waiting for the model." if waits else "A reply is being written."
        self.notify(f"{words} Esc stops it.", markup=False)
        return True

    def on_paste(self, event: Paste) -> None:
        # What is pasted while a message has the focus is meant for the prompt as well, unless
        # the inspector covers it.
        if self._prompt.focusable:
            event.stop()
            self.set_focus(self._prompt)
            self._prompt.post_message(Paste(event.text))

    # Which chat

    async def _open(self, chat_id: int | None) -> None:
        """Show a chat, or with None a new one."""
        if self.conversation.order is not None and self.conversation.turn is None:
            await self._refuse("")  # a message that waits is not lost
        with self._store_errors():
            path, reasons = self.conversation.open(chat_id)
            self._timer.pause()
            self._streaming = self._transcript.live = None
            self._show_feedback()
            markdown = chat_id is not None and self._store.chat(chat_id).markdown
            self._transcript.show_markdown(markdown)
            await self._transcript.show(path, reasons)
            self._show_welcome(not path)
            self._tell("")
            self._status.used = self._status.dropped = 0
            self._status.speed = 0.0
            self.show_model()
            self._prompt.focus()
            self.show_title()
            self._look_again()

    def show_title(self) -> None:
        """Show what the chat is called."""
        with self._store_errors():
            title = printable(self.conversation.title()).replace("\n", " ")
            self.query_one("#title", Static).update(title)

    def _show_welcome(self, empty: bool) -> None:
        self.query_one(Welcome).display = empty
        self._transcript.display = not empty

    def _tell(self, problem: str) -> None:
        """Show what is wrong above the prompt, until the next message is sent."""
        line = self.query_one("#problem", Static)
        line.update(printable(problem))
        line.display = bool(problem)

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Tell what is wrong with the store instead of going down with it."""
        try:
            yield
        except StoreError as error:
            self._tell(str(error))

    def _earlier_inputs(self) -> list[str]:
        try:
            return self.conversation.earlier_inputs()
        except StoreError as error:
            self._tell(str(error))
            return []

    # What the focused message asks for

    @on(events.FocusStep)
    async def _leave_message(self, event: events.FocusStep) -> None:
        if not await self._transcript.focus_step(event.message, event.step) and event.step > 0:
            self._prompt.focus()

    @on(events.Copy)
    def _copy_message(self, event: events.Copy) -> None:
        self.app.copy_to_clipboard(event.message.text)
        self.notify("Copied to the clipboard.", markup=False)

    @on(events.Edit)
    def _edit_message(self, event: events.Edit) -> None:
        message = event.message
        with self._store_errors():
            if message.role == "assistant" and message.parent_id is not None:
                message = self._store.message(message.parent_id)
            self._prompt.edit_message(message, message.text)
            self._prompt.focus()

    @on(events.Judge)
    def _judge_message(self, event: events.Judge) -> None:
        with self._store_errors():
            said = self._store.feedback(event.message.chat_id).get(event.message.id)
            again = said is not None and said.thumb == event.thumb
            self._store.set_thumb(event.message.id, 0 if again else event.thumb)
            self._show_feedback()

    @on(events.Correct)
    def _correct_message(self, event: events.Correct) -> None:
        message = event.message
        with self._store_errors():
            said = self._store.feedback(message.chat_id).get(message.id)
            correction = said.correction if said is not None else None
            self._prompt.edit_message(message, correction or message.text)
            self._prompt.focus()

    def _keep_correction(self, message: "StoredMessage", text: str) -> None:
        """Store what a reply should have been; its own words take a correction back."""
        try:
            reply = self._store.message(message.id)
            self._store.set_correction(reply.id, None if text == reply.text else text)
        except StoreError as error:
            self._prompt.give_back(text, message)
            self._tell(str(error))
        else:
            self._show_feedback()

    @on(events.Rank)
    @work
    async def _rank_replies(self, event: events.Rank) -> None:
        with self._store_errors():
            siblings = self._store.siblings(event.message.id)
            judged = self._store.feedback(event.message.chat_id)
            ranks = {id: said.rank for id, said in judged.items() if said.rank}
            siblings.sort(key=lambda reply: ranks.get(reply.id, len(siblings) + 1))
            ranking = await self.app.push_screen_wait(RankScreen(siblings))
            if ranking is not None:
                self._store.set_ranking(ranking)
                self._show_feedback()

    def _show_feedback(self) -> None:
        with self._store_errors():
            chat_id = self.conversation.chat_id
            self._transcript.show_feedback({} if chat_id is None else self._store.feedback(chat_id))

    @on(events.Regenerate)
    def _regenerate(self, event: events.Regenerate) -> None:
        id = event.message.id
        self._begin_on_message(Order(lambda session, cancel: session.regenerate(id, cancel)))

    @on(events.Continue)
    def _continue(self, event: events.Continue) -> None:
        id = event.message.id
        self._begin_on_message(Order(lambda session, cancel: session.continue_reply(id, cancel)))

    def _begin_on_message(self, order: Order) -> None:
        if self.conversation.session is None:
            self.notify("The model is not loaded yet.", markup=False)
        elif not self._is_busy():
            self._tell("")
            self._prompt.focus()
            self._begin(order)

    @on(events.ShowSibling)
    async def _show_sibling(self, event: events.ShowSibling) -> None:
        if self._is_busy():
            return
        writing = self.focused is self._prompt
        with self._store_errors():
            sibling = self.conversation.go_to_sibling(event.message, event.step)
            if sibling is not None:
                await self._open(sibling.chat_id)
                view = self._transcript.view(sibling.id)
                if view is not None and not writing:
                    view.focus()

    @on(events.ShowVersion)
    async def _show_version(self, event: events.ShowVersion) -> None:
        if self._transcript.path and (last := self._transcript.path[-1]).siblings > 1:
            await self._show_sibling(events.ShowSibling(last, event.step))

    # The inspector

    async def action_inspect(self) -> None:
        """Look at what has the focus, or the last message; with the keys itself, it closes."""
        if inspectors := list(self.query(Inspector)):
            if inspectors[0].has_focus_within:
                await self._close_inspector()
            else:
                inspectors[0].look_at(self._target())
                inspectors[0].focus_view()
        elif self.conversation.session is None:
            self.notify("The model is not loaded yet.", markup=False)
        else:
            await self.mount(Inspector(self.conversation, self._target()))

    def _target(self) -> Target:
        """What the inspector is to look at: what has the focus, a text on the way included."""
        if isinstance(self.focused, MessageView):
            return Target(self.focused.message.id)
        text, editing = self._prompt.text, self._prompt.editing
        is_reply = editing is not None and editing.role == "assistant"
        if not text.strip() or is_reply or (editing is None and is_command(text)):
            return Target()
        return Target(draft=text, instead_of=editing.id if editing is not None else None)

    @on(Inspector.Closed)
    async def _close_inspector(self) -> None:
        await self.query(Inspector).remove()
        self._prompt.focus()

    @on(Branch)
    async def _branch(self, event: Branch) -> None:
        id, begin = event.message_id, event.begin
        if self.query_one(Inspector).is_over:
            await self._close_inspector()
        self._begin_on_message(Order(lambda session, cancel: session.branch(id, begin, cancel)))

    def _look_again(self) -> None:
        for inspector in self.query(Inspector):
            inspector.look_at(Target())

    # Keys

    async def action_stop(self) -> None:
        """Stop what is under way; with nothing under way, go back to the prompt."""
        if self.conversation.turn is not None:
            self.conversation.stop()
        elif self.conversation.order is not None:
            await self._refuse("")
        elif self._prompt.editing is not None:
            self._prompt.leave_edit()
        self._prompt.focus()

    async def action_new_chat(self) -> None:
        await self._open(None)

    @work
    async def action_history(self) -> None:
        chosen = await self.app.push_screen_wait(HistoryScreen(self._store))
        if chosen is None:
            if self.conversation.is_deleted():
                await self._open(None)
            self.show_title()
        elif chosen.message_id is None:
            await self._open(chosen.chat_id)
        else:
            await self._open_at(chosen.message_id)

    async def _open_at(self, message_id: int) -> None:
        """Show the branch of a message, and the message."""
        with self._store_errors():
            message = self._store.message(message_id)
            if message_id not in [above.id for above in self._store.path(message.chat_id)]:
                self._store.set_leaf(message.chat_id, self._store.latest_leaf(message_id))
            await self._open(message.chat_id)
            await self._transcript.reveal(message_id)

    @work
    async def action_branches(self) -> None:
        chat_id = self.conversation.chat_id
        if chat_id is None or self._is_busy():
            return
        chosen = await self.app.push_screen_wait(BranchScreen(self._store, chat_id))
        if chosen is not None:
            await self._open_at(chosen)

    @work
    async def action_models(self) -> None:
        if self._is_busy():
            return
        screen = ModelScreen(self.conversation, self._status.model)
        name = await self.app.push_screen_wait(screen)
        if name is not None and not self._is_busy():
            self._tell("")
            self.load_other(name)

    def action_parameters(self) -> None:
        from chatapp.prompting.template import TEMPLATES

        session, sampling = self.conversation.session, self.conversation.sampling
        template = session.template.name if session is not None else ""
        now = Parameters(sampling, template, self.conversation.precision)

        def use(new: Parameters) -> None:
            if (new.template, new.precision) != (now.template, now.precision):
                self._use_other(new, now)
            self.conversation.sampling = new.sampling
            self.notify("The next message uses the new parameters.", markup=False)

        self.app.push_screen(ParametersScreen(now, use, list(TEMPLATES), presets_path()))

    def _use_other(self, new: Parameters, now: Parameters) -> None:
        """Go over to another template or precision. Raises ValueError in words."""
        model = self.conversation.model
        if model is None or self.conversation.loading:
            raise ValueError("the model is not loaded yet; its template and precision have to wait")
        if self.conversation.order is not None:
            raise ValueError("a reply is being written; Esc stops it")
        if new.template != now.template:
            self.conversation.use_template(new.template)
            self.show_model()
        if new.precision != now.precision:
            self.load_other(model.name, new.precision)

    @work
    async def action_compare(self, change: str = "") -> None:
        """Answer the focused message, or what stands in the prompt, in two ways.

        change: how the right one differs, as `Variant.changed` reads it.
        """
        session = self.conversation.session
        if session is None:
            self.notify("The model is not loaded yet.", markup=False)
            return
        if self._is_busy():
            return
        with self._store_errors():
            message: str | StoredMessage = ""
            if isinstance(self.focused, MessageView):
                message = self.focused.message
                if message.role == "assistant" and message.parent_id is not None:
                    message = self._store.message(message.parent_id)
            elif self._prompt.editing is None:
                message = self._prompt.text
                self._prompt.leave_edit()
            screen = CompareScreen(
                self.conversation, session, self._store, self._earlier_inputs, message, change
            )
            compared = await self.app.push_screen_wait(screen)
            if compared.chat_id is not None:
                if session.chat_id is None and self._transcript.markdown:
                    self._store.set_markdown(compared.chat_id, True)
                await self._open(compared.chat_id)
            elif compared.text:
                self._prompt.give_back(compared.text)

    @work
    async def action_prompts(self) -> None:
        if self._is_busy():
            return
        choice = await self.app.push_screen_wait(
            LibraryScreen(self.conversation, self._target().draft)
        )
        if choice is not None:
            self.hold_with(choice)

    def hold_with(self, choice: Choice) -> None:
        """Hold the chat with a persona or a prompt file, or with neither."""
        if self._is_busy():
            return
        with self._store_errors():
            self.conversation.hold_with(choice.basis)
            self._tell("")
            self.show_model()
            self._look_again()
            how = "is put into the prompt" if choice.basis.prompt else "is answered as"
            words = f"The next message {how} {choice.name}."
            self.inform("The prompt is taken off." if choice.basis == Basis() else words)

    def action_help(self) -> None:
        own: tuple[type[DOMNode], ...] = (
            *(type(self.app), ChatScreen, Prompt, MessageView),
            *(
                HistoryScreen,
                ChatList,
                ModelScreen,
                ParametersScreen,
                RankScreen,
                BranchScreen,
                CompareScreen,
            ),
            *(LibraryScreen, Inspector, TokenText, AttentionView, HeatMap, StepView),
            HelpScreen,
        )
        places = [(place.BINDING_GROUP_TITLE or "", place) for place in own]
        places += [("Moving and copying", Screen), ("Editing text", TextArea)]
        self.app.push_screen(HelpScreen(places))

    def for_palette(self) -> "list[DOMNode]":
        """Those parts that the palette can act upon though they have no focus."""
        messages = [] if isinstance(self.focused, MessageView) else self._transcript.views[-1:]
        return [self._prompt, *messages]

    def action_focus_last_message(self) -> None:
        if views := self._transcript.views:
            views[-1].focus()

    def action_page(self, step: int) -> None:
        scroll = self._transcript.scroll_page_up if step < 0 else self._transcript.scroll_page_down
        scroll(animate=False)

    # What an empty chat suggests

    @on(events.SubmittedNothing)
    def action_ask(self) -> None:
        if self.query_one(Welcome).display:
            self._prompt.focus()
            self.post_message(events.Submitted(QUESTION))

    @on(OptionList.OptionSelected, "Welcome OptionList")
    async def _suggestion_chosen(self, event: OptionList.OptionSelected) -> None:
        await self.run_action(event.option_id or "")
