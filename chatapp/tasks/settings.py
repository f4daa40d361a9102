"""The settings of a prompt file that `run` and `eval` take as options: one table for both.

An option means what the prompt file's key means; `eval` takes several values of it.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from chatapp.common.parameters import Parameter
from chatapp.common.userfiles import quoted, suggestion
from chatapp.rows.examples import PromptError

ShotOrder = Literal["nearest-first", "nearest-last", "shuffled"]
Scoring = Literal["direct", "calibrated", "channel", "per_token", "unconditional"]
Style = Literal["text", "turns"]
Switch = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a prompt file that an option changes.

    help: of the option. values: all that are possible, or None for a number or a selection method.
    number: the range of a number.
    """

    help: str
    values: tuple[str, ...] | None = None
    number: Parameter | None = None

    def read(self, name: str, text: str) -> Any:
        """The value that an option gives. Raises PromptError that says which are possible."""
        if self.number is not None:
            try:
                return self.number.parsed(text)
            except ValueError as error:
                raise PromptError(f"--{error}") from None
        if self.values is not None and text not in self.values:
            known = suggestion(text, self.values)
            raise PromptError(f"--{name} is {quoted(text)}, which is not known{known}")
        return text


SHOTS = Parameter(name="shots", kind=int, default=8, low=0, meaning="number of examples to show")
SETTINGS: dict[str, Setting] = {
    "shots": Setting("Number of examples to show", number=SHOTS),
    "select": Setting("How to choose examples"),
    "order": Setting("Order of the examples", get_args(ShotOrder)),
    "score": Setting("How labels are scored", get_args(Scoring)),
    "style": Setting(
        "text: as one text; turns: as a chat in the model's own template", get_args(Style)
    ),
    "instruction": Setting("off: without the prompt file's instruction", get_args(Switch)),
}
