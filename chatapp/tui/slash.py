"""Slash commands: what the user writes after a slash in place of a message.

The one invariant: a text is a command only when its first word is a slash and letters, so
that a path or a space before the slash is a message; and nothing that looks like a command
but is none is ever sent to the model.
"""

import asyncio
import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.engine.model import Sampling
from chatapp.paths import presets_path
from chatapp.presets import PresetsError, no_preset, read_presets
from chatapp.settings import parameter
from chatapp.tui.library import chosen, names
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.tui.chat import ChatScreen

_COMMAND = re.compile(r"/([a-z]+)(?:\s+|$)")
_TEMPLATES_OWN = "default"


class SlashError(UserError):
    """Why a command cannot be carried out, in one sentence."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it is followed by, and what it does."""

    name: str
    argument: str
    words: str


COMMANDS = (
    Command("help", "", "show all keys and commands"),
    Command("new", "", "start a new chat"),
    Command("chats", "", "list, search and open chats"),
    Command("branches", "", "show all branches of this chat"),
    Command("compare", "[NAME=VALUE …]", "two replies, the right one with these settings"),
    Command("title", "TITLE", "call the chat so"),
    Command("system", "TEXT", "instructions of this chat; default is the template's own"),
    Command("set", "NAME VALUE", "change how replies are drawn, as F2 does"),
    Command("preset", "NAME", "draw replies as a preset of F2 says"),
    Command("model", "[NAME]", "go on with another model; alone it lists them"),
    Command("template", "NAME", "go on in another dialogue template"),
    Command("prompt", "[NAME]", "a persona or prompt file; none takes it off, alone it lists them"),
    Command("markdown", "on|off", "lay out this chat's replies as Markdown"),
    Command("theme", "NAME", "other colours, from now on"),
    Command("export", "FILE", "write the chat to a .md, .json or .jsonl file"),
    Command("quit", "", "leave the program"),
)
_BY_NAME = {command.name: command for command in COMMANDS}


def is_command(text: str) -> bool:
    """Whether a text is meant for the program and not for the model."""
    return _COMMAND.match(text) is not None


def completions(text: str, arguments: "Callable[[str], Iterable[str]]") -> list[str]:
    """What the text on the way to a command could become, the likeliest first.

    arguments: gives the values that a command with this name can take.
    """
    if "\n" in text or not text.startswith("/"):
        return []
    name, space, argument = text[1:].partition(" ")
    if not space:
        return [
            f"/{each.name}{' ' if each.argument else ''}"
            for each in COMMANDS
            if each.name.startswith(name)
        ]
    if name not in _BY_NAME:
        return []
    end = " " if name == "set" else ""
    return [
        f"/{name} {value}{end}"
        for value in arguments(name)
        if value.startswith(argument) and value != argument
    ]


def usage(text: str) -> Command | None:
    """The command that a text names, while it is being written."""
    return _BY_NAME.get(text[1:].split(" ", 1)[0]) if text.startswith("/") else None


class SlashCommands:
    """Carries commands out on the chat."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat

    def arguments(self, name: str) -> list[str]:
        """The values that a command can take, as far as they can be listed."""
        if name == "set":
            return [field.name for field in fields(Sampling)]
        if name == "preset":
            with suppress(PresetsError):
                return list(read_presets(presets_path()))
        if name == "compare":
            settings = ("template", "precision", *(field.name for field in fields(Sampling)))
            models = [f"model={shlex.quote(model)}" for model in self._chat.models()]
            return [*models, *(f"{setting}=" for setting in settings)]
        if name == "markdown":
            return ["on", "off"]
        if name == "theme":
            return sorted(self._chat.app.available_themes)
        if name == "system":
            return [_TEMPLATES_OWN]
        if name == "prompt":
            from chatapp.prompting.examples import PromptError

            with suppress(PromptError):
                return names()
        if name == "template":
            from chatapp.prompting.template import TEMPLATES

            return list(TEMPLATES)
        return self._chat.models() if name == "model" else []

    async def run(self, text: str) -> None:
        """Carry out a command. Raises SlashError or StoreError, and then nothing was done."""
        found = _COMMAND.match(text)
        name = found[1] if found else ""
        command = _BY_NAME.get(name)
        if command is None:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            hint = f"did you mean /{near[0]}?" if near else "/help lists them all."
            raise SlashError(
                f"there is no command /{name}; {hint} A space before it sends it as a message."
            )
        argument = text[len(name) + 1 :].strip()
        if argument and not command.argument:
            raise SlashError(f"/{name} stands alone")
        optional = command.argument.startswith("[") or name == "system"
        if command.argument and not argument and not optional:
            raise SlashError(f"/{name} is followed by {command.argument}: {command.words}")
        await getattr(self, f"_{name}")(argument)

    async def _help(self, argument: str) -> None:
        self._chat.action_help()

    async def _new(self, argument: str) -> None:
        await self._chat.action_new_chat()

    async def _chats(self, argument: str) -> None:
        self._chat.action_history()

    async def _branches(self, argument: str) -> None:
        self._chat.action_branches()

    async def _compare(self, argument: str) -> None:
        self._refuse_while_busy()
        self._chat.action_compare(argument)

    async def _quit(self, argument: str) -> None:
        self._chat.app.call_later(self._chat.app.action_quit)

    async def _title(self, argument: str) -> None:
        chat_id = self._chat.conversation.chat_id
        if chat_id is None:
            raise SlashError("a chat is stored, and can have a title, from its first message on")
        self._chat.store.rename_chat(chat_id, " ".join(argument.split()))
        self._chat.show_title()

    async def _system(self, argument: str) -> None:
        conversation = self._chat.conversation
        if not argument:
            current = conversation.system() or _TEMPLATES_OWN
            self._chat.write_instead(f"/system {current}")
            return
        self._refuse_while_busy()
        conversation.set_system(None if argument == _TEMPLATES_OWN else argument)
        conversation.measure()
        self._chat.inform("The next message is answered under these instructions.")

    async def _set(self, argument: str) -> None:
        # As in /compare, where a value stands after an equals sign.
        name, _, text = argument.replace("=", " ").partition(" ")
        try:
            value = parameter(name, text.strip())
        except ValueError as error:
            raise SlashError(str(error)) from None
        conversation = self._chat.conversation
        conversation.sampling = replace(conversation.sampling, **{name: value})  # type: ignore[arg-type]
        said = "drawn anew each time" if value is None else value
        self._chat.inform(f"{name} is {said} from the next message on.")

    async def _preset(self, argument: str) -> None:
        try:
            presets = read_presets(presets_path())
        except PresetsError as error:
            raise SlashError(str(error)) from None
        if argument not in presets:
            raise SlashError(no_preset(argument, list(presets)))
        self._chat.conversation.sampling = presets[argument]
        self._chat.inform(f"The next message is answered with the values of {argument!r}.")

    async def _model(self, argument: str) -> None:
        self._refuse_while_busy()
        if argument:
            self._chat.load_other(argument)
        else:
            self._chat.action_models()

    async def _template(self, argument: str) -> None:
        self._refuse_while_busy()
        try:
            self._chat.conversation.use_template(argument)
        except ValueError as error:
            raise SlashError(str(error)) from None
        self._chat.show_model()

    async def _prompt(self, argument: str) -> None:
        from chatapp.prompting.examples import PromptError

        self._refuse_while_busy()
        if not argument:
            self._chat.action_prompts()
            return
        try:
            choice = await asyncio.to_thread(chosen, argument)
        except PromptError as error:
            raise SlashError(str(error)) from None
        self._chat.hold_with(choice)

    async def _markdown(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise SlashError(f"/markdown is followed by {argument!r}; expected on or off")
        self._chat.show_markdown(argument == "on")

    async def _theme(self, argument: str) -> None:
        if argument not in self._chat.app.available_themes:
            raise SlashError(f"there is no theme {argument!r}; Tab lists them")
        self._chat.app.theme = argument

    async def _export(self, argument: str) -> None:
        chat_id = self._chat.conversation.chat_id
        if chat_id is None:
            raise SlashError("there is nothing to export yet")
        path = Path(argument).expanduser()
        try:
            await asyncio.to_thread(self._write, chat_id, path)
        except FileExistsError:
            raise SlashError(f"{path}: this file exists; expected a new name") from None
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SlashError(f"{path}: cannot be written: {reason}") from None
        self._chat.inform(f"The chat is in {path}.")

    def _write(self, chat_id: int, path: Path) -> None:
        from chatapp.dialogue.export import as_text

        store = self._chat.store
        text = as_text(store.chat(chat_id), store.path(chat_id), path.suffix)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)

    def _refuse_while_busy(self) -> None:
        if self._chat.conversation.order is not None:
            raise SlashError("a reply is being written; Esc stops it")
