"""The main keys, in the last row.

Keep: it is built anew only when it would show something else.
"""

from textual.screen import Screen
from textual.widgets import Footer


class KeyBar(Footer):
    """Textual's footer, built anew only when it would show something else.

    It is told of every change of focus, and keeps the keys it has removed until its own
    attribute changes, which is what they watch.
    """

    _shown: object = None

    def on_mount(self) -> None:
        self.watch(self.app, "app_focus", self._show_late, init=False)

    def _show_late(self) -> None:
        self.bindings_changed(self.screen)

    def bindings_changed(self, screen: Screen[object]) -> None:
        shown = [
            (binding.key, binding.description, enabled)
            for _, binding, enabled, _ in screen.active_bindings.values()
            if binding.show
        ]
        # Without the focus, as a browser's page begins, nothing would be built.
        if shown != self._shown and screen.app.app_focus:
            self._shown = shown
            self.mutate_reactive(Footer.compact)
            super().bindings_changed(screen)
