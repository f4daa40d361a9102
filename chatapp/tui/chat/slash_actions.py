"""The actions of the slash commands, and the values of their arguments.

Those that change the model or its template are in `slash_model`.

Invariant: an action is carried out completely, or fails with a reason and changes nothing.
"""

import asyncio
import os
import shlex
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.common.parameters import PARAMETERS
from chatapp.common.paths import presets_path
from chatapp.common.presets import PresetsError, no_preset, read_presets
from chatapp.common.userfiles import UserError, write_named
from chatapp.dialogue.store import Store
from chatapp.tui.chat.controls import ChatControls
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.screens.library import choice_of, choosable_names

if TYPE_CHECKING:
    from chatapp.tasks.files.documents import DocumentSet


TEMPLATES_OWN = "default"
NO_DOCUMENTS = "none"

_METHOD = "method="

_SHOW_AFTER = 1.0
"""Seconds after which a command shows its progress, and again."""

Rest = Callable[[threading.Event], Awaitable[None]]
"""The rest of a long command; the event is set to stop it."""

Action = Callable[[ChatControls, str], Awaitable[Rest | None]]
"""Runs a command on a chat with its argument; returns the rest that takes time."""


class SlashError(UserError):
    """Why a command failed, in one sentence."""


def act(action: str) -> "Action":
    """A command with the effect of a key of the screen."""

    async def run(chat: ChatControls, argument: str) -> None:
        await chat.screen.run_action(action)

    return run


async def compare(chat: ChatControls, argument: str) -> None:
    refuse_while_busy(chat)
    await chat.screen.run_action(f"compare({argument!r})")


def differences(chat: ChatControls) -> list[str]:
    """The possible differences of the right one of two replies."""
    settings = ("template", "precision", *parameter_names(chat))
    models = [f"model={shlex.quote(model)}" for model in chat.models.names()]
    return [*models, *(f"{setting}=" for setting in settings)]


async def give_lesson(chat: ChatControls, argument: str) -> None:
    from chatapp.dialogue.lessons.lesson import find_lesson

    refuse_while_busy(chat)
    await asyncio.to_thread(find_lesson, argument)  # whose faults are told here
    await chat.screen.run_action(f"app.lesson({argument!r})")


def lesson_names(chat: ChatControls) -> tuple[str, ...]:
    from chatapp.dialogue.lessons.lesson import NAMES

    return NAMES


async def leave(chat: ChatControls, argument: str) -> None:
    chat.screen.app.call_later(chat.screen.app.action_quit)


async def set_title(chat: ChatControls, argument: str) -> None:
    chat_id = chat.conversation.chat.id
    if chat_id is None:
        raise SlashError("a chat can be renamed once it has a message")
    chat.conversation.chat.store.rename_chat(chat_id, " ".join(argument.split()))
    chat.widgets.show_title()


async def set_instructions(chat: ChatControls, argument: str) -> None:
    conversation = chat.conversation
    if not argument:
        current = conversation.chat.basis.system or TEMPLATES_OWN
        chat.widgets.prompt.give_back(f"/system {current}")
        return
    refuse_while_busy(chat)
    system = None if argument == TEMPLATES_OWN else argument
    conversation.chat.hold_with(replace(conversation.chat.basis, system=system))
    conversation.measure()
    chat.widgets.inform("These instructions apply from the next message on.")


async def set_parameter(chat: ChatControls, argument: str) -> None:
    if not argument:
        chat.widgets.show_page("Sampling settings", _values_in_words(chat.conversation))
        return
    # As in /compare, with the value after an equals sign.
    name, _, text = argument.replace("=", " ").partition(" ")
    try:
        sampling = chat.conversation.choices.sampling.changed(name, text.strip())
    except ValueError as error:
        raise SlashError(str(error)) from None
    chat.conversation.set_sampling(sampling)
    shown = _shown(getattr(sampling, name))
    chat.widgets.inform(f"{name} is {shown} from the next message on.")


def _shown(value: float | None) -> str:
    """A sampling value in words: a seed may be unset."""
    return "random each time" if value is None else str(value)


def _values_in_words(conversation: Conversation) -> str:
    """Every sampling value with its origin; one line each."""
    choices = conversation.choices
    return "\n".join(
        f"{name} {_shown(getattr(choices.sampling, name))} ({origin})"
        for name, origin in choices.origins.items()
    )


def parameter_names(chat: ChatControls) -> list[str]:
    return list(PARAMETERS)


async def use_preset(chat: ChatControls, argument: str) -> None:
    try:
        presets = read_presets(presets_path())
    except PresetsError as error:
        raise SlashError(str(error)) from None
    if argument not in presets:
        raise SlashError(no_preset(argument, list(presets)))
    chat.conversation.set_sampling(presets[argument])
    chat.widgets.inform(f"The next message uses preset {argument!r}.")


def preset_names(chat: ChatControls) -> Iterable[str]:
    with suppress(PresetsError):
        return list(read_presets(presets_path()))
    return []


async def learn(chat: ChatControls, argument: str) -> None:
    refuse_while_busy(chat)
    if not chat.conversation.chat.store.is_kept:
        raise SlashError("This chat isn't saved, so there is no feedback to learn from.")
    await chat.screen.run_action("learn")


async def use_prompt(chat: ChatControls, argument: str) -> Rest | None:
    refuse_while_busy(chat)
    if not argument:
        await chat.screen.run_action("prompts")
        return None
    return partial(_use_prompt, chat, argument)


async def _use_prompt(chat: ChatControls, name: str, cancel: threading.Event) -> None:
    asked_for = chat.conversation.chat
    choice = await asyncio.to_thread(choice_of, name)
    if chat.conversation.chat is asked_for and not cancel.is_set():
        refuse_while_busy(chat)  # a message may have been sent in the meantime
        chat.hold_with(choice)


def prompt_names(chat: ChatControls) -> Iterable[str]:
    from chatapp.prompting.examples import PromptError

    with suppress(PromptError):
        return choosable_names()
    return []


async def use_documents(chat: ChatControls, argument: str) -> Rest | None:
    from chatapp.tasks.files.documents import DocumentsError

    refuse_while_busy(chat)
    if not argument:
        documents = chat.conversation.chat.documents
        used = ", ".join(documents.paths) if documents is not None else "none"
        chat.widgets.inform(f"Documents of this chat: {used}")
        return None
    try:
        documents = None if argument == NO_DOCUMENTS else _documents(argument)
    except (DocumentsError, ValueError) as error:
        raise SlashError(f"/docs: {error}") from None
    chat.conversation.chat.use_documents(documents)
    if documents is None:
        chat.widgets.inform("The documents are removed.")
        return None
    chat.widgets.inform("Reading the documents …")
    return partial(_read_documents, chat, documents)


async def _read_documents(
    chat: ChatControls, documents: "DocumentSet", cancel: threading.Event
) -> None:
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
    chat.conversation.start_thread(read, "")  # nobody waits for it when the program quits
    reading = asyncio.wrap_future(future)
    while not (await asyncio.wait([reading], timeout=_SHOW_AFTER))[0]:
        if chat.conversation.chat.documents == documents:
            chat.widgets.show_problem(f"Reading the documents: {share:.0%} … Esc stops it.")
    if chat.conversation.chat.documents == documents:
        problem = reading.exception()
        chat.widgets.show_problem("" if problem is None else str(problem))
        if problem is None:
            chat.widgets.inform(reading.result())


def _documents(argument: str) -> "DocumentSet":
    """Paths in shell syntax, and the search method after `method=`. Raises ValueError."""
    from chatapp.tasks.files.documents import DocumentSet

    words = shlex.split(argument)
    methods = [word for word in words if word.startswith(_METHOD)]
    # The chat may be opened again from another folder.
    named = [os.path.expanduser(word) for word in words if word not in methods]
    paths = tuple(map(os.path.abspath, named))
    if not paths:
        raise ValueError("expected a file, a folder or a pattern")
    documents = DocumentSet(paths)
    return replace(documents, method=methods[-1].removeprefix(_METHOD)) if methods else documents


async def set_markdown(chat: ChatControls, argument: str) -> None:
    if argument not in ("on", "off"):
        raise SlashError("Usage: /markdown on|off")
    chat.widgets.show_markdown(argument == "on")


async def use_theme(chat: ChatControls, argument: str) -> None:
    if argument not in chat.screen.app.available_themes:
        raise SlashError(f"there is no theme {argument!r}; Tab lists them")
    chat.screen.app.theme = argument


def theme_names(chat: ChatControls) -> list[str]:
    return sorted(chat.screen.app.available_themes)


async def export(chat: ChatControls, argument: str) -> Rest:
    chat_id = chat.conversation.chat.id
    if chat_id is None:
        raise SlashError("there is nothing to export yet")
    if not argument:
        return partial(_copy, chat, chat_id)
    return partial(_export, chat, chat_id, Path(argument))


async def _copy(chat: ChatControls, chat_id: int, cancel: threading.Event) -> None:
    text = await asyncio.to_thread(_as_text, chat.conversation.chat.store, chat_id, ".md")
    chat.screen.app.copy_to_clipboard(text)
    chat.widgets.inform("The chat is copied to the clipboard, as Markdown.")


async def _export(chat: ChatControls, chat_id: int, path: Path, cancel: threading.Event) -> None:
    try:
        path = path.expanduser()
        await asyncio.to_thread(_write, chat.conversation.chat.store, chat_id, path)
    except FileExistsError:
        raise SlashError(f"{path}: this file exists; expected a new name") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SlashError(f"{path}: cannot be written: {reason}") from None
    chat.widgets.inform(f"The chat is exported to {path}.")


def _as_text(store: Store, chat_id: int, suffix: str) -> str:
    from chatapp.dialogue.export import as_text

    return as_text(store.chat(chat_id), store.path(chat_id), suffix)


def _write(store: Store, chat_id: int, path: Path) -> None:
    write_named(path, _as_text(store, chat_id, path.suffix))


def refuse_while_busy(chat: ChatControls) -> None:
    """Raise SlashError while a reply is being written."""
    if chat.conversation.turn is not None:
        raise SlashError("a reply is being written; Esc stops it")


NO_TAGS = "none"


async def set_tags(chat: ChatControls, argument: str) -> None:
    chat_id, store = chat.conversation.chat.id, chat.conversation.chat.store
    if chat_id is None:
        raise SlashError("a chat can have tags once it has a message")
    if not argument:
        chat.widgets.inform(f"Tags of this chat: {store.chat(chat_id).tags or 'none'}")
        return
    words = [] if argument == NO_TAGS else argument.replace(",", " ").split()
    tags = " ".join(dict.fromkeys(f"#{word.lstrip('#')}" for word in words if word.strip("#")))
    store.set_tags(chat_id, tags)
    chat.widgets.show_title()
    chat.widgets.inform(f"Tags of this chat: {tags or 'none'}")


async def fork(chat: ChatControls, argument: str) -> None:
    await chat.fork(None)


async def find(chat: ChatControls, argument: str) -> None:
    chat.widgets.find.open(argument)
