"""The inputs of `chatapp ask`: message, files and standard input, instructions, tools, and the
chat.

Invariant: bytes that are no text are refused in a sentence that names their place. A tool that
needs permission is named in an option, or the user is asked on the terminal; without one it does
not run.
"""

import os
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.commands.console import MOST_INPUT, complain, decoded, standard_input
from chatapp.commands.loading import open_store
from chatapp.common.foreign import printable
from chatapp.common.userfiles import (
    UserError,
    missing_path,
    open_named,
    read_text,
    reason,
    suggestion,
)

if TYPE_CHECKING:
    from chatapp.dialogue.chat import Ask, Decision
    from chatapp.dialogue.store.rows import StoredChat
    from chatapp.dialogue.tool_calls import Toolbox
    from chatapp.dialogue.tools.permission import PermissionRequest
    from chatapp.dialogue.writers.prompt import ToolChoice
    from chatapp.engine.model import LanguageModel
    from chatapp.prompting.chat_template import Template


def message_of(question: str | None, files: Sequence[Path]) -> str:
    """A question, the contents of files under their names, and standard input, in that order."""
    parts = [question or "", *map(_named, files), standard_input()]
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UserError("there is no question; pass it in quotes or on standard input")
    return text


def instructions(
    system: str | None, persona: str | None, chat: "StoredChat | None"
) -> tuple[str | None, str]:
    """The instructions and the template for a question; None and "" for the defaults.

    system: a file's path, or the text itself. chat: the continued one, with its own template.
    """
    if chat is not None:
        return None, chat.asked_template
    if persona is None:
        return (None if system is None else _text_or_file(system)), ""
    if system is not None:
        raise UserError("use either --system or --persona, not both")
    from chatapp.tasks.files.library import personas
    from chatapp.tasks.files.promptfile import Persona, load_for_chat

    known = personas()
    if persona not in known:
        raise UserError(f"there is no persona {persona!r}{suggestion(persona, known)}")
    chosen = load_for_chat(known[persona])
    if not isinstance(chosen, Persona):
        raise UserError(f"{known[persona]}: is a prompt file, expected a persona")
    return chosen.system, chosen.template


def chat_to_go_on_with(last: bool, chat_id: int | None) -> "StoredChat | None":
    """The chat with an id, or the last one; None for neither. Raises UserError."""
    if not last and chat_id is None:
        return None
    if last and chat_id is not None:
        raise UserError("use either --continue or --chat, not both")
    with open_store() as store:
        if chat_id is None:
            newest = store.chats(limit=1)
            if not newest:
                raise UserError("there is no chat to continue yet")
            chat_id = newest[0].id
        chat = store.chat(chat_id)
    if chat.deleted is not None:
        raise UserError(f"chat {chat_id} is deleted; you can restore it in the list of chats")
    return chat


def _text_or_file(text: str) -> str:
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        return read_text(Path(path)).strip()
    if " " not in text and (problem := missing_path(text, "file")):
        raise UserError(problem)
    return text


def _named(file: Path) -> str:
    """A file's text under its name."""
    try:
        with open_named(file.expanduser()) as content:
            text = decoded(content.read(MOST_INPUT + 1), str(file))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{file}: cannot be read: {reason(error)}") from None
    return f"{file.name}:\n{text.strip()}" if text.strip() else ""


def names_in(option: str) -> list[str]:
    """The names in an option, separated by commas."""
    return [name.strip() for name in option.split(",") if name.strip()]


def allowed_names(names: Collection[str], tools: Collection[str]) -> Collection[str]:
    """The tools that need no permission. Raises UserError for one that is not on, where some are,
    and for one that asks for every call.
    """
    if not names:
        return names
    from chatapp.dialogue.tools.registry import find_tools

    known = find_tools().tools
    for name in names:
        if name in known and known[name].asks_each_time:
            raise UserError(f"--yes-tools names {name!r}, which shows every call and asks for it")
        # A tool of a server may be named separately if all of the server's are on.
        if tools and not any(f"{name}_".startswith(f"{tool}_") for tool in tools):
            raise UserError(f"--yes-tools names {name!r}, which is not among --tools")
    return names


def asking(allowed: Collection[str]) -> "Ask":
    """What allows a tool if it or its server is in `allowed`, and else asks on the terminal."""

    def ask(request: "PermissionRequest", cancel: threading.Event) -> "Decision":
        tool = request.tool
        if not tool.asks_each_time and (tool.name in allowed or tool.server in allowed):
            return "once"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return "no"
        question = f"\n{request.text(is_expanded=True)}\n[y/N] "
        print(printable(question), end="", file=sys.stderr, flush=True)
        with suppress(ImportError):  # Windows
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # keys typed before are no answer
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return "once" if sys.stdin.readline().strip().lower() in ("y", "yes") else "no"
        except KeyboardInterrupt:
            cancel.set()
            return "no"
        finally:
            signal.signal(signal.SIGINT, before)

    return ask


def toolbox_of(
    model: "LanguageModel",
    template: "Template",
    names: Collection[str],
    allowed: Collection[str],
    tool_choice: "ToolChoice | None",
) -> "Toolbox":
    """The tools for one question. tool_choice: None for the model's default. Raises UserError for a
    tool that does not exist, or that the model cannot call.
    """
    from chatapp.dialogue.tool_calls import Toolbox, chooser_of, out_of_reach
    from chatapp.dialogue.tools.permission import PermissionRequest
    from chatapp.dialogue.tools.registry import find_tools
    from chatapp.dialogue.writers.choosing import writer_for

    registry = find_tools()
    tools = registry.chosen(names)
    for problem in registry.problems_of(names):
        complain(problem)
    writer = writer_for(model, template)
    writer.tool_choice = tool_choice or writer.tool_choice
    if problem := out_of_reach(writer, list(tools)):
        raise UserError(problem)
    ask = asking(allowed)
    return Toolbox(
        tools,
        lambda tool, arguments, cancel: ask(PermissionRequest(tool, arguments), cancel) != "no",
        chooser_of(model, writer, tools),
    )
