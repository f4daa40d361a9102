"""The status line (state, model, basis, context, speed), and the row of main keys."""

from collections.abc import Iterator
from typing import NamedTuple

from textual.binding import Binding
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

from chatapp.common.foreign import printable
from chatapp.prompting.messages import OWN

_BAR_WIDTH = 10
_LONGEST_NAME = 24
_GAP = Content("   ")

ASKING = "waiting for your answer"
RUNNING_TOOL = "running a tool"

_UNDER_WAY = ("thinking", "streaming", ASKING, RUNNING_TOOL)


class StatusLine(Widget, can_focus=False):
    """One row, drawn from its reactive attributes.

    used and limit: tokens of the prompt and of the context window; a limit of 0 is unknown.
    is_estimate: whether `used` is one. is_kept: whether the chat is stored. speed: tokens per
    second; 0 is unknown. dropped: messages that no longer fit. template: a template's name, or that
    of the chat's prompt file. persona: the name of the chat's, if any. changes: what is changed
    inside the model, in words.
    """

    state: reactive[str] = reactive("loading")
    model: reactive[str] = reactive("")
    template: reactive[str] = reactive("")
    is_prompt_file: reactive[bool] = reactive(False)
    persona: reactive[str] = reactive("")
    used: reactive[int] = reactive(0)
    limit: reactive[int] = reactive(0)
    is_estimate: reactive[bool] = reactive(False)
    is_kept: reactive[bool] = reactive(True)
    speed: reactive[float] = reactive(0.0)
    dropped: reactive[int] = reactive(0)
    changes: reactive[str] = reactive("")

    def render(self) -> Content:
        # In the order of the screen, each part with its rank: rank 0 is never left out.
        if self.app.has_class("-presenting"):  # what is changed is always to be seen
            changes = Content.styled(printable(self.changes), "bold $text-warning")
            return _GAP.join(filter(None, (self._state(), changes)))
        parts = [(0, self._state()), (1, self._short(self.model))]
        if not self.is_kept:
            parts.insert(1, (0, Content.styled("not saved", "$text-warning")))
        if self.changes:
            parts.append((0, Content.styled(printable(self.changes), "bold $text-warning")))
        if self.persona:
            parts.append((2, Content.assemble("persona ", self._short(self.persona))))
        if self.is_prompt_file:
            parts.append((2, Content.assemble("prompt file ", self._short(self.template))))
        elif self.template not in ("", OWN):
            parts.append((5, Content.assemble("template ", self._short(self.template))))
        if self.limit:
            about = "≈" if self.is_estimate else ""
            used = f"{about}{self.used:,}/{self.limit:,} tokens"
            parts += [(4, self._bar()), (0, Content(used))]
        if self.speed:
            parts.append((3, Content(f"{self.speed:.0f} tokens/s")))
        if self.dropped:
            words = f"{self.dropped} message{'s' * (self.dropped > 1)} out of context"
            parts.append((1, Content.styled(words, "$text-warning")))
        parts = [(rank, part) for rank, part in parts if part]
        for most in (5, 4, 3, 2, 1, 0):
            line = _GAP.join(part for rank, part in parts if rank <= most)
            if line.cell_length <= self.content_size.width:
                break
        return line.truncate(self.content_size.width, ellipsis=True)

    def _state(self) -> Content:
        colors = {"ready": "$text-success", "error": "$text-error", "no model": "$text-error"}
        color = colors.get(self.state, "$text-accent")
        way_out = " · Esc stops" if self.state in _UNDER_WAY else ""
        return Content.assemble(("● ", color), self.state, way_out)

    def _bar(self) -> Content:
        share = min(1.0, self.used / self.limit)
        filled = round(share * _BAR_WIDTH)
        style = "$text-warning" if share > 0.9 else "$text-accent"
        rest = "─" * (_BAR_WIDTH - filled)
        return Content.assemble(("━" * filled, style), (rest, "$border-blurred"))

    def _short(self, name: str) -> Content:
        # The end of a path or an address is more informative than its beginning.
        short = f"…{name[1 - _LONGEST_NAME :]}" if len(name) > _LONGEST_NAME else name
        return Content(printable(short).replace("\n", " "))


_ALWAYS = ("help", "quit", "stop", "screen.other_side")
"""Actions whose keys stay."""


class _Key(NamedTuple):
    """Some keys and their description, which is never left out if `stays`."""

    words: Content
    stays: bool


class KeyBar(Widget, can_focus=False):
    """A row of clickable keys: those of the focused widget, then the screen's."""

    _keys: tuple[_Key, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if screen is self.screen:
            self._keys = tuple(self._described(screen))
            self.refresh()

    def _described(self, screen: Screen[object]) -> Iterator[_Key]:
        """The keys with their descriptions; those of one group together."""
        entries: dict[str, list[Binding]] = {}
        for _, binding, enabled, _ in screen.active_bindings.values():
            if binding.show and enabled:
                words = binding.group.description if binding.group else binding.description
                same = entries.setdefault(words, [])
                if binding.action not in (shown.action for shown in same):
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
