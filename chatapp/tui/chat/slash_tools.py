"""The actions of the slash commands on the tools of a chat."""

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from chatapp.common.userfiles import UserError
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.chat.slash_actions import Rest, SlashError, refuse_while_busy

if TYPE_CHECKING:
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
