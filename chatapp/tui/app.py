"""The program in the terminal: its store, its appearance, and its end.

Invariant: no import here, direct or indirect, is heavy. The model and its library are imported by
the thread that loads them, after the first frame.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from textual import on
from textual.app import InvalidThemeError, ScreenStackError
from textual.binding import Binding
from textual.events import Event, InputEvent, Key, MouseDown, Paste
from textual.message import Message
from textual.theme import Theme

from chatapp.common.foreign import printable, without_surrogates
from chatapp.common.paths import database_path
from chatapp.common.settings import Settings
from chatapp.common.unforeseen import is_debugging
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.tui import events
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.platform import programs, runtime
from chatapp.tui.platform.actions import Acting, Action, read_keymap, written
from chatapp.tui.platform.textual_internals import (
    FailingApp,
    keymap_of,
    know_alt_enter,
    know_bad_bytes,
    know_pastes,
)
from chatapp.tui.theme import CALM, FEW_COLORS, PRESENTED, READABLE, readable, with_few_colors
from chatapp.tui.widgets.dialog import Dialog

if TYPE_CHECKING:
    from textual.command import Provider

    from chatapp.dialogue.lessons.lesson import Lesson
    from chatapp.engine.model import LanguageModel

_PATIENCE = 0.3
"""Seconds that a running turn has to store its reply when the user quits."""

_DIALOGS = {"parameters", "prompts", "models", "chats", "branches", "compare"}
"""The actions of a chat whose keys lead from one dialog to another."""

_SOON = 2.0
"""Seconds within which a second Ctrl+C quits the program instead of stopping the reply."""


@runtime_checkable
class Directing(Protocol):
    """A screen that handles each key before the focused widget."""

    def direct(self, event: Key) -> bool:
        """Move the focus for a key, at once; True when the key has no other effect.

        A widget would move it only when it handles the key, and keys typed in the meantime would be
        lost.
        """
        ...


@runtime_checkable
class Training(Protocol):
    """A screen that runs a command which trains a model."""

    def end(self) -> None:
        """End the command at once."""
        ...


def _actions() -> "type[Provider]":
    from chatapp.tui.chat.help import PaletteActions

    return PaletteActions


class ChatApp(Acting, FailingApp[int]):
    """The chat.

    load: loads the model; by default the one of the settings. store: of the chats; by default the
    user's own, opened here (StoreError). chat_id: the chat to open. lesson: given instead of a
    chat.
    """

    TITLE = "chatapp"
    CSS_PATH = "chatapp.tcss"
    COMMANDS = {_actions}  # noqa: RUF012
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (24, "-high")]  # noqa: RUF012
    BINDING_GROUP_TITLE = "Everywhere"

    def __init__(
        self,
        settings: Settings,
        *,
        load: "Callable[[], LanguageModel] | None" = None,
        store: Store | None = None,
        chat_id: int | None = None,
        lesson: "Lesson | None" = None,
        may_be_served: bool = False,
    ) -> None:
        """may_be_served: whether the first model may be that of a `chatapp api` that runs."""
        self.is_presenting = False
        """Whether the screen is for an audience: more space and contrast, and less beside."""
        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if no_color else None)
        # Animated scrolling would delay the next key, and is expensive over a slow connection.
        self.animation_level = "none"
        know_alt_enter()
        know_bad_bytes()
        know_pastes()
        self.register_theme(CALM)
        self._settings, self._may_be_served = settings, may_be_served
        self.store = store or Store(database_path())
        self.chat = ChatScreen(settings, self.store, load or self._load_by_name, chat_id)
        if lesson is not None:
            from chatapp.tui.chat.lecture import LessonScreen

            self.chat = LessonScreen(settings, self.store, load, lesson)
        self.lesson: ChatScreen | None = None
        """The lesson that was given last over the chat."""
        keymap = read_keymap(settings.keys)
        self.set_keymap(keymap)
        self._quit_keys = keymap.get("quit", "ctrl+q").split(",")
        self.abandoned: list[str] = []
        """What did not come to its end because the user has quit, in words."""
        self.last_resort = runtime.LastResort(
            self._note_abandoned,
            self._end_learning,
            lambda: self.chat.conversation.close(0),
            self.restore_terminal,
            lambda: runtime.print_abandoned(self.abandoned),
        )
        self._early: list[Event] | None = []
        self._is_ending = False
        self._interrupted = -_SOON
        self._knows_of_loss = False
        self._few_colors = no_color or self.console.color_system not in ("256", "truecolor")

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        if self.current_theme.ansi:  # whose colours are the terminal's
            variables = with_few_colors(variables)
        else:
            variables = readable(variables, PRESENTED if self.is_presenting else READABLE)
        self.theme_variables = variables
        return variables

    def get_key_display(self, binding: Binding) -> str:
        return written(binding.key)

    def _load_by_name(self) -> "LanguageModel":
        from chatapp.engine.models.loading import load_model

        chosen = self._settings
        if self._may_be_served:
            from chatapp.engine.models.running import load_served

            served = load_served(chosen.model, chosen.precision, chosen.device)
            if served is not None:
                return served
        return load_model(
            chosen.model,
            precision=chosen.precision,
            device=chosen.device,
            say=self.chat.widgets.inform,
        )

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    def on_mount(self) -> None:
        # A system shutdown must not lose a reply.
        if os.name == "posix":
            with suppress(ValueError):  # only a program's main thread receives signals
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._leave)
        try:
            self.theme = FEW_COLORS if self._few_colors else self._settings.theme
        except InvalidThemeError:
            name = printable(self._settings.theme)
            self.notify(f"There is no theme {name!r}.", severity="warning", markup=False)
        self._kept_theme = self.theme
        self.theme_changed_signal.subscribe(self, self._keep_theme)

    async def on_event(self, event: Event) -> None:
        # Keys typed before the prompt exists are kept for it.
        if self._early is not None and isinstance(event, Key | Paste):
            self._early.append(event)
            return
        # What is typed after the end would act on screens that are gone.
        if self._is_ending and isinstance(event, InputEvent | Paste):
            return
        if isinstance(event, MouseDown) and self._is_on_removed(event):
            return  # Textual starts a selection in the parent, and there is none
        try:
            if not (isinstance(event, Key) and self._direct(event)):
                await super().on_event(event)
        except ScreenStackError:
            if self.screen_stack:  # else the screens closed while this key waited
                raise

    def exit(self, *arguments: Any, **named: Any) -> None:
        self._is_ending = True
        super().exit(*arguments, **named)

    def _is_on_removed(self, event: MouseDown) -> bool:
        """Whether the widget under the mouse is still drawn, but not on the screen any more."""
        widget, _ = self.screen.get_widget_and_offset_at(event.x, event.y)
        return widget is not None and widget.parent is None

    def _direct(self, event: Key) -> bool:
        """Let the screen handle a key first; True when the key has no other effect."""
        if isinstance(self.screen, Directing) and self.screen.direct(event):
            return True
        return isinstance(self.screen, Dialog) and self._leads_on(self.screen, event.key)

    def _leads_on(self, dialog: "Dialog[Any]", key: str) -> bool:
        """Whether a key opens another dialog of the chat instead of the one that is open."""
        chat, own = self.screen_stack[-2], {entry.name for entry in dialog.ACTIONS}
        if not isinstance(chat, ChatScreen) or dialog.is_busy or not own & _DIALOGS:
            return False
        for entry in chat.ACTIONS:
            if entry.name in _DIALOGS - own and key in entry.keys(keymap_of(self)):
                dialog.dismiss(None)
                self.call_later(self.run_action, entry.call, chat)
                return True
        return False

    @on(events.Shown)
    async def _take_early(self) -> None:
        early, self._early = self._early or [], None
        for event in early:
            await super().on_event(event)

    def _keep_theme(self, theme: Theme) -> None:
        """Store the user's theme for the next start."""
        if theme.name != self._kept_theme:
            self._kept_theme = theme.name
            self.chat.widgets.keep_setting("theme", theme.name)

    @Action("Presentation: more space and contrast, only what is needed; or back", "f7")
    def action_present(self) -> None:
        """Show the screen for an audience, or as before."""
        self.is_presenting = not self.is_presenting
        self.set_class(self.is_presenting, "-presenting")
        self.show_dim(not self.is_presenting)
        self.refresh_css(animate=False)

    def action_lesson(self, name: str) -> None:
        """Give a lesson over the chat, whose model it shares while that is the lesson's, too.

        Raises UserError for a lesson that does not exist.
        """
        from chatapp.dialogue.lessons.lesson import find_lesson
        from chatapp.tui.chat.lecture import LessonScreen

        lesson, model = find_lesson(name), self.chat.conversation.model
        load = None
        if model is not None and model.name == lesson.model_of(lesson.steps[0]):
            load = lambda: model  # noqa: E731
        self.lesson = LessonScreen(self._settings, Store(None), load, lesson)
        self.push_screen(self.lesson)

    def action_help(self) -> None:
        """Show all keys, also over another screen than the chat's."""
        self.chat.action_help()

    @Action("Every action by name", "ctrl+p", priority=True, name="palette")
    def action_command_palette(self) -> None:
        from chatapp.tui.chat.help import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text to the clipboard, through the terminal and through the system."""
        # The clipboard takes UTF-8, which has no lone surrogates.
        text = without_surrogates(text)
        super().copy_to_clipboard(text)
        # A user in a browser may be at another machine, whose clipboard this one cannot reach.
        if not self.is_web and (commands := programs.programs()):
            threading.Thread(target=programs.fill, args=(text, commands), daemon=True).start()

    @Action("Stop the reply; else empty the prompt (Ctrl+Z undoes it)", "ctrl+c")
    async def action_interrupt(self) -> None:
        """Ctrl+C: stop the reply, or empty the prompt; with neither, explain how to quit."""
        now = monotonic()
        chat = self.screen if isinstance(self.screen, ChatScreen) else self.chat
        if now - self._interrupted > _SOON and await chat.controls.stop():
            self._interrupted = now
        elif self.screen is not chat or not chat.widgets.prompt.empty():
            self.action_help_quit()

    def _leave(self) -> None:
        self.chat.conversation.close(0)
        self.exit(128 + signal.SIGTERM)

    def hang_up(self) -> None:
        """Store the current reply, and exit at once: the terminal is gone.

        Not on the event loop, which may be blocked by output to the terminal.
        """
        try:
            self.chat.conversation.close(0)
        finally:
            self.chat.conversation.chat.close()
            self.chat.controls.finish_draft(_PATIENCE)
            os._exit(128 + signal.SIGHUP)

    def on_read(self, event: Message) -> None:
        # The event loop may hang, and then no key gets to an action.
        if isinstance(event, Key) and event.key in self._quit_keys:
            self._prepare_to_leave()

    def _prepare_to_leave(self) -> None:
        self._note_abandoned()
        if not self.is_headless:
            self.last_resort.prepare()

    def _note_abandoned(self) -> None:
        self.abandoned = [*dict.fromkeys([*self.abandoned, *self.chat.conversation.works])]

    def _end_learning(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, Training):
                screen.end()

    @Action("Quit the program", "ctrl+q", "Quit", priority=True, also="exit leave close")
    async def action_quit(self) -> None:
        conversation = self.chat.conversation
        self._prepare_to_leave()
        try:
            await asyncio.to_thread(conversation.close, _PATIENCE)
        except StoreError as error:
            if not self._knows_of_loss:
                self._knows_of_loss = True
                self.last_resort.call_off()
                self.abandoned = []
                self.chat.widgets.show_problem(f"{error}. Quit again to leave without saving it.")
                return
            conversation.forget_rest()
        self.exit(0)


def run(
    settings: Settings,
    chat_id: int | None = None,
    *,
    store: Store | None = None,
    inline: bool = False,
    lesson: "Lesson | None" = None,
    may_be_served: bool = False,
) -> int:
    """Show the chat until the user quits; return the exit status.

    store: of the chats, closed here; by default the user's own. inline: in some rows below the
    shell's prompt, where the last frame stays. lesson: given instead of a chat. may_be_served: see
    `ChatApp`. Raises StoreError when the chats cannot be opened, and the exception that ended the
    screen.
    """
    if is_debugging():
        os.environ["TEXTUAL"] = os.environ.get("TEXTUAL") or "debug,devtools"  # `textual console`
    app = ChatApp(
        settings, store=store, chat_id=chat_id, lesson=lesson, may_be_served=may_be_served
    )
    if os.name == "posix":
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=app.hang_up).start())
    try:
        app.run(inline=inline, inline_no_clear=True)
    finally:
        app.chat.controls.finish_draft(_PATIENCE)
        app.chat.conversation.chat.close()
        app.chat.conversation.close(0)
        app.store.close()
    if app.failure is not None:
        raise app.failure
    runtime.print_abandoned(app.abandoned)
    code = app.return_value or 0
    chats = filter(None, (app.chat, app.lesson))
    if any(chat.conversation.has_running_threads for chat in chats):
        # A thread inside the numerical library cannot be interrupted, and it may crash the
        # interpreter during its shutdown. Everything is stored.
        os._exit(code)
    app.last_resort.call_off()
    return code
