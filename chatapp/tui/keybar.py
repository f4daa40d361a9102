"""The main keys, in the last row.

Keep: it always fits; what stands last is left out first, but never how to get help or to leave.
"""

from collections.abc import Iterator
from typing import NamedTuple

from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

_ALWAYS = ("help", "quit", "stop")
"""Actions whose keys stay."""


class _Key(NamedTuple):
    """Some keys and what they do, in words, which have to be shown where `stays`."""

    words: Content
    stays: bool


class KeyBar(Widget, can_focus=False):
    """A row of keys that can be clicked: those of what has the focus, then the screen's."""

    _keys: tuple[_Key, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self._keys = tuple(self._described(screen))
            self.refresh()

    def _described(self, screen: Screen[object]) -> Iterator[_Key]:
        """The keys by what they do; those of one group as one."""
        entries: dict[str, list[Binding]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled:
                words = binding.group.description if binding.group else binding.description
                same = entries.setdefault(words, [])
                if binding.action not in (each.action for each in same):
                    same.append(binding)
        for words, bindings in entries.items():
            keys = Content(" ").join(self._key(binding) for binding in bindings)
            stays = any(binding.action in _ALWAYS for binding in bindings)
            yield _Key(Content.assemble(keys, " ", words), stays)

    def _key(self, binding: Binding) -> Content:
        click = Style.from_meta({"@click": f"app.simulate_key({binding.key!r})"})
        short = self.app.get_key_display(binding).replace("Ctrl+", "^")
        return Content(short).stylize(click)

    def render(self) -> Content:
        keys = list(self._keys)
        while True:
            line = Content(" ").join(key.words for key in keys)
            optional = [key for key in keys if not key.stays]
            if line.cell_length <= self.content_size.width or not optional:
                return line.truncate(self.content_size.width, ellipsis=True)
            keys.remove(optional[-1])
