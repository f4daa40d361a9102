"""F2: the sampling parameters, template and precision, and presets."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus, Key
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from chatapp.common.foreign import printable
from chatapp.common.parameters import PARAMETERS, PRECISIONS, Origin, Sampling, check_choice
from chatapp.common.settings import (
    PresetsError,
    no_preset,
    read_presets,
    remove_preset,
    save_preset,
)
from chatapp.common.userfiles import UserError
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog, Field

HINTS = {
    **{name: parameter.help for name, parameter in PARAMETERS.items()},
    "template": "how a chat is written as a prompt",
    "precision": f"one of {', '.join(PRECISIONS)}",
    "preset": "Ctrl+S saves, Ctrl+L loads, Ctrl+R deletes",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters on this screen. template: "" for the model's own. origins: of the current
    values.
    """

    sampling: Sampling
    template: str
    precision: str
    origins: Mapping[str, Origin] = field(default_factory=dict)


class ParametersScreen(Dialog[None]):
    """Shows `now`, and passes the user's changes to `use`.

    use: its last argument is whether the sampling is for all chats; raises ValueError or
    SettingsError with a sentence, and changes nothing, for invalid ones. presets: the file of the
    presets.
    """

    BINDING_GROUP_TITLE = "Sampling settings"
    ALSO = (
        Action("Close", "f2", call="dismiss", name="parameters"),
        Action("Previous field", "up", call="app.focus_previous", name="previous"),
        Action("Next field", "down", call="app.focus_next", name="next"),
    )

    def __init__(
        self,
        now: Parameters,
        use: "Callable[[Parameters, bool], None]",
        templates: list[str],
        presets: Path,
    ) -> None:
        super().__init__()
        self._now = now
        self._use = use
        self._templates = templates
        self._path = presets

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Sampling settings", classes="title")
            with VerticalScroll(can_focus=False):
                for name, value in _texts(self._now.sampling).items():
                    yield from self._row(name, value)
                yield from self._row("template", self._now.template, self._templates)
                yield from self._row("precision", self._now.precision, PRECISIONS)
                yield from self._row("preset", "")
            yield Static(id="field-hint", markup=False)
            yield Static(id="field-problem", markup=False)
            yield Static("Enter: this chat · Ctrl+T: all chats · Esc cancels", classes="hint")

    def _row(self, name: str, value: str, known: Iterable[str] = ()) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Static(name, classes="name")
            suggester = SuggestFromList(known, case_sensitive=False)
            yield Field(value, id=name, compact=True, suggester=suggester)
            yield Static(self._words(name), classes="words", markup=False)

    def _words(self, name: str) -> str:
        """The description of a field, with the origin of its value if that is not the program."""
        origin = self._now.origins.get(name, "default")
        return HINTS[name] if origin == "default" else f"{origin} · {HINTS[name]}"

    def on_mount(self) -> None:
        self._show_presets()

    def direct(self, event: Key) -> bool:
        """Move to the field above or below, according to the bindings, but at once."""
        move = {"up": self.focus_previous, "down": self.focus_next}.get(event.key)
        if move is not None:
            move()
        return move is not None

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        name = event.widget.id
        self.query_one("#field-hint", Static).update(self._words(name) if name in HINTS else "")

    @Action("Use these values", "enter", name="choose")
    @on(Input.Submitted)
    def action_apply(self) -> None:
        self._apply(for_all=False)

    @Action("Use these values, in all chats from now on", "ctrl+t")
    def action_apply_to_all(self) -> None:
        self._apply(for_all=True)

    def _apply(self, *, for_all: bool) -> None:
        try:
            sampling = self._sampling()
            template, precision = self._text("template"), self._text("precision")
            if precision not in PRECISIONS:
                self._field("precision").focus()
            check_choice("precision", precision)
            self._use(Parameters(sampling, template, precision), for_all)
        except (ValueError, UserError) as problem:
            self._tell(str(problem))
        else:
            self.dismiss()

    def _sampling(self) -> Sampling:
        """The values in the fields. Raises ValueError with a sentence, with the focus
        on the field."""
        sampling = self._now.sampling
        for name in PARAMETERS:
            try:
                sampling = sampling.changed(name, self._text(name))
            except ValueError:
                self._field(name).focus()
                raise
        return sampling

    def _field(self, name: str) -> Field:
        return self.query_one(f"#{name}", Field)

    def _text(self, name: str) -> str:
        return self._field(name).value.strip()

    def _tell(self, words: str, *, done: bool = False) -> None:
        """Report an error, or a success."""
        line = self.query_one("#field-problem", Static)
        line.update(printable(words))
        line.set_class(done, "-done")

    # Presets

    def _presets(self) -> dict[str, tuple[str, Sampling]]:
        """Name and parameters by the displayed name. Raises PresetsError."""
        presets = read_presets(self._path)
        return {printable(name): (name, sampling) for name, sampling in presets.items()}

    def _show_presets(self) -> None:
        """Update the completions of the preset's field."""
        try:
            names = list(self._presets())
        except PresetsError as error:
            self._tell(str(error))
            return
        self._field("preset").suggester = SuggestFromList(names, case_sensitive=False)
        self._field("preset").placeholder = ", ".join(names) or "none yet"

    def _named(self) -> tuple[str, Sampling]:
        """The preset whose name is in the field. Raises PresetsError."""
        presets, name = self._presets(), self._text("preset")
        if name not in presets:
            self._field("preset").focus()
            raise PresetsError(no_preset(name, list(presets)))
        return presets[name]

    @Action("Save these values as the preset of this name", "ctrl+s", name="save_preset")
    def action_save(self) -> None:
        try:
            sampling = self._sampling()
            if not (name := self._text("preset")):
                self._field("preset").focus()
                raise PresetsError("a preset needs a name: write one, then Ctrl+S saves it")
            save_preset(self._path, name, sampling)
        except (PresetsError, ValueError) as error:
            self._tell(str(error))
        else:
            self._tell(f"These values are saved as {name!r}.", done=True)
            self._show_presets()

    @Action("Load the preset of this name", "ctrl+l", name="load_preset")
    def action_load(self) -> None:
        try:
            name, sampling = self._named()
        except PresetsError as error:
            self._tell(str(error))
            return
        for parameter, value in _texts(sampling).items():
            self._field(parameter).value = value
        self._tell(f"These are the values of {name!r}; Enter uses them.", done=True)

    @Action("Delete the preset of this name", "ctrl+r", name="delete_preset")
    def action_remove(self) -> None:
        try:
            name, _ = self._named()
            remove_preset(self._path, name)
        except PresetsError as error:
            self._tell(str(error))
        else:
            self._tell(f"{name!r} is deleted; Ctrl+S saves these values under a name.", done=True)
            self._show_presets()


def _texts(sampling: Sampling) -> dict[str, str]:
    """The texts in the fields, by name."""
    values = {name: getattr(sampling, name) for name in PARAMETERS}
    return {name: "" if value is None else str(value) for name, value in values.items()}
