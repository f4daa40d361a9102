"""The chat screen: which part of it sees to what a key, a widget or a thread asks for.

Keep: widgets change only on the event loop; what a thread has to say comes as an event, and
streamed text through the turn controller.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.screen import Screen
from textual.widgets import OptionList

from chatapp.common.paths import drafts_dir
from chatapp.dialogue.drafts import Drafts
from chatapp.dialogue.store.database import StoreError
from chatapp.tui import events
from chatapp.tui.chat import slash
from chatapp.tui.chat.dialogs import Dialogs
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.inspecting import Inspecting
from chatapp.tui.chat.model_switch import ModelSwitch
from chatapp.tui.chat.navigation import Navigation
from chatapp.tui.chat.parts import FROM as SIDEBAR_FROM
from chatapp.tui.chat.parts import ChatWidgets, Sidebar
from chatapp.tui.chat.slash_actions import Rest, SlashError
from chatapp.tui.chat.turns import ChatTurns
from chatapp.tui.chat.verdicts import Verdicts
from chatapp.tui.conversation.conversation import Conversation, TurnRequest
from chatapp.tui.conversation.loading import LoadFailed, ModelLoaded
from chatapp.tui.conversation.reply_scores import Scoring
from chatapp.tui.conversation.turn import TurnEnded, TurnEvent, TurnFailed
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.view import Branch
from chatapp.tui.platform import programs, runtime
from chatapp.tui.platform.keymap import shown_key
from chatapp.tui.screens.learn import LearnScreen, command
from chatapp.tui.screens.library import PromptChoice
from chatapp.tui.screens.sources import SourceScreen
from chatapp.tui.widgets.approval import Approval, ToolAsks
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.prompt import Prompt
from chatapp.tui.widgets.welcome import QUESTION

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.dialogue.store import Store
    from chatapp.engine.model import LanguageModel


_LEAVE = "exit"
"""What leaves the program, as it does a shell. With a space before it, it is a message."""


class ChatScreen(Screen[None]):
    """One chat with one model."""

    BINDING_GROUP_TITLE = "Chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop the reply; go back to writing", show=False, id="stop"),
        Binding("ctrl+n", "new_chat", "New", tooltip="Start a new chat", id="new_chat"),
        Binding(
            "ctrl+o",
            "history",
            "Chats",
            tooltip="List, search, open and rename chats",
            id="chats",
        ),
        Binding(
            "ctrl+l",
            "sidebar",
            "Show or hide the list of chats",
            show=False,
            id="chat_list",
        ),
        Binding("ctrl+b", "branches", "All branches of this chat", show=False, id="branches"),
        Binding(
            "f2",
            "parameters",
            "Sampling",
            tooltip="Sampling settings: temperature and others",
            id="parameters",
        ),
        Binding(
            "f3",
            "inspect",
            "Inspect",
            tooltip="Look inside the model, also while you write",
            id="inspect",
        ),
        Binding("f8", "models", "List models, and switch to another one", show=False, id="models"),
        Binding("f4", "compare", "Compare two replies to one message", show=False, id="compare"),
        Binding(
            "f5",
            "prompts",
            "Use a persona or a prompt file",
            show=False,
            id="prompts",
        ),
        Binding("f1", "help", "Help", tooltip="Search all keys and commands", id="help"),
    ]

    def __init__(
        self,
        settings: "Settings",
        store: "Store",
        load: "Callable[[], LanguageModel]",
        chat_id: int | None,
    ) -> None:
        super().__init__()
        self.store = store
        self._code_blocks = programs.CodeBlocks()
        self._first_chat = chat_id
        self._first_model = settings.model
        self._wants_sidebar = settings.chat_list == "shown"
        self._stop_command: threading.Event | None = None
        self._drafts = Drafts(drafts_dir() if store.is_kept else None)
        self.conversation = Conversation(settings, store, load, self)
        self.widgets = ChatWidgets(self.conversation, store, self._completions)
        self.models = ModelSwitch(self.conversation, self.widgets)
        self.scoring = Scoring(self.conversation, store, self, self.widgets)
        self.widgets.transcript.score_words = self.scoring.words
        self._inspecting = Inspecting(self.conversation, self, self.widgets)
        self._verdicts = Verdicts(self.conversation, store, self.widgets, self.scoring)
        self.turns = ChatTurns(
            self.conversation, store, self, self.widgets, self.models, self._inspecting
        )
        self.navigation = Navigation(
            self.conversation,
            store,
            self.widgets,
            self.turns,
            self.models,
            self._verdicts,
            self.scoring,
            self._inspecting,
        )
        self._dialogs = Dialogs(
            self.conversation,
            store,
            self.widgets,
            self.turns,
            self.models,
            self.navigation,
            self.scoring,
            self._inspecting,
        )

    def compose(self) -> ComposeResult:
        yield from self.widgets.compose()

    async def on_mount(self) -> None:
        self.widgets.status.model = self._first_model
        self.widgets.status.is_kept = self.store.is_kept
        self.widgets.prompt.focus()
        await self.navigation.open(self._first_chat)
        if left := self._drafts.take_left():
            self.widgets.prompt.give_back(left)
        self.call_after_refresh(self._after_first_frame)

    def _after_first_frame(self) -> None:
        runtime.mark("first_frame")
        self.post_message(events.Shown())
        self.models.load()

    # The model

    @on(ModelLoaded)
    @on(LoadFailed)
    async def _load_ended(self, event: ModelLoaded | LoadFailed) -> None:
        if event.request is not self.conversation.loading:
            return  # another model has been asked for since
        if problem := self.models.take(event):
            await self.turns.refuse(problem)
        else:
            self.turns.begin_waiting()
            self.scoring.go_on()

    @on(events.ModelsFound)
    def _models_found(self, event: events.ModelsFound) -> None:
        self.models.found(event.models)

    @on(events.Measured)
    def _measured(self, event: events.Measured) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            status = self.widgets.status
            status.used, status.limit, status.dropped = event.usage

    @on(events.Unmeasured)
    def _unmeasured(self, event: events.Unmeasured) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            problem = f"The chat's prompt file cannot be used: {event.reason}"
            self.widgets.show_problem(problem)

    # What is written in the prompt

    @on(Prompt.Changed)
    def _keep_draft(self) -> None:
        texts = [self.conversation.unsent, self.widgets.prompt.text]
        self._drafts.keep("\n".join(text for text in texts if text))

    @on(events.Submitted)
    async def _submitted(self, event: events.Submitted) -> None:
        text, editing = event.text, event.editing
        if editing is not None and editing.role == "assistant":
            self._verdicts.keep_correction(editing, text)
        elif editing is None and text == _LEAVE:
            await self.app.run_action("app.quit")
        elif editing is None and slash.is_command(text):
            await self._run_command(text)
        else:
            await self.turns.send(event)
            self._keep_draft()  # until it is stored

    async def _run_command(self, text: str) -> None:
        self.widgets.show_problem("")
        with self._giving_back(text):
            await slash.run(text, self)

    @contextmanager
    def _giving_back(self, text: str) -> Iterator[None]:
        """Say why a command cannot be carried out, and give its text back."""
        try:
            yield
        except (SlashError, StoreError) as error:
            self.widgets.prompt.give_back(text)
            self.widgets.show_problem(str(error))

    def go_on_with(self, text: str, rest: Rest) -> None:
        """Carry out what is left of a command beside all else, until it is done or Esc is
        pressed. text: the command. Raises SlashError while another one goes on."""
        if self._stop_command is not None:
            raise SlashError("servers of tools are still being asked; Esc stops that")
        self._stop_command = threading.Event()
        self._finish_command(text, rest, self._stop_command)

    @work
    async def _finish_command(self, text: str, rest: Rest, stop: threading.Event) -> None:
        try:
            with self._giving_back(text):
                await rest(stop)
        finally:
            stop.set()  # also when the program is left: nobody waits for its thread
            self._stop_command = None

    def _completions(self, text: str) -> list[str]:
        return slash.completions(text, lambda command: command.values(self))

    @on(events.Suggested)
    def _suggested(self, event: events.Suggested) -> None:
        described = slash.described(event.text, event.completions)
        self.widgets.completions.show(described, event.chosen)

    def direct(self, event: Key) -> bool:
        """Give the prompt the focus for a letter that is no command of the focused message."""
        view, prompt = self.focused, self.widgets.prompt
        is_text = event.is_printable and prompt.focusable
        if is_text and isinstance(view, MessageView) and not view.has_command(event.key):
            self.set_focus(prompt)
        return False

    def on_paste(self, event: Paste) -> None:
        # What is pasted while a message has the focus is meant for the prompt as well, unless
        # the inspector covers it.
        prompt = self.widgets.prompt
        if prompt.focusable:
            event.stop()
            self.set_focus(prompt)
            prompt.post_message(Paste(event.text))

    # Turns

    @on(TurnEvent)
    async def _turn_event(self, event: TurnEvent) -> None:
        await self.turns.handle(event)
        self._keep_draft()
        if isinstance(event, TurnEnded | TurnFailed):
            await self.navigation.go_on_anew()
            self.scoring.go_on()

    @on(ToolAsks)
    def _tool_asks(self, event: ToolAsks) -> None:
        self.turns.ask(event.question)

    @on(Approval.Answered)
    def _answered(self, event: Approval.Answered) -> None:
        self.turns.answer(event.question, event.decision)

    @on(events.Regenerate)
    def _regenerate(self, event: events.Regenerate) -> None:
        id = event.message.id
        self.turns.begin(TurnRequest(lambda session, cancel: [session.regenerate(id, cancel)]))

    @on(events.Continue)
    def _continue(self, event: events.Continue) -> None:
        id = event.message.id
        self.turns.begin(TurnRequest(lambda session, cancel: [session.continue_reply(id, cancel)]))

    @on(Branch)
    async def _branch(self, event: Branch) -> None:
        id, begin = event.message_id, event.begin
        await self._inspecting.uncover()
        self.widgets.prompt.focus()
        self.turns.begin(TurnRequest(lambda session, cancel: [session.branch(id, begin, cancel)]))

    # What else the focused message asks for

    @on(events.FocusStep)
    async def _focus_step(self, event: events.FocusStep) -> None:
        await self.navigation.focus_step(event.message, event.step)

    @on(events.ShowSibling)
    async def _show_sibling(self, event: events.ShowSibling) -> None:
        await self.navigation.show_sibling(event.message, event.step)

    @on(events.ShowVersion)
    async def _show_version(self, event: events.ShowVersion) -> None:
        await self.navigation.show_version(event.step)

    @on(events.Copy)
    def _copy_message(self, event: events.Copy) -> None:
        self.app.copy_to_clipboard(event.message.text)
        self.widgets.inform("Copied to the clipboard.")

    @on(events.CopyCode)
    def _copy_code(self, event: events.CopyCode) -> None:
        code, which = self._code_blocks.next_of(event.message.id, event.message.text)
        self.app.copy_to_clipboard(code)
        self.widgets.inform(f"{which} copied to the clipboard.")

    @on(events.Delete)
    async def _delete_message(self, event: events.Delete) -> None:
        await self.navigation.delete(event.message)

    @on(events.Undelete)
    async def undelete(self) -> None:
        """Bring back the message deleted last."""
        await self.navigation.undelete()

    @on(events.ShowSources)
    def _show_sources(self, event: events.ShowSources) -> None:
        self.app.push_screen(SourceScreen(event.message.sources))

    @on(events.DocumentsRead)
    def _documents_read(self, event: events.DocumentsRead) -> None:
        if event.documents != self.conversation.chat.documents:
            return
        self.widgets.show_problem(event.problem)
        if event.words:
            self.widgets.inform(event.words)

    @on(events.Edit)
    def _edit_message(self, event: events.Edit) -> None:
        with self.widgets.store_errors():
            message = self.navigation.asked(event.message)
            self.widgets.prompt.edit_message(message, message.text)
            self.widgets.prompt.focus()

    @on(events.Rate)
    def _rate_message(self, event: events.Rate) -> None:
        self._verdicts.rate(event.message, event.thumb)

    @on(events.Correct)
    def _correct_message(self, event: events.Correct) -> None:
        self._verdicts.begin_correction(event.message)

    @on(events.Rank)
    @work
    async def _rank_replies(self, event: events.Rank) -> None:
        await self._verdicts.rank(event.message)

    # Keys

    async def action_stop(self) -> None:
        """Stop what is under way; with nothing under way, go back to the prompt."""
        prompt = self.widgets.prompt
        if self._stop_command is not None:
            self._stop_command.set()
        if not await self.turns.stop() and prompt.editing is not None:
            prompt.leave_edit()
        prompt.focus()

    async def action_new_chat(self) -> None:
        await self.navigation.open(None)

    @work
    async def action_history(self) -> None:
        await self._dialogs.list_chats()

    @on(Sidebar.Chosen)
    async def _chosen_beside(self, event: Sidebar.Chosen) -> None:
        await self.navigation.open_chosen(event.choice)

    def on_resize(self) -> None:
        self._show_sidebar(self._wants_sidebar)

    def _show_sidebar(self, wanted: bool) -> None:
        """Show the list of chats beside the chat, if there is room, or not."""
        self._wants_sidebar = wanted
        self.set_class(wanted and self.app.size.width >= SIDEBAR_FROM, "-listed")

    def action_sidebar(self) -> None:
        """Hide the list of chats beside the chat; hidden, show it and go to it."""
        if self.app.size.width < SIDEBAR_FROM:
            key = shown_key(self.app, "chats", "Ctrl+O")
            self.widgets.inform(
                f"There is room for the list from {SIDEBAR_FROM} columns on; {key} opens it here."
            )
            return
        if self._wants_sidebar:
            if self.widgets.sidebar.has_focus_within:
                self.widgets.prompt.focus()
            self._show_sidebar(False)
        else:
            self._show_sidebar(True)
            self.widgets.sidebar.query_one(Field).focus()
        self.widgets.keep_setting("chat_list", "shown" if self._wants_sidebar else "hidden")

    @work
    async def action_branches(self) -> None:
        await self._dialogs.show_branches()

    async def action_inspect(self) -> None:
        await self._inspecting.inspect()

    @on(Inspector.Closed)
    async def _close_inspector(self) -> None:
        await self._inspecting.close()

    @work
    async def action_models(self) -> None:
        await self._dialogs.list_models()

    @work
    async def action_learn(self) -> None:
        """Teach the model what was said of replies, and go on with what comes of it."""
        screen = LearnScreen(command(self.widgets.status.model))
        name = await self.app.push_screen_wait(screen)
        if name is not None and not self.turns.is_busy():
            self.models.load_other(name)

    def action_parameters(self) -> None:
        self._dialogs.set_parameters()

    @work
    async def action_compare(self, change: str = "") -> None:
        await self._dialogs.compare(change)

    @work
    async def action_prompts(self) -> None:
        await self._dialogs.list_prompts()

    def hold_with(self, choice: PromptChoice) -> None:
        """Use a persona or a prompt file, or with neither."""
        self._dialogs.hold_with(choice)

    def action_help(self) -> None:
        screen = self.app.screen
        here = (screen.focused or screen).ancestors_with_self
        places = (Prompt, MessageView, ChatScreen, type(self.app))
        self.app.push_screen(HelpScreen(places, [type(node) for node in here]))

    def for_palette(self) -> "list[DOMNode]":
        """Those parts that the palette can act upon though they have no focus."""
        on_message = isinstance(self.focused, MessageView)
        messages = [] if on_message else self.widgets.transcript.views[-1:]
        return [self.widgets.prompt, *messages]

    def action_focus_last_message(self) -> None:
        self.navigation.focus_last_message()

    def action_page(self, step: int) -> None:
        self.navigation.scroll_page(step)

    # What an empty chat suggests

    @on(events.SubmittedNothing)
    def action_ask(self) -> None:
        if self.widgets.is_empty:
            self.widgets.prompt.focus()
            self.post_message(events.Submitted(QUESTION))

    @on(OptionList.OptionSelected, "Welcome OptionList")
    async def _suggestion_chosen(self, event: OptionList.OptionSelected) -> None:
        await self.run_action(event.option_id or "")
