"""Slash commands, and those on the open chat: its title, instructions, sampling, files, lessons.

Those on the model are in `model_actions`, those on messages in `messages`.
"""

import asyncio
import difflib
import os
import shlex
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from pathlib import Path

from textual import work
from textual.screen import Screen

from chatapp.common.parameters import PARAMETERS
from chatapp.common.paths import presets_path
from chatapp.common.settings import PresetsError, no_preset, read_presets
from chatapp.common.userfiles import UserError, invalid_path, write_named
from chatapp.dialogue.store import Store
from chatapp.tasks.files.documents import DocumentsError, DocumentSet
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.parts import ChatWidgets
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.view import Target
from chatapp.tui.platform.actions import COMMAND, Acting, Action, ActionError, is_command
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.screens.library import LibraryScreen, choice_of
from chatapp.tui.screens.texts import PageScreen
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.prompt import CommandCompletion

NONE = "none"
"""The argument that ends what a command has begun."""

TEMPLATES_OWN = "default"

ON_OFF = ("on", "off")

_METHOD = "method="

_SHOW_AFTER = 1.0
"""Seconds after which a command shows its progress, and again."""

Rest = Callable[[threading.Event], Awaitable[None]]
"""The rest of a long command; the event is set to stop it."""


def _preset_names() -> Iterable[str]:
    with suppress(PresetsError):
        return list(read_presets(presets_path()))
    return []


def _prompt_names() -> Iterable[str]:
    from chatapp.rows.examples import PromptError
    from chatapp.tasks.files.library import for_chats

    with suppress(PromptError):
        return [NONE, *for_chats()]
    return []


def _lesson_names() -> Iterable[str]:
    from chatapp.dialogue.lessons.lesson import NAMES

    return NAMES


class ChatActions(Acting, Screen[None]):
    """The screen of a chat: what its actions use, and those on the chat as a whole."""

    conversation: Conversation
    widgets: ChatWidgets
    controls: ChatControls

    def refuse_while_busy(self) -> None:
        """Raise ActionError while a reply is being written."""
        if self.conversation.turn is not None:
            raise ActionError("a reply is being written; Esc stops it")

    def target(self) -> Target:
        """What the inspector looks at: the focused message, or unsent text."""
        if isinstance(self.focused, MessageView):
            return Target(self.focused.message.id)
        text, editing = self.widgets.prompt.text, self.widgets.prompt.editing
        is_reply = editing is not None and editing.role == "assistant"
        if not text.strip() or is_reply or (editing is None and is_command(text)):
            return Target()
        return Target(draft=text, instead_of=editing.id if editing is not None else None)

    def differences(self) -> list[str]:
        """The possible differences of the right one of two compared replies."""
        settings = ("template", "precision", *PARAMETERS)
        models = [f"model={shlex.quote(model)}" for model in self.controls.models.names()]
        return [*models, *(f"{setting}=" for setting in settings)]

    # Its name, its place, and its copies

    @Action(
        "Give this chat tags, which the list of chats finds; none removes them, alone, list them",
        command="tag",
        argument="[WORD …]",
        values=lambda _: (NONE,),
        empty=True,
    )
    def action_tag(self, argument: str) -> None:
        chat_id, store = self.conversation.chat.id, self.conversation.chat.store
        if chat_id is None:
            raise ActionError("a chat can have tags once it has a message")
        if not argument:
            self.widgets.inform(f"Tags of this chat: {store.chat(chat_id).tags or NONE}")
            return
        words = [] if argument == NONE else argument.replace(",", " ").split()
        tags = " ".join(dict.fromkeys(f"#{word.lstrip('#')}" for word in words if word.strip("#")))
        store.set_tags(chat_id, tags)
        self.widgets.show_title()
        self.widgets.inform(f"Tags of this chat: {tags or NONE}")

    @Action("Rename this chat", command="title", argument="TITLE")
    def action_title(self, argument: str) -> None:
        chat_id = self.conversation.chat.id
        if chat_id is None:
            raise ActionError("a chat can be renamed once it has a message")
        self.conversation.chat.store.rename_chat(chat_id, " ".join(argument.split()))
        self.widgets.show_title()

    @Action(
        "Write the chat to a .md, .html, .json or .jsonl file; alone, copy it to the clipboard",
        command="export",
        also="save download share",
        argument="[FILE]",
        empty=True,
    )
    def action_export(self, argument: str) -> Rest:
        chat_id = self.conversation.chat.id
        if chat_id is None:
            raise ActionError("there is nothing to export yet")
        if not argument:
            return partial(self._copy_chat, chat_id)
        return partial(self._export, chat_id, Path(argument))

    async def _copy_chat(self, chat_id: int, cancel: threading.Event) -> None:
        text = await asyncio.to_thread(_as_text, self.conversation.chat.store, chat_id, ".md")
        self.app.copy_to_clipboard(text)
        self.widgets.inform("The chat is copied to the clipboard, as Markdown.")

    async def _export(self, chat_id: int, path: Path, cancel: threading.Event) -> None:
        try:
            path = path.expanduser()
            await asyncio.to_thread(_write, self.conversation.chat.store, chat_id, path)
        except FileExistsError:
            raise ActionError(f"{path}: this file exists; expected a new name") from None
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ActionError(f"{path}: cannot be written: {reason}") from None
        self.widgets.inform(f"The chat is exported to {path}.")

    # What its replies are made of

    @Action(
        "Set the chat's instructions; default is the template's own",
        command="system",
        also="system prompt role",
        argument="TEXT",
        values=lambda _: (TEMPLATES_OWN,),
        empty=True,
    )
    def action_system(self, argument: str) -> None:
        conversation = self.conversation
        if not argument:
            current = conversation.chat.basis.system or TEMPLATES_OWN
            self.widgets.prompt.give_back(f"/system {current}")
            return
        self.refuse_while_busy()
        system = None if argument == TEMPLATES_OWN else argument
        conversation.chat.use_basis(replace(conversation.chat.basis, system=system))
        conversation.measure()
        self.widgets.inform("These instructions apply from the next message on.")

    @Action(
        "Change a sampling setting; alone, list them",
        command="set",
        argument="[NAME VALUE]",
        values=lambda _: PARAMETERS,
        empty=True,
        end=" ",
    )
    def action_set(self, argument: str) -> None:
        if not argument:
            choices = self.conversation.choices
            lines = (
                f"{name} {_shown(getattr(choices.sampling, name))} ({origin})"
                for name, origin in choices.origins.items()
            )
            self.app.push_screen(PageScreen("Sampling settings", "\n".join(lines)))
            return
        # As in /compare, with the value after an equals sign.
        name, _, text = argument.replace("=", " ").partition(" ")
        try:
            sampling = self.conversation.choices.sampling.changed(name, text.strip())
        except ValueError as error:
            raise ActionError(str(error)) from None
        self.conversation.set_sampling(sampling)
        shown = _shown(getattr(sampling, name))
        self.widgets.inform(f"{name} is {shown} from the next message on.")

    @Action(
        "Use a preset of sampling settings (see F2)",
        command="preset",
        argument="NAME",
        values=lambda _: _preset_names(),
        rare=True,
    )
    def action_preset(self, argument: str) -> None:
        presets = read_presets(presets_path())
        if argument not in presets:
            raise ActionError(no_preset(argument, list(presets)))
        self.conversation.set_sampling(presets[argument])
        self.widgets.inform(f"The next message uses preset {argument!r}.")

    @Action(
        "Use a persona or a prompt file; none removes it, alone, list them",
        "f5",
        command="prompt",
        argument="[NAME]",
        values=lambda _: _prompt_names(),
        empty=True,
        waits=True,
    )
    def action_prompts(self, argument: str = "") -> Rest | None:
        if argument:
            return partial(self._use_prompt, argument)
        self._choose_prompt()
        return None

    @work
    async def _choose_prompt(self) -> None:
        """Let the user choose a persona or a prompt file."""
        if not self.controls.is_busy():
            screen = LibraryScreen(self.conversation, self.target().draft)
            choice = await self.app.push_screen_wait(screen)
            if choice is not None:
                self.controls.use_prompt(choice)

    async def _use_prompt(self, name: str, cancel: threading.Event) -> None:
        asked_for = self.conversation.chat
        choice = await asyncio.to_thread(choice_of, name)
        if self.conversation.chat is asked_for and not cancel.is_set():
            self.refuse_while_busy()  # a message may have been sent in the meantime
            self.controls.use_prompt(choice)

    @Action(
        "Answer with passages of files, folders, patterns; none removes them",
        command="docs",
        argument="[PATH …]",
        values=lambda _: (NONE,),
        empty=True,
        waits=True,
    )
    def action_docs(self, argument: str) -> Rest | None:
        if not argument:
            documents = self.conversation.chat.documents
            used = ", ".join(documents.paths) if documents is not None else NONE
            self.widgets.inform(f"Documents of this chat: {used}")
            return None
        try:
            documents = None if argument == NONE else _documents(argument)
        except (DocumentsError, ValueError) as error:
            raise ActionError(f"/docs: {error}") from None
        self.conversation.chat.use_documents(documents)
        if documents is None:
            self.widgets.inform("The documents are removed.")
            return None
        self.widgets.inform("Reading the documents …")
        return partial(self._read_documents, documents)

    async def _read_documents(self, documents: DocumentSet, cancel: threading.Event) -> None:
        """Read documents for the next message, showing the progress of what takes long."""
        from chatapp.dialogue.documents.search import Documents
        from chatapp.dialogue.session import until

        share, go_on = 0.0, until(cancel)

        def report(done: int, of: int) -> None:
            nonlocal share
            go_on(done, of)
            share = done / of if of else 1.0

        def read() -> None:
            try:
                coverage = Documents(documents).renew(report)
                future.set_result(f"The next message is answered with {coverage}.")
            except BaseException as error:  # a broken index or encoder fails in its own ways
                future.set_exception(ValueError(in_words(error)))

        future = Future[str]()
        self.conversation.start_thread(read, "")  # nobody waits for it when the program quits
        reading = asyncio.wrap_future(future)
        while not (await asyncio.wait([reading], timeout=_SHOW_AFTER))[0]:
            if self.conversation.chat.documents == documents:
                self.widgets.show_problem(f"Reading the documents: {share:.0%} … Esc stops it.")
        if self.conversation.chat.documents == documents:
            problem = reading.exception()
            self.widgets.show_problem("" if problem is None else str(problem))
            if problem is None:
                self.widgets.inform(reading.result())

    # The screen

    @Action(
        "Show this chat's replies as Markdown",
        command="markdown",
        argument="on|off",
        values=lambda _: ON_OFF,
        rare=True,
    )
    def action_markdown(self, argument: str) -> None:
        if argument not in ON_OFF:
            raise ActionError("Usage: /markdown on|off")
        self.widgets.show_markdown(argument == "on")

    @Action(
        "Change the colours",
        command="theme",
        also="colors dark light",
        argument="NAME",
        values=lambda chat: sorted(chat.app.available_themes),
        rare=True,
    )
    def action_theme(self, argument: str) -> None:
        if argument not in self.app.available_themes:
            raise ActionError(f"there is no theme {argument!r}; Tab lists them")
        self.app.theme = argument

    @Action(
        "Give a lecture: one of the program, or a TOML file",
        command="lesson",
        argument="NAME",
        values=lambda _: _lesson_names(),
        waits=True,
    )
    async def action_lesson(self, argument: str) -> None:
        from chatapp.dialogue.lessons.lesson import find_lesson

        await asyncio.to_thread(find_lesson, argument)  # whose faults are told here
        await self.run_action(f"app.lesson({argument!r})")

    @Action("Quit the program", command="quit", also="exit leave close")
    def action_quit(self) -> None:
        self.app.call_later(self.app.action_quit)


def _shown(value: float | None) -> str:
    """A sampling value in words: a seed may be unset."""
    return "random each time" if value is None else str(value)


def _documents(argument: str) -> DocumentSet:
    """Paths in shell syntax, and the search method after `method=`. Raises ValueError."""
    words = shlex.split(argument)
    methods = [word for word in words if word.startswith(_METHOD)]
    # The chat may be opened again from another folder.
    named = [os.path.expanduser(word) for word in words if word not in methods]
    paths = tuple(map(os.path.abspath, named))
    if not paths:
        raise ValueError("expected a file, a folder or a pattern")
    documents = DocumentSet(paths)
    return replace(documents, method=methods[-1].removeprefix(_METHOD)) if methods else documents


def _as_text(store: Store, chat_id: int, suffix: str) -> str:
    from chatapp.dialogue.export import as_text

    text = as_text([(store.chat(chat_id), store.path(chat_id))], suffix)
    if not text:
        raise ValueError("there is no complete exchange to train on")
    return text


def _write(store: Store, chat_id: int, path: Path) -> None:
    write_named(path, _as_text(store, chat_id, path.suffix))


class SlashCommands:
    """Completes and runs the commands of a chat; a long one runs in the background."""

    def __init__(self, chat: ChatActions) -> None:
        self._chat = chat
        self._by_name = {entry.command: entry for entry in chat.ACTIONS if entry.command}
        self._stop: threading.Event | None = None

    def complete(self, text: str) -> list[str]:
        """The completions of an unfinished command; rare ones once a letter is typed."""
        if "\n" in text or not text.startswith("/"):
            return []
        name, space, argument = text[1:].partition(" ")
        name = name.lower()
        if not space:
            return [
                f"/{entry.command}{' ' if entry.argument else ''}"
                for entry in self._by_name.values()
                if entry.command.startswith(name) and (name or not entry.rare)
            ]
        entry = self._by_name.get(name)
        if entry is None:
            return []
        return [
            f"/{name} {value}{entry.end}"
            for value in entry.values(self._chat)
            if value.startswith(argument) and value != argument
        ]

    def described(self, text: str, completions: Sequence[str]) -> list[CommandCompletion]:
        """Completions of a text with their descriptions.

        completions: of the text; if empty, the command in the text is described.
        """
        is_named = text.startswith("/") and text[1:].split(" ", 1)[0].lower() in self._by_name
        return [self._described(completion) for completion in completions or [text] * is_named]

    def _described(self, completion: str) -> CommandCompletion:
        entry = self._by_name.get(completion.strip()[1:].lower())
        if entry is None:
            return CommandCompletion(completion)
        return CommandCompletion(completion, entry.argument, entry.command_words)

    def _find(self, text: str) -> tuple[Action, str]:
        """The command in a text, and its argument. Raises ActionError."""
        match = COMMAND.match(text)
        name = match[1] if match else ""
        entry = self._by_name.get(name.lower())
        if entry is None:
            near = difflib.get_close_matches(name.lower(), self._by_name, n=1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists them all."
            raise ActionError(
                f"there is no command /{name}; {hint} A space before it sends it as a message."
            )
        argument = text[len(name) + 1 :].strip()
        if argument and not entry.argument:
            raise ActionError(f"Usage: /{name}, without an argument")
        if entry.argument and not argument and not entry.empty:
            raise ActionError(f"Usage: /{name} {entry.argument}")
        return entry, argument

    async def run(self, text: str) -> None:
        """Run a command; on failure, give the reason and the text back."""
        self._chat.widgets.show_problem("")
        with self._giving_back(text):
            entry, argument = self._find(text)
            if entry.waits:
                self._chat.refuse_while_busy()
            method = getattr(self._chat, f"action_{entry.method}")
            rest = method(argument) if entry.argument else method()
            if isawaitable(rest):
                rest = await rest
            if callable(rest) and self._stop is not None:
                raise ActionError("another command is still running; Esc stops it")
            if callable(rest):
                self._stop = threading.Event()
                self._chat.run_worker(self._finish(text, rest, self._stop))

    def stop(self) -> None:
        """Stop the running command."""
        if self._stop is not None:
            self._stop.set()

    async def _finish(self, text: str, rest: Rest, stop: threading.Event) -> None:
        try:
            with self._giving_back(text), self._chat.conversation.under_way(text):
                await rest(stop)
        finally:
            stop.set()  # also when the program quits: nobody waits for its thread
            self._stop = None

    @contextmanager
    def _giving_back(self, text: str) -> Iterator[None]:
        """Report why a command failed, and give its text back."""
        try:
            yield
        except (UserError, OSError) as error:
            self._chat.widgets.prompt.give_back_command(text)
            self._chat.widgets.show_problem(invalid_path(error) or str(error), text)
