"""Textual's private interface, as far as the screens use it, checked on Textual 8.2.8.

Invariant: no other module of the screens uses a Textual name that begins with an underscore
(`browser` uses one of textual-serve's, 1.1.3). A test names those that another version lacks.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any, cast

from rich.segment import Segment
from rich.style import Style
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App, ReturnType
from textual.binding import Binding
from textual.color import Color
from textual.document._wrapped_document import WrappedDocument
from textual.driver import Driver
from textual.events import Event, Paste, Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.keys import _character_to_key
from textual.message import Message
from textual.widget import Widget
from textual.widgets import TextArea


def keymap_of(app: App[Any]) -> Mapping[str, str]:
    """The keys that the settings assign to bindings, by the binding's id."""
    return app._keymap


def bindings_for(widget: Widget, key: str) -> Sequence[Binding]:
    """The bindings of a key in a widget, with the settings applied."""
    bindings = widget._bindings.copy()
    bindings.apply_keymap(widget.app._keymap)
    return bindings.key_to_bindings.get(key, [])


def key_of(character: str) -> str:
    """Textual's name of the key for a character."""
    return _character_to_key(character)


class _MoreKeys(Enum):
    """Keys that Textual's own list lacks."""

    ALT_ENTER = "alt+enter"


def know_alt_enter() -> None:
    """Make Textual distinguish Alt+Enter, which most terminals send as ESC CR, from Enter."""
    cast(dict[str, Any], ANSI_SEQUENCES_KEYS)["\x1b\r"] = (_MoreKeys.ALT_ENTER,)


_DRIVERS = ("linux_driver", "linux_inline_driver", "web_driver")


def know_bad_bytes() -> None:
    """Make Textual read an invalid UTF-8 byte as U+FFFD: otherwise its thread that reads the
    terminal would end.
    """
    for name in _DRIVERS:
        with suppress(ImportError):  # those of another system
            vars(import_module(f"textual.drivers.{name}"))["getincrementaldecoder"] = _lenient


def _lenient(encoding: str) -> Callable[[], codecs.IncrementalDecoder]:
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")


_BULK = 64
"""More characters at once than anybody types."""
_SEQUENCE = 32
"""Characters within which an escape sequence ends."""
_SOON = 0.05
"""Seconds within which more of a long text follows."""
_LONG = 1024
"""Characters of a text after which more may follow."""
_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")


@dataclass(slots=True)
class _Pasting:
    """The state of a terminal's paste.

    before: the last characters before it, which may be the beginning of its mark. text: the pasted
    text since the mark; None outside a paste. recent: the last characters before, within which an
    escape sequence may have begun. more_until: the time until which input belongs to a long text
    that came without marks.
    """

    before: str = ""
    text: str | None = None
    recent: str = ""
    more_until: float = 0.0

    def unmarked(self, data: str) -> str:
        """The pasted text in `data` from a terminal that does not mark it; "" when it was typed."""
        recent, self.recent = self.recent, (self.recent + data)[-_SEQUENCE:]
        text = data if "\r" in data[:-1] else data.removesuffix("\r")  # Enter sends one line
        now = monotonic()
        is_more = now < self.more_until
        if "\x1b" in recent or not _TEXT.fullmatch(data) or not (is_more or len(text) >= _BULK):
            return ""
        self.more_until = now + _SOON if is_more or len(data) >= _LONG else 0.0
        return data if is_more else text


_feed = XTermParser.feed


def know_pastes() -> None:
    """Make Textual keep pasted text unchanged: it reads an escape character in it, and the
    characters after that, as keys. Many characters at once without the marks of a paste are one,
    too: as keys, a long text would take minutes.
    """
    XTermParser.feed = _feed_with_pastes  # type: ignore[assignment, method-assign]


def _feed_with_pastes(parser: XTermParser, data: str) -> Iterable[Message]:
    pasting = vars(parser).setdefault("pasting", _Pasting())
    if not data:  # the end of all input
        yield from _feed(parser, data)
    if pasting.text is None and (text := pasting.unmarked(data)):
        pasting.before = ""
        yield Paste(text)
        data = data[len(text) :]
    while data:
        if pasting.text is None:
            # The mark of the beginning may arrive in pieces, which Textual needs immediately.
            seen = pasting.before + data
            is_begun, length = False, len(data)
            if (start := seen.find(BRACKETED_PASTE_START)) >= 0:
                length = start + len(BRACKETED_PASTE_START) - len(pasting.before)
                is_begun = True
            yield from _feed(parser, data[:length])
            data = data[length:]
            pasting.before = "" if is_begun else seen[1 - len(BRACKETED_PASTE_START) :]
            pasting.text = "" if is_begun else None
        else:
            pasting.text += data
            text, mark, data = pasting.text.partition(BRACKETED_PASTE_END)
            if not mark:
                return
            pasting.text = None
            for event in _feed(parser, mark):
                yield Paste(text.replace("\0", "")) if isinstance(event, Paste) else event


class _NeverDim(LineFilter):
    """Draws dim text like any other."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style + Style(dim=False) if style and style.dim else style, control)
            for text, style, control in segments
        ]


LEAST = 20, 6
"""Columns and rows that are laid out; of a smaller terminal the rest lies outside."""


def _at_least(size: Size) -> Size:
    return Size(max(size.width, LEAST[0]), max(size.height, LEAST[1]))


class FailingApp(App[ReturnType]):
    """An App that keeps a fatal exception instead of printing its traceback."""

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the program, or None."""
        return self._exception

    @property
    def size(self) -> Size:
        """The size of the terminal, or `LEAST`: widgets of no width cannot be drawn."""
        return _at_least(super().size)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Resize):
            event = Resize(_at_least(event.size), _at_least(event.virtual_size))
        await super().on_event(event)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()

    def show_dim(self, dim: bool) -> None:
        """Draw dim text dim, or like any other."""
        self._filters[:] = [
            line_filter for line_filter in self._filters if not isinstance(line_filter, _NeverDim)
        ]
        if not dim:
            self._filters.insert(0, _NeverDim())

    def on_read(self, event: Message) -> None:
        """Look at what the terminal sends, on the thread that reads it."""

    def restore_terminal(self) -> None:
        """Give the terminal back as it was, without the event loop."""
        if (driver := self._driver) is not None:
            driver._disable_mouse_support()  # type: ignore[attr-defined]
            driver.stop_application_mode()
            driver.close()

    def _build_driver(self, *arguments: Any, **named: Any) -> Driver:
        driver = super()._build_driver(*arguments, **named)
        process = driver.process_message

        def look_first(event: Message) -> None:
            self.on_read(event)
            process(event)

        driver.process_message = look_first  # type: ignore[method-assign, assignment]
        return driver


class CountedDocument(WrappedDocument):
    """A document that computes its height without reading each line."""

    @property
    def height(self) -> int:
        return len(self._offset_to_line_info)


class LongTextArea(TextArea):
    """A TextArea that stays fast with a long text, and leaves the function keys to the app."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for key in ("f6", "f7"):  # with which a TextArea selects
            self._bindings.key_to_bindings.pop(key, None)

    def _set_document(self, text: str, language: str | None) -> None:
        super()._set_document(text, language)
        # TextArea creates its own; another would have to wrap the whole text again.
        self.wrapped_document.__class__ = CountedDocument
