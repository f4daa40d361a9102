"""`chatapp inspect --lens-from`, and `--layers --against`: lenses of models, and what they show of
two.

Invariant: nothing of torch is imported before a model is loaded.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from rich.text import Text

from chatapp.commands.console import progress
from chatapp.commands.inspecting.drawing import draw_table, heading
from chatapp.commands.loading import load
from chatapp.common.foreign import printable
from chatapp.common.shading import bar
from chatapp.lab.findings import Finding, state_name

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.lab.divergence import Divergence

_BAR = 12


@dataclass(frozen=True, slots=True)
class SavedLens(Finding):
    """A lens that was computed. positions: how many its mean is over. size: of the file, in
    bytes."""

    name: ClassVar[str] = "lens"

    path: str
    positions: int
    size: int

    @property
    def sentence(self) -> str:
        return (
            f"The Jacobian lens over {self.positions:,} positions is saved in "
            f"{printable(self.path)} ({self.size / 1e6:.1f} MB)"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_lens(settings: "Settings", texts: Path) -> Sequence[Finding]:
    """Compute the lens of the model on the texts of a file. Raises UserError."""
    from chatapp.lab.heads import own_decoder, sample_texts, texts_as_ids
    from chatapp.lab.lens import compute_lens, lens_path

    chosen = sample_texts(texts)
    model = own_decoder(load(settings.model, "float32", settings.device))
    path = lens_path(model)
    with progress("Computing the lens") as report:
        lens = compute_lens(model, texts_as_ids(model, chosen), path, report)
    return [SavedLens(str(path), lens.positions, path.stat().st_size)]


def compare_layers(settings: "Settings", against: str, content: str) -> Sequence[Finding]:
    """Where the model diverges from `against` while they read a text. Raises UserError."""
    from chatapp.lab.divergence import Divergence

    model = load(settings.model, "float32", settings.device)
    base = load(against, "float32", settings.device)
    with progress("Comparing layers") as report:
        return [Divergence.of(model, base, content, report)]


def draw_saved_lens(lens: SavedLens, width: int) -> list[RenderableType]:
    """One line."""
    return [heading("Lens", lens.sentence)]


def draw_divergence(divergence: "Divergence", width: int) -> list[RenderableType]:
    """A row a layer, a column a lens, and a bar for the first."""
    most = max(divergence.logit) or 1.0
    rows: list[list[Text | str]] = []
    for index, value in enumerate(divergence.logit):
        values = [f"{kls[index]:.4f}" for kls in divergence.lenses.values()]
        rows.append([state_name(index), *values, Text(bar(max(value, 0.0) / most, _BAR), "green")])
    columns = [">layer", *(f">{lens}" for lens in divergence.lenses), ""]
    return [heading("Divergence", divergence.sentence), draw_table(columns, rows, width)]
