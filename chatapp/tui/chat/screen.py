"""The chat screen: dispatches keys and events to its parts. Files named with @ in the prompt: their
list, their sizes, and their contents in the message.

Invariant: widgets change only on the event loop; threads post events. A file is in a message only
if its name was shown before; none, and no folder, is read on the event loop or waited for when the
program quits.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.events import Key, Paste
from textual.widgets import OptionList

from chatapp.common.paths import presets_path
from chatapp.common.settings import Settings
from chatapp.common.userfiles import UserError
from chatapp.dialogue.store import Store
from chatapp.engine.model import LanguageModel
from chatapp.prompting.template import TEMPLATES
from chatapp.tui import events
from chatapp.tui.chat.actions import NONE, SlashCommands
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.messages import ChatMessage, MessageActions
from chatapp.tui.chat.model_actions import ModelActions
from chatapp.tui.chat.parts import FROM as SIDEBAR_FROM
from chatapp.tui.chat.parts import ChatWidgets, Sidebar
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.conversation.model_loading import LoadFailed, ModelLoaded
from chatapp.tui.inspector.panel import Inspector, UseStep
from chatapp.tui.inspector.view import Branch, SwitchPart
from chatapp.tui.platform import runtime
from chatapp.tui.platform.actions import Action, is_command, shown_key
from chatapp.tui.platform.textual_internals import bindings_for
from chatapp.tui.screens.branches import BranchScreen
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.screens.parameters import ParametersScreen
from chatapp.tui.screens.texts import CopyScreen
from chatapp.tui.widgets.approval import Approval, ToolAsks
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.find import FindBar
from chatapp.tui.widgets.prompt import CommandCompletion, PromptInput
from chatapp.tui.widgets.welcome import QUESTION

if TYPE_CHECKING:
    from pathlib import Path


_T = TypeVar("_T")

_PATIENCE = 10.0
"""Seconds until files that cannot be read are given up."""
_LONGEST = 100_000
"""Characters of a prompt in which names are looked for at each key."""


class Attachments:
    """The files of the message in the prompt."""

    def __init__(self, conversation: "Conversation", widgets: "ChatWidgets") -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._names: list[str] = []
        self._is_listed = False
        self._shown: str | None = None
        self._seen: frozenset[Path] = frozenset()

    def complete(self, text: str) -> list[str]:
        """The text with each file that the name at its end may be."""
        if "@" not in text[-202:]:
            return []
        from chatapp.dialogue.documents.attachments import begun_name, find_fuzzily, named

        if (begun := begun_name(text)) is None:
            self._is_listed = False  # the next name sees what is there then
            return []
        if not self._is_listed:
            self._is_listed = True
            self._widgets.prompt.run_worker(self._list())
        place, letters = begun
        return [f"{text[:place]}{named(name)} " for name in find_fuzzily(letters, self._names)]

    @staticmethod
    def described(text: str, completions: Sequence[str]) -> list[CommandCompletion]:
        """The names of the files alone."""
        from chatapp.dialogue.documents.attachments import begun_name

        begun = begun_name(text)
        start = 0 if begun is None else begun[0]
        return [CommandCompletion(completion[start:]) for completion in completions]

    async def _list(self) -> None:
        from chatapp.dialogue.documents.attachments import list_here

        try:
            self._names = await self._on_thread(list_here)
        except UserError as error:
            self._widgets.inform(str(error))
        self._widgets.prompt.suggest_again()

    def show(self, text: str) -> None:
        """Show the files that a text names, with their sizes in tokens."""
        text = text if "@" in text and len(text) <= _LONGEST else ""
        if text != self._shown:
            self._shown = text
            self._widgets.prompt.run_worker(self._show(text), exclusive=True, group="attached")

    async def _show(self, text: str) -> None:
        from chatapp.dialogue.documents.attachments import files_in

        sizes: dict[Path, str] = {}
        if text:
            sizes = await self._on_thread(lambda: {p: self._size(p) for p in files_in(text)})
        if text == self._shown:
            if text:  # a message that is sent empties the prompt first
                self._seen = frozenset(sizes)
            self._widgets.attached.say("\n".join(sizes.values()))

    def _size(self, path: "Path") -> str:
        from chatapp.dialogue.documents.attachments import read_attachment

        session = self._conversation.session
        try:
            content = read_attachment(path)
        except UserError as error:
            return f"attached  {error}"
        if session is None:
            return f"attached  {path} · {len(content):,} characters"
        return f"attached  {path} · {len(session.model.tokenizer.encode(content)):,} tokens"

    def recognize(self, pasted: str) -> None:
        """Name a file whose path has been pasted as its last text."""
        if len(pasted) < 4096 and pasted.strip().strip("'\"").startswith(("/", "~", ".", "file:")):
            self._widgets.prompt.run_worker(self._recognize(pasted))

    async def _recognize(self, pasted: str) -> None:
        from chatapp.dialogue.documents.attachments import pasted_path

        named = await self._on_thread(lambda: pasted_path(pasted))
        if named:
            self._widgets.prompt.replace_last(pasted, f"{named} ")

    async def contents(self, text: str) -> str:
        """The contents of a message's files, to follow its text.

        Raises UserError, also when they were not shown yet.
        """
        if "@" not in text or len(text) > _LONGEST:
            return ""
        from chatapp.dialogue.documents.attachments import files_in, read_all

        def read() -> str:
            if unseen := [str(path) for path in files_in(text) if path not in self._seen]:
                raise UserError(f"Enter again attaches {', '.join(unseen)}")
            return read_all(text)

        with suppress(TimeoutError):
            return await asyncio.wait_for(self._on_thread(read), _PATIENCE)
        raise UserError(f"the files of the message cannot be read within {_PATIENCE:.0f} seconds")

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        future = Future[_T]()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self._conversation.start_thread(run)
        return await asyncio.wrap_future(future)


_SOON = 1.0
"""Seconds within which a second Esc empties the prompt."""

_LEAVE = "exit"
"""The word that quits the program, as in a shell. With a space before it, it is a message."""


class ChatScreen(MessageActions, ModelActions):
    """One chat with one model."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide"), (180, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-high"), (50, "-tall")]  # noqa: RUF012
    BINDING_GROUP_TITLE = "Chat"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        load: Callable[[], LanguageModel],
        chat_id: int | None,
    ) -> None:
        super().__init__()
        self._first_chat = chat_id
        self._first_model = settings.model
        self._escaped = -_SOON
        self._wants_sidebar = settings.chat_list == "shown"
        self.conversation = Conversation(settings, store, load, self)
        self.widgets = ChatWidgets(
            self.conversation,
            lambda text: self.commands.complete(text) or self.attachments.complete(text),
            lambda: self.controls.take_last_queued(),
            ChatMessage,
        )
        self.attachments = Attachments(self.conversation, self.widgets)
        self.controls = ChatControls(self.conversation, self.widgets)
        self.commands = SlashCommands(self)

    def compose(self) -> ComposeResult:
        yield from self.widgets.compose()

    async def on_mount(self) -> None:
        self.widgets.status.model = self._first_model
        self.widgets.status.is_kept = self.conversation.chat.store.is_kept
        self.widgets.prompt.focus()
        await self.controls.open(self._first_chat)
        self.controls.restore_draft()
        self.call_after_refresh(self._after_first_frame)

    def _after_first_frame(self) -> None:
        runtime.mark("first_frame")
        self.post_message(events.Shown())
        self.controls.models.load()

    # Events of threads

    @on(ModelLoaded)
    @on(LoadFailed)
    async def _load_ended(self, event: ModelLoaded | LoadFailed) -> None:
        if event.request is not self.conversation.loading:
            return  # another model has been requested since
        if problem := self.controls.models.take(event):
            await self.controls.refuse(problem)
        else:
            self.controls.begin_waiting()
            if self.widgets.inspector is not None:
                self.widgets.inspector.look_at()

    @on(events.ModelsFound)
    def _models_found(self, event: events.ModelsFound) -> None:
        self.controls.models.set_known(event.models)

    @on(events.UsageCounted)
    def _show_usage(self, event: events.UsageCounted) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            status = self.widgets.status
            status.used, status.limit, status.dropped = event.usage

    @on(events.UsageUnknown)
    def _show_unknown_usage(self, event: events.UsageUnknown) -> None:
        if event.session is self.conversation.session and self.conversation.turn is None:
            problem = f"The chat's prompt file cannot be used: {event.reason}"
            self.widgets.show_problem(problem)

    @on(ToolAsks)
    def _tool_asks(self, event: ToolAsks) -> None:
        self.controls.ask(event.question)

    @on(Approval.Answered)
    def _answered(self, event: Approval.Answered) -> None:
        self.controls.answer(event.question, event.decision)

    # Input of the prompt

    @on(PromptInput.Changed)
    def _prompt_changed(self) -> None:
        self.controls.keep_draft()
        self.widgets.follow_prompt()
        self.attachments.show(self.widgets.prompt.text)

    @on(events.Pasted)
    def _pasted(self, event: events.Pasted) -> None:
        self.attachments.recognize(event.text)

    @on(events.Submitted)
    async def _submitted(self, event: events.Submitted) -> None:
        text, editing = event.text, event.editing
        if editing is not None and event.in_place:
            await self.keep_edit(editing, text)
        elif editing is not None and editing.role == "assistant":
            self.keep_correction(editing, text)
        elif editing is None and text == _LEAVE:
            await self.app.run_action("app.quit")
        elif editing is None and is_command(text):
            await self.commands.run(text)
        else:
            await self._send(event)

    async def _send(self, event: events.Submitted) -> None:
        try:
            event.contents = await self.attachments.contents(event.text)
        except UserError as error:
            self.widgets.prompt.give_back(event.text, event.editing)
            self.widgets.show_problem(str(error), event.text)
        else:
            await self.controls.send(event)

    @on(events.Suggested)
    def _suggested(self, event: events.Suggested) -> None:
        is_command = event.text.startswith("/")
        described = self.commands.described if is_command else self.attachments.described
        self.widgets.completions.show(described(event.text, event.completions), event.chosen)

    def direct(self, event: Key) -> bool:
        """Focus the prompt for a letter that is not a command of the focused message."""
        view, prompt = self.focused, self.widgets.prompt
        is_text = event.is_printable and prompt.focusable
        if is_text and isinstance(view, ChatMessage) and not bindings_for(view, event.key):
            self.set_focus(prompt)
        return False

    def on_paste(self, event: Paste) -> None:
        # Text pasted while a message has the focus goes to the prompt, too, unless the inspector
        # covers it.
        prompt = self.widgets.prompt
        if prompt.focusable:
            event.stop()
            self.set_focus(prompt)
            prompt.post_message(Paste(event.text))

    # Keys

    @Action("Stop the reply; go back to writing; twice empties the prompt", "escape")
    async def action_stop(self) -> None:
        """Stop the running work; if there is none, return to the prompt; soon again, empty it."""
        prompt = self.widgets.prompt
        was_idle, now = prompt.has_focus and not prompt.editing, monotonic()
        is_again = now - self._escaped < _SOON
        self._escaped = -_SOON
        self.commands.stop()
        if not await self.controls.stop():
            if prompt.editing is not None:
                prompt.leave_edit()
            elif was_idle and is_again:
                prompt.empty()
            elif was_idle:
                self._escaped = now
        prompt.focus()

    @Action("Start a new chat", "ctrl+n", "New", command="new")
    async def action_new_chat(self) -> None:
        text = self.widgets.prompt.text
        if is_command(text) or text == self.widgets.refused:
            self.widgets.prompt.empty()  # it was meant for this chat
        await self.controls.open(None)

    def action_page(self, step: int) -> None:
        """Scroll the messages by a page."""
        transcript = self.widgets.transcript
        scroll = transcript.scroll_page_up if step < 0 else transcript.scroll_page_down
        scroll(animate=False)

    @Action("Copy from the chat", "f12")
    @work
    async def action_copy_from(self) -> None:
        """Let the user move in the text of the chat, and copy from it."""
        screen = CopyScreen(self.widgets.transcript.path)
        if text := await self.app.push_screen_wait(screen):
            self.app.copy_to_clipboard(text)
            self.widgets.inform("Copied to the clipboard.")

    # Search in the open chat

    @Action(
        "Search in this chat; ↑ ↓ go through it",
        "ctrl+f",
        command="find",
        argument="[TEXT]",
        empty=True,
    )
    def action_find(self, words: str = "") -> None:
        self.widgets.find.open(words)

    @on(FindBar.Wanted)
    @work(exclusive=True, group="find")
    async def _find(self, event: FindBar.Wanted) -> None:
        await self.widgets.find.show(self.widgets.transcript, event.words)

    @on(FindBar.Closed)
    def _close_find(self) -> None:
        self.widgets.transcript.highlight("")
        self.widgets.prompt.focus()

    # The list of chats next to the chat

    @on(Sidebar.Chosen)
    async def _chosen_beside(self, event: Sidebar.Chosen) -> None:
        await self.controls.open_chosen(event.choice)

    def on_resize(self) -> None:
        self._show_sidebar(self._wants_sidebar)

    def _show_sidebar(self, wanted: bool) -> None:
        """Show or hide the list of chats, if there is room."""
        self._wants_sidebar = wanted
        is_listed = wanted and self.app.size.width >= SIDEBAR_FROM
        if is_listed and not self.has_class("-listed"):
            self.call_after_refresh(self.widgets.sidebar.list_chats)
        self.set_class(is_listed, "-listed")

    @Action("Show or hide the list of chats", "ctrl+l", name="chat_list")
    def action_sidebar(self) -> None:
        """Hide the list of chats; if hidden, show and focus it."""
        if self.app.size.width < SIDEBAR_FROM:
            key = shown_key(self.app, "chats")
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

    # Screens over the chat: those that change it do not open during a turn, and a result that
    # arrives after a turn has begun is dropped

    @Action("List, search, open and rename chats", "ctrl+o", "Chats", name="chats", command="chats")
    @work
    async def action_history(self) -> None:
        """Let the user choose a chat, and manage others."""
        choice = await self.app.push_screen_wait(HistoryScreen(self.conversation.chat.store))
        if choice is None:
            await self.controls.leave_deleted()
        else:
            await self.controls.open_chosen(choice)

    @Action("All branches of this chat", "ctrl+b", command="branches")
    @work
    async def action_branches(self) -> None:
        """Let the user choose a message of another branch."""
        chat = self.conversation.chat
        if chat.id is None or self.controls.is_busy():
            return
        message_id = await self.app.push_screen_wait(BranchScreen(chat.store, chat.id))
        if message_id is not None:
            await self.controls.open_at(message_id)

    @Action("Sampling settings: temperature and others", "f2", "Sampling")
    def action_parameters(self) -> None:
        """Let the user change the sampling parameters."""
        models = self.controls.models
        now = models.parameters()
        screen = ParametersScreen(now, partial(models.use, now), list(TEMPLATES), presets_path())
        self.app.push_screen(screen)

    # The inspector

    @Action("Look inside the model, also while you write", "f3", "Inspect")
    async def action_inspect(self) -> None:
        """Inspect the focused message, or the last one; if the inspector has the focus,
        close it."""
        inspector = self.widgets.inspector
        if inspector is not None and inspector.has_focus_within:
            await self._close_inspector()
        elif inspector is not None:
            inspector.look_at(self.target())
            inspector.focus_view()
        elif self.conversation.session is None:
            self.widgets.inform("The model is not loaded yet.")
        else:
            await self.mount(Inspector(self.conversation, self.target()))

    @on(Inspector.Closed)
    async def _close_inspector(self) -> None:
        await self.query(Inspector).remove()
        self.widgets.prompt.focus()

    @on(Branch)
    async def _branch(self, event: Branch) -> None:
        id, begin = event.message_id, event.begin
        if (inspector := self.widgets.inspector) is not None and inspector.is_over:
            await self._close_inspector()
        self.widgets.prompt.focus()
        self.controls.begin(lambda session, cancel: [session.branch(id, begin, cancel)])

    @on(SwitchPart)
    async def _switch_part(self, event: SwitchPart) -> None:
        off = dict.fromkeys(c.name for c in self.conversation.chat.interventions.off.changes)
        names = [name for name in off if name != event.name]
        names += [] if event.name in off else [event.name]
        await self.commands.run(f"/ablate {' '.join(names) or NONE}")

    @on(UseStep)
    def _use_step(self, event: UseStep) -> None:
        if self.conversation.turn is None:
            self.controls.models.load_other(event.model)

    @Action("Search all keys and commands", "f1", "Help", command="help")
    def action_help(self) -> None:
        screen = self.app.screen
        here = (screen.focused or screen).ancestors_with_self
        self.app.push_screen(HelpScreen(here))

    # Suggestions of an empty chat

    def action_ask(self) -> None:
        if self.widgets.is_empty:
            self.widgets.prompt.focus()
            self.post_message(events.Submitted(QUESTION))

    @on(OptionList.OptionSelected, "Welcome OptionList")
    async def _suggestion_chosen(self, event: OptionList.OptionSelected) -> None:
        await self.run_action(event.option_id or "")
