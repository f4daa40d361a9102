"""How replies are drawn: every field of `Sampling`, checked in words, from the next turn on."""

from dataclasses import fields
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from chatapp.engine.model import Sampling
from chatapp.foreign import printable
from chatapp.settings import parameter
from chatapp.tui.field import Field

HINTS = {
    "temperature": "0 is greedy; higher varies more",
    "top_k": "keep the k likeliest; 0 is off",
    "top_p": "keep this probability mass; 1 is off",
    "min_p": "least share of the likeliest; 0 is off",
    "repetition_penalty": "above 1 repeats less; 1 is off",
    "no_repeat_ngram": "no n tokens a second time; 0 is off",
    "seed": "empty draws a new one each time",
    "max_tokens": "longest reply, in tokens",
}


class ParametersScreen(ModalScreen[Sampling | None]):
    """Gives the new parameters, or None when they are left as they were."""

    BINDING_GROUP_TITLE = "Parameters"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", "Use these values"),
        Binding("escape,f2", "dismiss", "Leave as it was"),
        Binding("up", "app.focus_previous", "Field above", show=False),
        Binding("down", "app.focus_next", "Field below", show=False),
    ]

    def __init__(self, sampling: Sampling, template: str) -> None:
        super().__init__()
        self._sampling = sampling
        self._template = template

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Parameters", classes="title")
            with VerticalScroll(can_focus=False):
                for field in fields(Sampling):
                    value = getattr(self._sampling, field.name)
                    with Horizontal(classes="field"):
                        yield Static(field.name, classes="name")
                        text = "" if value is None else str(value)
                        yield Field(text, id=field.name, compact=True)
                        yield Static(HINTS[field.name], classes="words")
                with Horizontal(classes="field"):
                    yield Static("template", classes="name")
                    yield Static(printable(self._template), markup=False)
            yield Static(id="field-hint")
            yield Static(id="field-problem", markup=False)
            yield Static("Enter uses these values from now on · Esc leaves", classes="hint")

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        self.query_one("#field-hint", Static).update(HINTS.get(event.widget.id or "", ""))

    @on(Input.Submitted)
    def action_apply(self) -> None:
        values: dict[str, float | int | None] = {}
        try:
            for field in fields(Sampling):
                values[field.name] = self._value(field.name)
                Sampling(**{field.name: values[field.name]})  # type: ignore[arg-type]
        except ValueError as problem:
            self.query_one("#field-problem", Static).update(printable(str(problem)))
            self.query_one(f"#{field.name}", Field).focus()
        else:
            self.dismiss(Sampling(**values))  # type: ignore[arg-type]

    def _value(self, name: str) -> float | int | None:
        """What stands in a field. Raises ValueError in words."""
        return parameter(name, self.query_one(f"#{name}", Field).value.strip())
