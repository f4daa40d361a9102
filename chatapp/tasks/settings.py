"""The settings of a prompt file that `run` and `eval` take as options: one table for both.

An option means what the prompt file's key means; `eval` takes several values of it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

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
    """

    help: str
    values: tuple[str, ...] | None = None

    def check(self, name: str, value: str) -> str:
        """The value if it is possible. Raises PromptError that lists the possible ones."""
        if self.values is not None and value not in self.values:
            known = suggestion(value, self.values)
            raise PromptError(f"--{name} is {quoted(value)}, which is not known{known}")
        return value


SETTINGS: dict[str, Setting] = {
    "shots": Setting("Number of examples to show"),
    "select": Setting("How to choose examples"),
    "order": Setting("Order of the examples", get_args(ShotOrder)),
    "score": Setting("How labels are scored", get_args(Scoring)),
    "style": Setting(
        "text: as one text; turns: as a chat in the model's own template", get_args(Style)
    ),
    "instruction": Setting("off: without the prompt file's instruction", get_args(Switch)),
}
