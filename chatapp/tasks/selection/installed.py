"""Selection methods by name: built-in ones, and those of installed packages (entry points).

    [project.entry-points."chatapp.selection"]
    shortest = "their_package.selection:Shortest"

Invariant: packages are searched only when a name is not built in, or names are listed. A built-in
method is never replaced. A broken package gives one sentence that names it, and affects no other
method.
"""

from contextlib import suppress
from functools import cache
from inspect import isabstract
from typing import TYPE_CHECKING

from chatapp.common.userfiles import quoted, reason
from chatapp.prompting.examples import PromptError
from chatapp.tasks.selection.methods import METHODS, Selector

# Every command line reads the table of methods; few need the packages.
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "chatapp.selection"


def find_method(name: str) -> type[Selector] | None:
    """Find the method of this name, or None.

    Raises PromptError for a broken package, or a name that two packages offer.
    """
    return METHODS.get(name) or _installed(name)


def usable_methods() -> dict[str, type[Selector]]:
    """All methods by name, except those of broken packages."""
    methods = dict(METHODS)
    for name in _offers():
        with suppress(PromptError):
            if method := find_method(name):
                methods[name] = method
    return methods


def listed_methods() -> tuple[list[str], str]:
    """The names of all methods, without loading any, and a sentence ending on the packages that
    offer a built-in name.
    """
    offers = _offers()
    clashes = [
        f" (the package {_package(offer)} offers {name!r}, which is built in)"
        for name, named in offers.items()
        for offer in named
        if name in METHODS
    ]
    return list(dict.fromkeys([*METHODS, *offers])), "".join(clashes)


@cache
def _installed(name: str) -> type[Selector] | None:
    offers = _offers().get(name, [])
    if not offers:
        return None
    packages = " and ".join(sorted(map(_package, offers)))
    if len(offers) > 1:
        raise PromptError(f"the packages {packages} both offer the method {name!r}; remove one")
    start = f"the package {packages} offers the method {name!r}, but"
    try:
        method = offers[0].load()
    except Exception as error:  # whatever a foreign module raises at import
        raise PromptError(f"{start} it cannot be loaded: {reason(error)}") from None
    if not (isinstance(method, type) and issubclass(method, Selector)):
        raise PromptError(f"{start} {offers[0].value} is not a subclass of Selector")
    if isabstract(method):
        raise PromptError(f"{start} {offers[0].value} has no method `select`")
    if getattr(method, "name", None) != name or not hasattr(method, "summary"):
        raise PromptError(f"{start} {offers[0].value} has no `name` that says so, or no `summary`")
    return method


def _offers() -> "dict[str, list[EntryPoint]]":
    """The entry points of the group, by name."""
    from importlib.metadata import entry_points

    offers: dict[str, list[EntryPoint]] = {}
    for offer in sorted(entry_points(group=GROUP), key=lambda offer: offer.name):
        offers.setdefault(offer.name, []).append(offer)
    return offers


def _package(offer: "EntryPoint") -> str:
    return quoted(offer.dist.name if offer.dist else offer.module)
