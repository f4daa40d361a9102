"""Slash commands: actions typed after a slash in place of a message."""

import difflib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable

from chatapp.common.userfiles import UserError, invalid_path
from chatapp.tui.chat.actions import ChatActions, Rest
from chatapp.tui.platform.actions import COMMAND, Action, ActionError
from chatapp.tui.widgets.prompt import Completion


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

    def described(self, text: str, completions: Sequence[str]) -> list[Completion]:
        """Completions of a text with their descriptions.

        completions: of the text; if empty, the command in the text is described.
        """
        is_named = text.startswith("/") and text[1:].split(" ", 1)[0].lower() in self._by_name
        return [self._described(completion) for completion in completions or [text] * is_named]

    def _described(self, completion: str) -> Completion:
        entry = self._by_name.get(completion.strip()[1:].lower())
        if entry is None:
            return Completion(completion)
        return Completion(completion, entry.argument, entry.command_words)

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
