"""The available models with search, and the downloadable ones."""

from typing import TYPE_CHECKING, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import one_line, printable
from chatapp.engine.models.known_models import KnownModel, advice, known_models
from chatapp.tui.conversation.model_loading import GetEnded, GetProgress, GetSaid, Getting
from chatapp.tui.events import ModelsFound
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog, Field, Notice, PlainOptions

if TYPE_CHECKING:
    from chatapp.engine.models.catalogue import ListedModel
    from chatapp.tui.conversation.conversation import Conversation

_HINT = "● is in use · Enter switches to a model · Esc closes"
_ASKING_HINT = "Enter downloads and uses it · Esc goes back"
_GETTING_HINT = "Esc stops"

_PATIENCE = 0.3
"""Seconds that a download has for its cleanup when the user quits."""


class _Row(NamedTuple):
    """A line of the list. name: "" for a heading. to_get: the model to download first."""

    name: str
    content: Content
    to_get: KnownModel | None = None

    @property
    def searched(self) -> str:
        return f"{self.name}\n{self.content.plain}".casefold()


class ModelScreen(Dialog[str | None]):
    """Returns the name of a model, or None. download: a short name; its download begins at once."""

    BINDING_GROUP_TITLE = "List of models"

    def __init__(self, conversation: "Conversation", current: str, download: str = "") -> None:
        super().__init__()
        self._conversation = conversation
        self._current = current
        self._chosen = download or current
        self._download = download
        self._models: list[ListedModel] = []
        self._to_get: list[KnownModel] = []
        self._rows: list[_Row] = []
        self._requested: KnownModel | None = None
        self._getting: Getting | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Models", classes="title")
            yield Static(f"{advice()}.", classes="hint advice")
            yield Field(placeholder="Filter, or a folder, hub id or address", compact=True)
            options = PlainOptions()
            options.can_focus = False  # the field keeps the focus; the list follows it
            yield options
            yield Static("Looking for models …", id="nothing", markup=False)
            yield Notice(id="getting")
            yield ProgressBar(show_eta=False)
            yield Static(_HINT, classes="hint", id="keys")

    def on_mount(self) -> None:
        self._list = self.query_one(OptionList)
        self._tell("")
        self._show()
        self._conversation.find_models(self)
        if self._download:
            self._get(known_models()[self._download])

    def on_unmount(self) -> None:
        if self._getting is not None:
            self._getting.stop(_PATIENCE)

    @on(ModelsFound)
    def _models_found(self, event: ModelsFound) -> None:
        event.stop()
        self._models, self._to_get = event.models, event.to_get
        self.query_one("#nothing", Static).display = not event.is_all
        self._show()

    @on(Input.Changed)
    def _filter(self) -> None:
        if self._getting is None:
            self._tell("")
        self._show()

    def _show(self) -> None:
        """List the models that match the field, and its text."""
        typed = self.query_one(Field).value.strip()
        words = typed.casefold().split()
        groups = {
            "Yours": [
                _Row(it.name, self._entry(it.name, it.about, it.origin)) for it in self._models
            ],
            "To download": [
                _Row(it.name, self._entry(it.name, f"{it.size} · {it.licence} · {it.purpose}"), it)
                for it in self._to_get
            ],
        }
        self._rows = []
        for heading, rows in groups.items():
            fits = [row for row in rows if all(word in row.searched for word in words)]
            self._rows += [_Row("", Content.styled(heading, "bold")), *fits] if fits else []
        if typed and typed not in [row.name for row in self._rows]:
            entry = Content.assemble("↵ Load ", (printable(typed), "bold"))
            self._rows.append(_Row(typed, entry))
        names = [row.name for row in self._rows]
        self._list.clear_options()
        self._list.add_options(Option(row.content, disabled=not row.name) for row in self._rows)
        first = next(filter(None, names), "")
        index = names.index(self._chosen if self._chosen in names else first) if names else None
        self._list.highlighted = index

    def _entry(self, name: str, about: str, origin: str = "") -> Content:
        """A model: its name first, then the folder that its own folder is in."""
        mark = ("● ", "$text-accent") if name == self._current else "  "
        name = printable(name).replace("\n", " ")
        is_path = origin in ("folder", "adapter")
        folder, slash, last = name.rpartition("/") if is_path else ("", "", name)
        where = f"  in {folder}" if slash else ""
        return Content.assemble(
            mark, (last, "bold"), (where, "dim"), "\n  ", (one_line(about), "dim")
        )

    @Action("Next model", "down", call="cursor(1)", name="next")
    @Action("Previous model", "up", call="cursor(-1)", name="previous")
    def action_cursor(self, step: int) -> None:
        if self._getting is not None:
            return
        if step > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()
        if self._list.highlighted is not None:
            self._chosen = self._rows[self._list.highlighted].name
        self._tell("")

    @Action("Use this model", "enter")
    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        index = self._list.highlighted
        if index is None or self._getting is not None:
            return
        row = self._rows[index]
        self._chosen = row.name
        if row.to_get is None:
            self.dismiss(row.name)
        elif row.to_get is not self._requested:
            self._ask(row.to_get)
        else:
            self._get(row.to_get)

    @Action("Close", "escape", name="close")
    @Action("Close", "f8", name="models")
    def action_leave(self) -> None:
        """Stop the download, or return to the list, or leave."""
        if self._getting is not None and not self._getting.is_stopping:
            self._getting.stop()
            self._tell(f"Stopping {self._getting.name} …", "Esc closes")
        elif self._getting is None and self._requested is not None:
            self._tell("")
        else:
            self.dismiss(None)

    # Downloading a model

    @property
    def is_busy(self) -> bool:
        return self._getting is not None

    def _ask(self, model: KnownModel) -> None:
        self._tell(
            f"{model.name} is not downloaded yet: {model.size}, licence {model.licence}.",
            _ASKING_HINT,
        )
        self._requested = model

    def _get(self, model: KnownModel) -> None:
        self._getting = Getting(model.name, self)
        self._tell(f"Downloading {model.name} …", _GETTING_HINT)
        self.query_one(ProgressBar).update(total=None, progress=0)
        self.query_one(ProgressBar).display = True
        words = f"the download of {model.name}, which the next one continues"
        self._conversation.start_thread(self._getting.run, words)

    def _tell(self, words: str, hint: str = _HINT) -> None:
        """Show a notice below the list, with its keys."""
        self._requested = None
        self.query_one(Notice).say(words)
        self.query_one("#keys", Static).update(hint)
        if self._getting is None:
            self.query_one(ProgressBar).display = False

    @on(GetSaid)
    def _show_step(self, event: GetSaid) -> None:
        event.stop()
        self._tell(event.sentence, _GETTING_HINT)

    @on(GetProgress)
    def _progressed(self, event: GetProgress) -> None:
        event.stop()
        self.query_one(ProgressBar).update(total=event.total, progress=event.done)

    @on(GetEnded)
    def _ended(self, event: GetEnded) -> None:
        event.stop()
        self._getting = None
        if event.problem:
            self._tell(event.problem)
        else:
            self.dismiss(event.name)
