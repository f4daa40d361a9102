"""Steps through the models that a run kept while it learned, with the inspector open."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from chatapp.engine.models.resolving import step_beside, step_of
from chatapp.tui.conversation.conversation import Conversation


@dataclass
class UseStep(Message):
    """The user wants to look at the model of another step of the run."""

    model: str


class RunSteps(Widget):
    """A widget whose keys choose the step before or after that of the conversation's model."""

    BINDING_GROUP_TITLE = "Inspector, the models of a run"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+left", "step(-1)", "The model at the step before", show=False),
        Binding("shift+right", "step(1)", "The model at the step after", show=False),
    ]

    _conversation: Conversation

    @property
    def step_in_words(self) -> str:
        """The step of the model that is looked at; "" for a model that is none."""
        model = self._conversation.model
        step = None if model is None else step_of(model.name)
        return "" if step is None else f" · step {step:,} of the run"

    def action_step(self, move: int) -> None:
        model = self._conversation.model
        if model is None:
            return  # one is loading
        if (name := step_beside(model.name, move)) is not None:
            self.post_message(UseStep(name))
        else:
            self.notify("This model is of no run that kept another step there.", markup=False)
