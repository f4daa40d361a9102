"""The actions of the slash commands on the tools of a chat, and on the prompts of their servers.

Invariant: a prompt of a server is put before the cursor, never sent: the user reads it first.
"""

import asyncio
import shlex
import threading
from functools import partial
from typing import TYPE_CHECKING

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.slash_actions import Rest, SlashError, refuse_while_busy

if TYPE_CHECKING:
    from chatapp.dialogue.tools.mcp_servers import ServerPrompt
    from chatapp.dialogue.tools.registry import Registry

NO_TOOLS = "none"


async def use_tools(chat: ChatControls, argument: str) -> Rest:
    refuse_while_busy(chat)
    names = argument.replace(",", " ").split()
    if not names:
        return partial(_list_tools, chat)
    return partial(_choose_tools, chat, [] if names == [NO_TOOLS] else names)


async def _list_tools(chat: ChatControls, cancel: threading.Event) -> None:
    registry = await _registry(chat)
    if registry.servers:
        chat.widgets.inform(f"Asking {', '.join(registry.servers)} for tools …")
    # On a thread, because servers may take long.
    there_are, problems = await asyncio.to_thread(registry.list_names, cancel)
    if _was_left(chat, registry):
        return
    on = chat.conversation.chat.tools
    others = [name for name in there_are if name not in on]
    words = f"On: {', '.join(on) or 'none'}. Off: {', '.join(others) or 'none'}."
    chat.widgets.inform(words)
    chat.widgets.show_problem(" ".join(f"{problem}." for problem in problems))


async def _choose_tools(chat: ChatControls, names: list[str], cancel: threading.Event) -> None:
    registry = await _registry(chat)
    try:
        chosen = await asyncio.to_thread(registry.chosen, names, cancel)
        session = chat.conversation.session
        if session is None:
            raise UserError("the model is not loaded yet")
        if not _was_left(chat, registry):
            refuse_while_busy(chat)  # a message may have been sent in the meantime
            await asyncio.to_thread(session.set_tools, list(chosen))
    except UserError as error:
        if _was_left(chat, registry):
            return
        raise SlashError(f"/tools: {error}") from None
    if not _was_left(chat, registry):
        chat.widgets.inform(f"Tools of this chat: {', '.join(session.chat.tools) or 'none'}")
        problems = registry.problems_of(names)
        chat.widgets.show_problem(" ".join(f"{problem}." for problem in problems))


def _was_left(chat: ChatControls, registry: "Registry") -> bool:
    """Whether another chat has been opened since the search for tools."""
    return chat.conversation.chat.servers is not registry.running


async def _registry(chat: ChatControls) -> "Registry":
    """The tools available to the chat. Raises PromptError when its prompt file cannot be read."""
    session = chat.conversation.session
    # On a thread, because the prompt file may have to be read.
    return await asyncio.to_thread((session or chat.conversation.chat).find_tools)


def tool_names(chat: ChatControls) -> list[str]:
    """For completion while typing, so no prompt file is read."""
    session, own = chat.conversation.session, chat.conversation.chat
    registry = own.find_tools() if session is None else session.find_tools_without_reading()
    return [*registry.tools, *registry.servers, NO_TOOLS]


async def use_server_prompt(name: str, chat: ChatControls, argument: str) -> Rest:
    """Put the prompt of a server, which may have to be asked for it, into the prompt."""
    return partial(_fetch_prompt, chat, name, argument)


async def _fetch_prompt(
    chat: ChatControls, name: str, argument: str, cancel: threading.Event
) -> None:
    registry = await _registry(chat)
    prompt = await asyncio.to_thread(registry.prompt, name, cancel)
    if prompt is None:
        raise SlashError(
            f"no server has the prompt {name}; a space before the / sends it as a message"
        )
    text = await asyncio.to_thread(prompt.text, _values(prompt, argument), cancel)
    if not _was_left(chat, registry):
        chat.widgets.prompt.give_back(text)


def usage_of(prompt: "ServerPrompt") -> str:
    """The arguments of a server's prompt as the user writes them."""
    words = (name if needed else f"[{name}]" for name, needed in prompt.arguments.items())
    if len(prompt.arguments) > 1:
        words = (
            f"{name}=…" if needed else f"[{name}=…]" for name, needed in prompt.arguments.items()
        )
    return printable(" ".join(words))


def _values(prompt: "ServerPrompt", argument: str) -> dict[str, str]:
    """The values of a prompt's arguments: NAME=VALUE …, or the text for an only one."""
    names = list(prompt.arguments)
    try:
        words = [argument] if len(names) == 1 and argument else shlex.split(argument)
    except ValueError as error:  # a quote that is not closed
        raise SlashError(f"/{prompt.name}: {error}") from None
    if len(names) == 1:
        words = [f"{names[0]}={word.removeprefix(f'{names[0]}=')}" for word in words]
    pairs = [word.partition("=") for word in words]
    values = {name: value for name, equals, value in pairs if equals}
    missing = any(needed and name not in values for name, needed in prompt.arguments.items())
    if missing or len(values) < len(words) or not values.keys() <= set(names):
        raise SlashError(f"Usage: /{prompt.name} {usage_of(prompt)}".rstrip())
    return values
