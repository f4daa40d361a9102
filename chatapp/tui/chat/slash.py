"""Slash commands: typed after a slash in place of a message.

Invariant: a text is a command only when its first word is a slash and letters, so a path or a space
before the slash makes a message; and no text that looks like a command is sent to the model.
"""

import difflib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chatapp.common.userfiles import UserError, invalid_path
from chatapp.tui.chat import slash_actions as actions
from chatapp.tui.chat import slash_model, slash_tools
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.slash_actions import Action, Rest, SlashError
from chatapp.tui.widgets.prompt import Completion

_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+|$)", re.ASCII)

Values = Callable[[ChatControls], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    argument: "" without one, in brackets if optional. words: a description for the user. action:
    runs it with the argument, and returns the rest that takes time; raises
    UserError, and then changes nothing. values: the known values of the argument. empty: whether
    the action accepts an empty argument. end: follows a completed value.
    """

    name: str
    argument: str
    words: str
    action: Action
    values: Values = lambda chat: ()
    empty: bool = False
    end: str = ""


COMMANDS = (
    Command("help", "", "show all keys and commands", actions.act("help")),
    Command("new", "", "start a new chat", actions.act("new_chat")),
    Command("chats", "", "list, search and open chats", actions.act("history")),
    Command("branches", "", "show all branches of this chat", actions.act("branches")),
    Command(
        "compare",
        "[NAME=VALUE …]",
        "compare two replies; the right one with these settings",
        actions.compare,
        actions.differences,
        empty=True,
    ),
    Command("fork", "", "go on in a new chat with these messages", actions.fork),
    Command("find", "[TEXT]", "search in this chat; ↑ ↓ go through it", actions.find, empty=True),
    Command("times", "", "show or hide when messages were written", actions.act("times")),
    Command(
        "tag",
        "[WORD …]",
        "give this chat tags, which the list of chats finds; none removes them, alone, list them",
        actions.set_tags,
        lambda chat: (actions.NO_TAGS,),
        empty=True,
    ),
    Command("undo", "", "bring back the message deleted last", actions.act("undelete")),
    Command("title", "TITLE", "rename this chat", actions.set_title),
    Command(
        "system",
        "TEXT",
        "set the chat's instructions; default is the template's own",
        actions.set_instructions,
        lambda chat: (actions.TEMPLATES_OWN,),
        empty=True,
    ),
    Command(
        "set",
        "[NAME VALUE]",
        "change a sampling setting; alone, list them",
        actions.set_parameter,
        actions.parameter_names,
        empty=True,
        end=" ",
    ),
    Command(
        "preset",
        "NAME",
        "use a preset of sampling settings (see F2)",
        actions.use_preset,
        actions.preset_names,
    ),
    Command(
        "model",
        "[NAME]",
        "switch to another model; alone, list them",
        slash_model.load_model,
        lambda chat: chat.models.names(),
        empty=True,
    ),
    Command(
        "template",
        "NAME",
        "switch to another dialogue template",
        slash_model.use_template,
        slash_model.template_names,
    ),
    Command(
        "prompt",
        "[NAME]",
        "use a persona or prompt file; none removes it, alone, list them",
        actions.use_prompt,
        actions.prompt_names,
        empty=True,
    ),
    Command(
        "docs",
        "[PATH …]",
        "answer with passages of files, folders, patterns; none removes them",
        actions.use_documents,
        lambda chat: (actions.NO_DOCUMENTS,),
        empty=True,
    ),
    Command(
        "tools",
        "[NAME …]",
        "let the model call programs; none switches them off, alone, list them",
        slash_tools.use_tools,
        slash_tools.tool_names,
        empty=True,
    ),
    Command(
        "schema",
        "[FILE|JSON]",
        "answer with JSON that fits a schema; none ends it, alone, show it",
        slash_model.use_schema,
        lambda chat: (slash_model.NO_PARTS,),
        empty=True,
    ),
    Command(
        "markdown",
        "on|off",
        "show this chat's replies as Markdown",
        actions.set_markdown,
        lambda chat: ("on", "off"),
    ),
    Command(
        "think",
        "on|off",
        "let the model think before it replies, or not",
        slash_model.set_thinking,
        lambda chat: ("on", "off"),
    ),
    Command(
        "ablate",
        "[PART …]",
        "switch off heads, MLPs and layers: 3.5 4.mlp 6; none ends it",
        slash_model.switch_off,
        lambda chat: (slash_model.NO_PARTS,),
        empty=True,
    ),
    Command(
        "steer",
        "[NAME STRENGTH]",
        "add a direction of `chatapp steer` to replies: calm 0.1; none ends it",
        slash_model.steer,
        lambda chat: (slash_model.NO_PARTS, *slash_model.directions()),
        empty=True,
    ),
    Command("theme", "NAME", "change the colours", actions.use_theme, actions.theme_names),
    Command(
        "lesson",
        "NAME",
        "give a lecture: one of the program, or a TOML file",
        actions.give_lesson,
        actions.lesson_names,
    ),
    Command("learn", "", "fine-tune the model on your feedback", actions.learn),
    Command(
        "export",
        "[FILE]",
        "write the chat to a .md, .html, .json or .jsonl file; alone, copy it to the clipboard",
        actions.export,
        empty=True,
    ),
    Command("quit", "", "quit the program", actions.leave),
)
_BY_NAME = {command.name: command for command in COMMANDS}


def is_command(text: str) -> bool:
    """Whether a text is a command, not a message."""
    return _COMMAND.match(text) is not None


def completions(text: str, values: Callable[[Command], Iterable[str]]) -> list[str]:
    """The completions of an unfinished command, the most likely first.

    values: returns those of a command's argument.
    """
    if "\n" in text or not text.startswith("/"):
        return []
    name, space, argument = text[1:].partition(" ")
    name = name.lower()
    if not space:
        return [
            f"/{command.name}{' ' if command.argument else ''}"
            for command in COMMANDS
            if command.name.startswith(name)
        ]
    command = _BY_NAME.get(name)
    if command is None:
        return []
    return [
        f"/{name} {value}{command.end}"
        for value in values(command)
        if value.startswith(argument) and value != argument
    ]


def described(text: str, completions: Sequence[str]) -> list[Completion]:
    """Completions of a text with their descriptions.

    completions: of the text; if empty, the command in the text is described.
    """
    is_named = text.startswith("/") and text[1:].split(" ", 1)[0].lower() in _BY_NAME
    return [_described(completion) for completion in completions or [text] * is_named]


def _described(completion: str) -> Completion:
    command = _BY_NAME.get(completion.strip()[1:].lower())
    if command is None:
        return Completion(completion)
    return Completion(completion, command.argument, command.words)


def command_in(text: str) -> tuple[Command, str]:
    """The command in a text, and its argument. Raises SlashError."""
    match = _COMMAND.match(text)
    name = match[1] if match else ""
    command = _BY_NAME.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists them all."
        raise SlashError(
            f"there is no command /{name}; {hint} A space before it sends it as a message."
        )
    argument = text[len(name) + 1 :].strip()
    if argument and not command.argument:
        raise SlashError(f"Usage: /{name}, without an argument")
    if command.argument and not argument and not command.empty:
        raise SlashError(f"Usage: /{name} {command.argument}")
    return command, argument


class SlashCommands:
    """Runs commands on a chat; a long one runs in the background."""

    def __init__(self, chat: ChatControls) -> None:
        self._chat = chat
        self._stop: threading.Event | None = None

    def complete(self, text: str) -> list[str]:
        """The completions of an unfinished command, the most likely first."""
        return completions(text, lambda command: command.values(self._chat))

    async def run(self, text: str) -> None:
        """Run a command; on failure, give the reason and the text back."""
        self._chat.widgets.show_problem("")
        with self._giving_back(text):
            command, argument = command_in(text)
            rest = await command.action(self._chat, argument)
            if rest is not None and self._stop is not None:
                raise SlashError("another command is still running; Esc stops it")
            if rest is not None:
                self._stop = threading.Event()
                self._chat.screen.run_worker(self._finish(text, rest, self._stop))

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
