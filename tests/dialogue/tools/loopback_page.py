"""Fetches pages as the tool `page` does, also of this machine: for a test's own server."""

from collections.abc import Iterator

from chatapp.dialogue.tools import page


def answer(address: str) -> Iterator[str]:
    page.is_public = lambda number: number == "127.0.0.1"
    return page.answer(address)
