"""`chatapp inspect --lens-from`, and `--layers --against`: lenses of models, and what they show of
two.

Invariant: nothing of torch is imported before a model is loaded.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from chatapp.commands.console import progress
from chatapp.commands.loading import load
from chatapp.common.foreign import printable
from chatapp.lab.findings import Finding

if TYPE_CHECKING:
    from chatapp.common.settings import Settings


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
