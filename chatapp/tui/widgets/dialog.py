"""A screen over the chat, which is left with an answer.

Keep: it is left once. What asks for that again before it is gone, such as a second Enter, changes
nothing, and what was opened over it goes with it.
"""

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen, ScreenResultType


class LeftOnce(Screen[ScreenResultType]):
    """A screen that is taken away once, whatever Textual is asked to take away."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Leave with a result; nothing when it has been left."""
        if self not in self.app.screen_stack:
            return AwaitComplete()
        while self.app.screen is not self:
            self.app.pop_screen()
        self.workers.cancel_node(self)  # what they would show in is about to go
        return super().dismiss(result)


# Textual takes a widget's style from the first of its bases.
class Dialog(ModalScreen[ScreenResultType], LeftOnce[ScreenResultType]):
    """A box over the chat, whose keys are the only ones."""
