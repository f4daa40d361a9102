"""The line that says what is going on: state, model, template, context, speed.

Keep: it always fits; what matters least is left out first.
"""

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from chatapp.foreign import printable

_BAR_WIDTH = 10
_LONGEST_NAME = 24
_GAP = Content("   ")


class StatusLine(Widget, can_focus=False):
    """One row, drawn from its reactive attributes.

    used and limit: tokens of the prompt and of the context window; a limit of 0 is unknown.
    is_estimate: whether `used` is one. is_kept: whether the chat is stored. speed:
    tokens per second; 0 is unknown. dropped: messages that no longer fit.
    """

    state: reactive[str] = reactive("loading")
    model: reactive[str] = reactive("")
    template: reactive[str] = reactive("")
    used: reactive[int] = reactive(0)
    limit: reactive[int] = reactive(0)
    is_estimate: reactive[bool] = reactive(False)
    is_kept: reactive[bool] = reactive(True)
    speed: reactive[float] = reactive(0.0)
    dropped: reactive[int] = reactive(0)

    def render(self) -> Content:
        # In the order of the screen, each part with its rank: rank 0 is never left out.
        parts = [(0, self._state()), (1, self._short_model()), (4, self._plain(self.template))]
        if not self.is_kept:
            parts.insert(1, (0, Content.styled("not saved", "$text-warning")))
        if self.limit:
            about = "≈" if self.is_estimate else ""
            used = f"{about}{self.used:,}/{self.limit:,} tokens"
            parts += [(3, self._bar()), (0, Content(used))]
        if self.speed:
            parts.append((2, Content(f"{self.speed:.0f} tokens/s")))
        if self.dropped:
            words = f"{self.dropped} message{'s' * (self.dropped > 1)} out of context"
            parts.append((1, Content.styled(words, "$text-warning")))
        parts = [(rank, part) for rank, part in parts if part]
        for most in (4, 3, 2, 1, 0):
            line = _GAP.join(part for rank, part in parts if rank <= most)
            if line.cell_length <= self.content_size.width:
                break
        return line.truncate(self.content_size.width, ellipsis=True)

    def _state(self) -> Content:
        colors = {"ready": "$text-success", "error": "$text-error", "no model": "$text-error"}
        color = colors.get(self.state, "$text-accent")
        way_out = " · Esc stops" if self.state in ("thinking", "streaming") else ""
        return Content.assemble(("● ", color), self.state, way_out)

    def _bar(self) -> Content:
        share = min(1.0, self.used / self.limit)
        filled = round(share * _BAR_WIDTH)
        style = "$text-warning" if share > 0.9 else "$text-accent"
        rest = "─" * (_BAR_WIDTH - filled)
        return Content.assemble(("━" * filled, style), (rest, "$border-blurred"))

    def _short_model(self) -> Content:
        # The end of a path or an address tells more than its beginning.
        long = len(self.model) > _LONGEST_NAME
        return self._plain(f"…{self.model[1 - _LONGEST_NAME :]}" if long else self.model)

    def _plain(self, text: str) -> Content:
        return Content(printable(text).replace("\n", " "))
