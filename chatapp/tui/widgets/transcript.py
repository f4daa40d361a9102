"""The messages of a chat from root to leaf, only some of which are widgets."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.geometry import Offset
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from chatapp.tui.widgets.message import MessageView, Waiting, status_words

if TYPE_CHECKING:
    from textual.geometry import Size
    from textual.layout import DockArrangeResult

    from chatapp.dialogue.store.rows import Feedback, StoredMessage

AT_FIRST = 25
STEP = 15
AT_MOST = 60

_MARKED = "-marked"


class Transcript(VerticalScroll, can_focus=False):
    """The scrolling list of messages.

    kind: the widget of a message.
    """

    def __init__(self, kind: type[MessageView] = MessageView) -> None:
        super().__init__()
        self._kind = kind
        self.path: list[StoredMessage] = []
        self._reasons: dict[int, str] = {}
        self._feedback: Mapping[int, Feedback] = {}
        self._first = self._last = 0
        self.markdown = self.times = False
        self.live: int | None = None
        """The message that is being written; it stays mounted."""
        self._held: tuple[Widget, int] | None = None
        # Mounting and removing take a while, and scrolling may request more in the meantime.
        self._changing = asyncio.Lock()

    def on_mount(self) -> None:
        self.anchor()

    @property
    def scroll_offset(self) -> Offset:
        """The scroll position: Textual's is negative where an anchored text is short, and would
        put that at the bottom."""
        x, y = super().scroll_offset
        return Offset(x, max(0, y))

    @property
    def views(self) -> list[MessageView]:
        """The mounted messages in order."""
        return [child for child in self.children if isinstance(child, MessageView)]

    def view(self, message_id: int) -> MessageView | None:
        """The widget of a message, if it is mounted."""
        return next((view for view in self.views if view.message.id == message_id), None)

    async def show(
        self, path: Sequence["StoredMessage"], reasons: Mapping[int, str] | None = None
    ) -> None:
        """Show this path, keeping the widgets of messages that were already shown.

        reasons: finish reasons of replies, by message id; known ones are kept.
        """
        self._reasons.update(reasons or {})
        self._unmark()
        same = 0
        for old, new in zip(self.path, path, strict=False):
            if old.id != new.id:
                break
            same += 1
        async with self._changing:
            self.path = list(path)
            with self.app.batch_update():
                await self.stop_waiting()
                await self._show_from(same)
        self.anchor()
        self.call_after_refresh(self._fill)

    async def _show_from(self, same: int) -> None:
        """Mount the end of the path, whose first `same` messages were shown before."""
        if self._first < same <= self._last:
            await self._remove(self.views[same - self._first :])
            for message in self.path[self._first : same]:
                self.refresh_message(message)
            self._last = same
            await self._mount_later(len(self.path))
            if self._last - self._first > AT_MOST:
                await self._drop_earlier(self._last - AT_FIRST)
        else:
            await self._remove(self.views)
            self._first = self._last = max(0, len(self.path) - AT_FIRST)
            await self._mount_later(len(self.path))

    def refresh_message(self, message: "StoredMessage", reason: str | None = None) -> None:
        """Update a message to its newer row and finish reason."""
        if reason is not None:
            self._reasons[message.id] = reason
        for index, old in enumerate(self.path):
            if old.id == message.id:
                self.path[index] = message
        if (view := self.view(message.id)) is not None:
            view.show(message, self._note(message), self._feedback.get(message.id))

    def show_feedback(self, feedback: "Mapping[int, Feedback]") -> None:
        """Update the user's feedback on the chat's replies, by message id."""
        self._feedback = feedback
        for view in self.views:
            self.refresh_message(view.message)

    def show_markdown(self, markdown: bool) -> None:
        """Show replies as Markdown, or as plain text."""
        self.markdown = markdown
        for view in self.views:
            view.set_markdown(markdown)

    def highlight(self, words: str) -> None:
        """Highlight words in the mounted messages; "" ends it."""
        for view in self.views:
            view.highlight(words)

    def show_times(self, times: bool) -> None:
        """Show when each message was written, or not."""
        self.times = times
        for view in self.views:
            view.show_time(times)

    async def wait(self, text: str, note: str) -> None:
        """Show a message of the user that is not part of the chat yet."""
        self._unmark()
        if self._last < len(self.path):
            await self.show(self.path)
        await self.mount(Waiting(text, note))
        self.anchor()

    async def stop_waiting(self) -> None:
        """Remove the message of `wait`."""
        await self.remove_children(Waiting)

    async def focus_step(self, message: "StoredMessage", step: int) -> bool:
        """Focus the message `step` places on; False when there is none."""
        ids = [shown.id for shown in self.path]
        index = ids.index(message.id) + step if message.id in ids else -1
        if not 0 <= index < len(self.path):
            return False
        if index < self._first:
            await self._extend_up()
        elif index >= self._last:
            await self._extend_down()
        if (view := self.view(ids[index])) is not None:
            view.focus()
        return True

    async def reveal(self, message_id: int) -> None:
        """Mount a message of the path with those around it, scroll to it and mark it.

        The mark stays until something else is shown. The focus stays, so that the next typed text
        is a message, not a command.
        """
        ids = [shown.id for shown in self.path]
        if message_id not in ids:
            return
        self._unmark()
        index = ids.index(message_id)
        self.anchor(False)  # it may be far above the end
        if not self._first <= index < self._last:
            async with self._changing:
                with self.app.batch_update():
                    await self._remove(self.views)
                    self._first = self._last = max(0, index - AT_FIRST // 2)
                    await self._mount_later(min(len(ids), self._first + AT_FIRST))
        if (view := self.view(message_id)) is not None:
            view.add_class(_MARKED)
            self.call_after_refresh(self.scroll_to_widget, view, animate=False)

    @property
    def marked(self) -> MessageView | None:
        """The message that `reveal` has marked, if still marked."""
        return next((view for view in self.views if view.has_class(_MARKED)), None)

    def _unmark(self) -> None:
        if self.marked is not None:
            self.marked.remove_class(_MARKED)
            self.highlight("")

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value <= 1 and self._first > 0:
            self.call_later(self._extend_up)
        elif (
            new_value > old_value
            and new_value >= self.max_scroll_y - 1
            and self._last < len(self.path)
        ):
            self.call_later(self._extend_down)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill)

    async def _fill(self) -> None:
        """Mount earlier messages until there is something to scroll."""
        if self._first > 0 and self.max_scroll_y == 0 and self.is_attached:
            await self._extend_up()
            self.call_after_refresh(self._fill)

    async def _extend_up(self) -> None:
        """Mount earlier messages."""
        async with self._changing:
            if self._first == 0:
                return
            with self.app.batch_update():
                self._hold(self.views[0])
                first = max(0, self._first - STEP)
                views = [self._make(message) for message in self.path[first : self._first]]
                self._first = first
                await self.mount_all(views, before=0)
                if self._last - self._first > AT_MOST and self.live is None:
                    self.anchor(False)
                    far = self.views[AT_MOST:]
                    self._last = self._first + AT_MOST
                    await self._remove(far)

    async def _extend_down(self) -> None:
        """Mount later messages."""
        async with self._changing:
            if self._last == len(self.path):
                return
            with self.app.batch_update():
                self._hold(self.views[-1])
                await self._mount_later(min(len(self.path), self._last + STEP))
                if self._last - self._first > AT_MOST:
                    await self._drop_earlier(self._last - AT_MOST)

    async def _mount_later(self, last: int) -> None:
        views = [self._make(message) for message in self.path[self._last : last]]
        self._last = last
        await self.mount_all(views)

    async def _drop_earlier(self, first: int) -> None:
        far = self.views[: first - self._first]
        self._first = first
        await self._remove(far)

    async def _remove(self, views: Sequence[MessageView]) -> None:
        if self.screen.focused in views:
            # Textual would focus the nearest message that stays, and scroll to it.
            self.screen.set_focus(self.screen.query_one("PromptInput"))
        if views:
            await self.remove_children(views)

    def _make(self, message: "StoredMessage") -> MessageView:
        feedback = self._feedback.get(message.id)
        view = self._kind(message, self._note(message), feedback, markdown=self.markdown)
        view.show_time(self.times)
        return view

    def _note(self, message: "StoredMessage") -> str:
        if message.id == self.live:
            return ""
        words = status_words(message, self._reasons.get(message.id, ""))
        return " · ".join(filter(None, (message.notes, words)))

    def _hold(self, widget: Widget) -> None:
        """Keep a widget at its position on the screen through the next layout."""

        def let_go() -> None:
            self._held = None

        self._held = widget, widget.virtual_region.y - round(self.scroll_y)
        self.call_after_refresh(let_go)

    def arrange(self, size: "Size", optimal: bool = False) -> "DockArrangeResult":
        # Textual keeps an anchored widget at its end in the same way: the scroll position is set
        # during the layout, so no frame shows the wrong place.
        result = super().arrange(size, optimal)
        if self._held is not None:
            held, offset = self._held
            for placement in result.placements:
                if placement.widget is held:
                    y = max(0, placement.region.y - offset)
                    self.set_reactive(Widget.scroll_y, y)
                    self.set_reactive(Widget.scroll_target_y, y)
                    self.vertical_scrollbar.set_reactive(ScrollBar.position, y)
        if self.show_vertical_scrollbar:
            # Set in this way, the position does not redraw the scrollbar.
            self.vertical_scrollbar.refresh()
        return result
