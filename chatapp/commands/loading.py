"""Loads prompt files, models with their parameters, and chats for the commands."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.commands.console import complain, status
from chatapp.common.parameters import known_values
from chatapp.common.paths import background_path, database_path
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.parameters import Choices
    from chatapp.common.settings import Settings
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredChat
    from chatapp.engine.model import LanguageModel
    from chatapp.rows.examples import Pool


def prompt_path(name: str) -> Path:
    """The prompt file of that name; see `library.find_task`. Raises UserError."""
    from chatapp.tasks.files.library import find_task

    return find_task(name, complain)


def report_pool(pool: "Pool", *, strict: bool) -> None:
    """Report rows of a pool that repeat or contradict others, or were left out.

    Raises UserError when `strict`, and an input has two labels.
    """
    if pool.repeats:
        rows = "row repeats" if pool.repeats == 1 else "rows repeat"
        complain(f"{pool.source}: {pool.repeats} {rows} another one; duplicates are ignored")
    for reason, count in pool.dropped.items():
        complain(f"{pool.source}: rows dropped, {reason}: {count:,}")
    if pool.conflicts:
        more = len(pool.conflicts) - 1
        sentence = pool.conflicts[0] + (f", and so on for {more} more" if more else "")
        if strict:
            raise UserError(f"{sentence}; without --strict such rows are used unchanged")
        complain(f"{sentence}; these rows are used unchanged; --strict refuses them")


def load(
    name: str,
    precision: str,
    device: str,
    concurrency: int | None = None,
    *,
    may_be_served: bool = False,
) -> "LanguageModel":
    """Load a model, with a note on a terminal. Raises ModelError.

    concurrency: the most requests at a time, for a model on a server. may_be_served: whether it may
    be that of a `chatapp api` that runs.
    """
    if may_be_served and background_path().exists():  # else nothing of a server is imported
        from chatapp.engine.models.running import load_served

        if (served := load_served(name, precision, device)) is not None:
            return served
    from chatapp.engine.backends.remote.remote_model import RemoteModel
    from chatapp.engine.files.model_files import read_generation_config
    from chatapp.engine.models.loading import load_model
    from chatapp.engine.models.resolving import note_model

    def say(sentence: str) -> None:
        status("")
        complain(sentence)

    status(f"Loading {name} …")
    try:
        model = load_model(name, precision=precision, device=device, say=say)
    finally:
        status("")
    note_model(name)
    if isinstance(model, RemoteModel):
        model.concurrency = concurrency or model.concurrency
        if model.remark:
            complain(model.remark)
    elif concurrency is not None:
        raise UserError(f"--concurrency is for a model on a server, and {name} is on this machine")
    for sentence in read_generation_config(model.files).ignored:
        complain(sentence)
    return model


def choices_for(
    model: "LanguageModel", settings: "Settings", chat: "StoredChat | None" = None
) -> "Choices":
    """The sampling parameters of an answer, with their origins.

    chat: the continued one, whose own parameters yield only to flags.
    """
    from chatapp.engine.files.model_files import read_generation_config

    choices = settings.choices(read_generation_config(model.files).sampling)
    if chat is None:
        return choices
    flags = {name for name, origin in settings.origins.items() if origin == "flag"}
    own = known_values(chat.chosen)
    return choices.of("this chat", {name: own[name] for name in own if name not in flags})


@contextmanager
def open_store() -> Iterator["Store"]:
    """The user's chats; their daily copy is made when they are closed."""
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.backup import back_up

    with closing(Store(database_path())) as store:
        yield store
    back_up(database_path())
