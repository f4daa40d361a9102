"""The models one can go on with, filtered while one types.

Keep: whatever is typed can be chosen too, so that a folder, a hub id or a server's address needs
no list.
"""

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.foreign import printable
from chatapp.tui.events import ModelsFound
from chatapp.tui.field import Field
from chatapp.tui.options import Options

if TYPE_CHECKING:
    from chatapp.engine.catalogue import Found
    from chatapp.tui.conversation import Conversation

_HINT = "● is in use · Enter goes on with it · Esc leaves"


class ModelScreen(ModalScreen[str | None]):
    """Gives the name of a model, or None."""

    BINDING_GROUP_TITLE = "List of models"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Go on with this model"),
        Binding("down", "cursor(1)", "Next model", show=False),
        Binding("up", "cursor(-1)", "Model before", show=False),
        Binding("escape,f8", "dismiss", "Leave"),
    ]

    def __init__(self, conversation: "Conversation", current: str) -> None:
        super().__init__()
        self._conversation = conversation
        self._current = self._chosen = current
        self._models: list[Found] = []
        self._names: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Models", classes="title")
            yield Field(placeholder="Filter, or a folder, hub id or address", compact=True)
            options = Options()
            options.can_focus = False  # the field keeps the keys; the list follows them
            yield options
            yield Static("Looking for models …", id="nothing", markup=False)
            yield Static(_HINT, classes="hint")

    def on_mount(self) -> None:
        self._list = self.query_one(OptionList)
        self._show()
        self._conversation.find_models(self)

    @on(ModelsFound)
    def _models_found(self, event: ModelsFound) -> None:
        event.stop()
        self._models = event.models
        self.query_one("#nothing", Static).display = not event.is_all
        self._show()

    @on(Input.Changed)
    def _show(self) -> None:
        """List what matches the field, and what stands in it."""
        typed = self.query_one(Field).value.strip()
        words = typed.casefold().split()
        rows = [
            (model.name, self._entry(model))
            for model in self._models
            if all(word in f"{model.name} {model.about}".casefold() for word in words)
        ]
        if typed and typed not in [name for name, _ in rows]:
            rows.append((typed, Content.assemble("↵ Load ", (printable(typed), "bold"))))
        self._names = [name for name, _ in rows]
        self._list.clear_options()
        self._list.add_options(Option(entry) for _, entry in rows)
        index = self._names.index(self._chosen) if self._chosen in self._names else 0
        self._list.highlighted = index if rows else None

    def _entry(self, model: "Found") -> Content:
        name = printable(model.name).replace("\n", " ")
        about = " ".join(printable(model.about).split())
        mark = ("● ", "$text-accent") if model.name == self._current else "  "
        return Content.assemble(mark, (name, "bold"), "\n  ", (about, "dim"))

    def action_cursor(self, step: int) -> None:
        if step > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()
        if self._list.highlighted is not None:
            self._chosen = self._names[self._list.highlighted]

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        index = self._list.highlighted
        if index is not None:
            self.dismiss(self._names[index])
