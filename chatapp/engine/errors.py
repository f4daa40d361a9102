"""Errors of a model, in words.

Invariant: no import of torch, so that screens and commands can catch these errors before torch is
loaded.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from chatapp.common.unforeseen import INTERRUPTS
from chatapp.common.userfiles import UserError
from chatapp.common.web import without_keys


class ModelError(UserError):
    """A fault of a model. The message is one sentence for the user."""


class NoDecoder(ModelError):
    """A model that may be valid, but that this program's own decoder does not support."""


class Cancelled(Exception):
    """The caller's cancel event was set during a computation, or while waiting for a server."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error, without the pages that may follow, and without keys.

    The second follows a first one that ends in a colon, as torch's of tensors that do not fit.
    """
    lines = without_keys(str(error).strip()).splitlines()
    announces = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(line.strip() for line in lines[: 1 + announces]) or type(error).__name__


@contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Convert any exception of a library to a ModelError that begins with `what`.

    This includes panics of Rust, which are no `Exception`; interrupts and user errors pass.
    """
    try:
        yield
    except (UserError, *INTERRUPTS):
        raise
    except BaseException as error:
        raise ModelError(f"{what}: {first_line(error)}") from None
