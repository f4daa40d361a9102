"""What the shell offers where a command wants a name: models, templates, prompts, tasks, chats.

Keep: a name is offered or it is not, without a word on what is wrong, without torch and without
the network. Where nothing is offered, the shell goes on with file names.
"""

from collections.abc import Callable, Iterable

from chatapp.userfiles import UserError

Names = list[str | tuple[str, str]]
"""Each with a line about it, where there is one."""

_MOST_CHATS = 20
_TITLE = 40


def _offered(names: Callable[[], Iterable[str | tuple[str, str]]]) -> Callable[[str], Names]:
    """What of some names begins like the word that is being written."""

    def offer(incomplete: str) -> Names:
        try:
            known = list(names())
        except (UserError, OSError):
            return []
        return [
            name
            for name in known
            if (name if isinstance(name, str) else name[0]).startswith(incomplete)
        ]

    offer.__doc__ = names.__doc__
    return offer


def _for_lists(offer: Callable[[str], Names]) -> Callable[[str], Names]:
    """The same names for the last of a list with commas."""

    def offer_last(incomplete: str) -> Names:
        before, comma, last = incomplete.rpartition(",")
        return [
            f"{before}{comma}{name}"
            if isinstance(name, str)
            else (f"{before}{comma}{name[0]}", name[1])
            for name in offer(last)
        ]

    return offer_last


@_offered
def models() -> Iterable[str]:
    """Models on this machine, and servers with a name."""
    from chatapp.engine.folder import local_models
    from chatapp.engine.servers import named_servers

    return [*local_models(), *named_servers()]


@_offered
def known() -> Iterable[tuple[str, str]]:
    """Models with a short name, which `models get` brings."""
    from chatapp.engine.known_models import known_models

    return [(model.name, model.purpose) for model in known_models().values()]


@_offered
def fetched() -> Iterable[str]:
    """Models that `models get` has brought."""
    from chatapp.engine.fetched import fetched_models

    return [model.name for model in fetched_models()]


@_offered
def templates() -> Iterable[str]:
    """Built-in dialogue templates."""
    from chatapp.prompting.template import TEMPLATES

    return TEMPLATES


@_offered
def precisions() -> Iterable[str]:
    """What a model can be multiplied in."""
    from chatapp.engine.load import PRECISIONS

    return PRECISIONS


@_offered
def prompts() -> Iterable[str]:
    """Prompt files by name."""
    from chatapp.prompting.library import tasks

    return tasks()


@_offered
def personas() -> Iterable[str]:
    """Personas by name."""
    from chatapp.prompting.library import personas

    return personas()


@_offered
def methods() -> Iterable[tuple[str, str]]:
    """Ways to choose demonstrations."""
    from chatapp.prompting.selection.methods import METHODS

    return [(name, method.summary) for name, method in METHODS.items()]


lists_of_methods = _for_lists(methods)


@_for_lists
@_offered
def paper_tasks() -> Iterable[str]:
    """Tasks of the GPT-3 paper."""
    from chatapp.evaluation.gpt3_tasks import TASKS

    return TASKS


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
        latest = store.chats(limit=_MOST_CHATS)
    finally:
        store.close()
    return [(str(chat.id), " ".join(printable(chat.title).split())[:_TITLE]) for chat in latest]
