"""The command palette: every action of the program by name, with its key.

Invariant: no key and no command is listed twice, and only actions that the current screen supports.
Names come from the definitions of the actions, so that the list is complete.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from textual.actions import parse
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.dom import DOMNode
from textual.widgets import OptionList

from chatapp.common.foreign import printable
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.chat.slash import COMMANDS, Command
from chatapp.tui.platform.keymap import bindings_of, words_of
from chatapp.tui.platform.pictures import save_screen
from chatapp.tui.platform.textual_internals import keymap_of
from chatapp.tui.widgets.dialog import LeftOnce


class Entry(NamedTuple):
    """A line of the palette: a description, its key or command, and the action."""

    words: str
    key: str
    run: Callable[[], object]

    @property
    def text(self) -> str:
        return f"{self.words}  {self.key}" if self.key else self.words


class Palette(CommandPalette, LeftOnce[None]):
    """Textual's palette, which a second Enter does not close again."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "command_list" and not self.query_one(OptionList).scrollable_content_region:
            return False  # Textual looks for a line, and a list that is not drawn has none
        return super().check_action(action, parameters)


class Actions(Provider):
    """All actions of the screen below the palette."""

    async def discover(self) -> Hits:
        for entry in self._entries():
            yield DiscoveryHit(Content(entry.text), entry.run, entry.text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._entries():
            if (score := matcher.match(entry.text)) > 0:
                yield Hit(score, matcher.highlight(entry.text), entry.run, entry.text)

    def _entries(self) -> Iterator[Entry]:
        seen = set()
        for entry in self._all():
            if entry.text not in seen:
                seen.add(entry.text)
                yield entry

    def _all(self) -> Iterator[Entry]:
        yield from self._of_keys()
        yield from self._of_commands()
        yield from self._of_themes()
        for suffix in (".svg", ".png"):
            words = f"Save the screen as {suffix[1:].upper()}, in this folder"
            save = partial(save_screen, self.app, suffix)
            yield Entry(words, "", partial(self.app.call_after_refresh, save))

    def _of_keys(self) -> Iterator[Entry]:
        for node in self._nodes():
            for kind in type(node).__mro__:
                if not kind.__module__.startswith("chatapp.") or "BINDINGS" not in vars(kind):
                    continue
                keymap = keymap_of(self.app)
                bindings = [
                    binding for binding in bindings_of(kind, keymap) if _can(node, binding.action)
                ]
                keys: dict[str, list[str]] = {}
                for binding in bindings:
                    display = self.app.get_key_display(binding)
                    keys.setdefault(binding.action, []).append(display)
                for binding in bindings:
                    run = partial(self.app.run_action, binding.action, node)
                    yield Entry(words_of(binding), " ".join(keys[binding.action]), run)

    def _nodes(self) -> list[DOMNode]:
        """The screen and the focused widgets, and in a chat its prompt and a message."""
        focused = self.screen.focused
        nodes: list[DOMNode] = list(focused.ancestors_with_self) if focused is not None else []
        if isinstance(self.screen, ChatScreen):
            nodes += self.screen.for_palette()
        return list(dict.fromkeys([self.screen, *nodes, self.app]))

    def _of_commands(self) -> Iterator[Entry]:
        if isinstance(self.screen, ChatScreen):
            for command in COMMANDS:
                words = command.words[:1].upper() + command.words[1:]
                yield Entry(words, f"/{command.name}", partial(self._write, command))

    def _write(self, command: Command) -> None:
        """Put a command into the prompt, to be completed and sent."""
        assert isinstance(self.screen, ChatScreen)
        self.screen.widgets.prompt.give_back(f"/{command.name}{' ' if command.argument else ''}")

    def _of_themes(self) -> Iterator[Entry]:
        for name in sorted(self.app.available_themes):
            yield Entry(f"Theme: {printable(name)}", "", partial(setattr, self.app, "theme", name))


def _can(node: DOMNode, action: str) -> bool:
    """Whether a node's action is available now."""
    namespace, name, arguments = parse(action)
    return bool(namespace) or node.check_action(name, arguments) is True
