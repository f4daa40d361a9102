"""What the inspector looks at, and when it comes and goes.

Keep: there is at most one inspector, and it follows the chat as that goes on.
"""

from typing import TYPE_CHECKING

from chatapp.tui.chat.slash import is_command
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.view import Target
from chatapp.tui.widgets.message import MessageView

if TYPE_CHECKING:
    from textual.screen import Screen

    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation


class Inspecting:
    """Brings the inspector of a conversation to a screen."""

    def __init__(
        self, conversation: "Conversation", screen: "Screen[None]", widgets: "ChatWidgets"
    ) -> None:
        self._conversation = conversation
        self._screen = screen
        self._widgets = widgets

    @property
    def _inspector(self) -> Inspector | None:
        return next(iter(self._screen.query(Inspector)), None)

    async def inspect(self) -> None:
        """Look at what has the focus, or the last message; with the keys itself, it closes."""
        inspector = self._inspector
        if inspector is not None and inspector.has_focus_within:
            await self.close()
        elif inspector is not None:
            inspector.look_at(self.target())
            inspector.focus_view()
        elif self._conversation.session is None:
            self._widgets.inform("The model is not loaded yet.")
        else:
            await self._screen.mount(Inspector(self._conversation, self.target()))

    def target(self) -> Target:
        """What there is to look at: what has the focus, a text on the way included."""
        focused = self._screen.focused
        if isinstance(focused, MessageView):
            return Target(focused.message.id)
        text, editing = self._widgets.prompt.text, self._widgets.prompt.editing
        is_reply = editing is not None and editing.role == "assistant"
        if not text.strip() or is_reply or (editing is None and is_command(text)):
            return Target()
        return Target(draft=text, instead_of=editing.id if editing is not None else None)

    def look_again(self) -> None:
        """Look at the last message, which may be another one by now."""
        if self._inspector is not None:
            self._inspector.look_at(Target())

    async def uncover(self) -> None:
        """Close the inspector where it stands over the chat."""
        if self._inspector is not None and self._inspector.is_over:
            await self.close()

    async def close(self) -> None:
        """Go back to the chat."""
        await self._screen.query(Inspector).remove()
        self._widgets.prompt.focus()
