"""What the shell offers where a command wants a name: models, templates, prompts, tasks, chats.

Keep: a name is offered or it is not, without a word on what is wrong, without torch and without
the network. Where nothing is offered, the shell goes on with file names.
"""

from collections.abc import Callable, Iterable

Names = list[str | tuple[str, str]]
"""Each with a line about it, where there is one."""

_MOST_CHATS = 20
_TITLE = 40


def _offered(names: Callable[[], Iterable[str | tuple[str, str]]]) -> Callable[[str], Names]:
    """What of some names begins like the word that is being written."""

    def offer(incomplete: str) -> Names:
        from chatapp.dialogue.store import StoreError
        from chatapp.engine.checkpoint import ModelError
        from chatapp.prompting.examples import PromptError

        try:
            found = list(names())
        except (ModelError, PromptError, StoreError, OSError):
            return []
        return [
            each
            for each in found
            if (each if isinstance(each, str) else each[0]).startswith(incomplete)
        ]

    offer.__doc__ = names.__doc__
    return offer


@_offered
def models() -> Iterable[str]:
    """Models on this machine, and servers with a name."""
    from chatapp.engine.load import local_models
    from chatapp.engine.servers import named_servers

    return [*local_models(), *named_servers()]


@_offered
def templates() -> Iterable[str]:
    """Built-in dialogue templates."""
    from chatapp.prompting.template import TEMPLATES

    return TEMPLATES


@_offered
def precisions() -> Iterable[str]:
    """What a GPT-2 can be multiplied in."""
    from chatapp.engine.load import PRECISIONS

    return PRECISIONS


@_offered
def prompts() -> Iterable[str]:
    """Prompt files by name."""
    from chatapp.prompting.library import tasks

    return tasks()


@_offered
def _paper_tasks() -> Iterable[str]:
    """Tasks of the GPT-3 paper."""
    from chatapp.evaluation.gpt3_tasks import TASKS

    return TASKS


def paper_tasks(incomplete: str) -> Names:
    """Tasks of the GPT-3 paper, the last of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _paper_tasks(last) if isinstance(name, str)]


@_offered
def chats() -> Iterable[tuple[str, str]]:
    """The chats changed last, by their ids."""
    from chatapp.dialogue.store import Store
    from chatapp.foreign import printable
    from chatapp.paths import database_path

    if not database_path().exists():
        return []
    store = Store(database_path())
    try:
        found = store.chats(limit=_MOST_CHATS)
    finally:
        store.close()
    return [(str(chat.id), " ".join(printable(chat.title).split())[:_TITLE]) for chat in found]
