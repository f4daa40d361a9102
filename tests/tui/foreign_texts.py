"""Texts that a terminal would obey, and the check that none of them reaches it."""

import re

from tui_driver import Driver

FOREIGN = {
    "closing tag": "[/b]",
    "link": "[link=https://example.com]click[/link] [@click=app.quit]quit[/]",
    "title": "\x1b]0;x\x07",
    "clear": "before \x1b[2J\x1b[H after",
    "c1": "\x9b2J \x85 \u2028",
    "overrides": "\u202egnp.exe \u2066x\u2069",
    "surrogate": "half \ud83d of a pair",
    "returns": "one\rtwo\x08\x08three\x00\x7f",
    "tabs": "a\tb\n\tc",
    "wide": "漢字 👩‍🚀 e\u0301 \u200b",
    "long": "0123456789" * 10_000,
    "many lines": "line\n" * 2_000,
}
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(driver: Driver) -> list[str]:
    """The rows of the screen, checked to hold nothing that a terminal obeys."""
    text = driver.screen_text
    rows = text.split("\n")
    assert not _OBEYED.search(text.replace("\n", ""))
    assert len(rows) == driver.app.size.height
    return rows
