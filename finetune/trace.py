"""`finetune trace`: which words of a reply stand in a run's training files, and where."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.language_modelling import perplexity
from finetune.measuring.verbatim import ORDER, Recall, find_copies


@dataclass(frozen=True, slots=True)
class Copies:
    """A reply with its copies. model_nats: of the whole reply under the run's model."""

    reply: str
    recall: Recall
    model_nats: float

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "reply": self.reply,
            "copies": [
                {"text": self.reply[copy.start : copy.end], **asdict(copy)}
                for copy in self.recall.copies
            ],
            "words": self.recall.words,
            "nats_per_word": {
                "model": self.model_nats / self.recall.words,
                "ngram": self.recall.ngram_nats / self.recall.words,
            },
        }

    def shown(self) -> RenderableType:
        """The reply with its copies underlined, and where they are from."""
        text = Text(printable(self.reply))
        table = Table("copy", "words", "times", "first in row")
        for copy in self.recall.copies:
            text.stylize("underline", copy.start, copy.end)
            span = Text(printable(self.reply[copy.start : copy.end]))
            place = Text(printable(copy.row))
            table.add_row(span, f"{copy.words:,}", f"{copy.count:,}", place)
        words = self.recall.words
        nats = (
            f"{self.model_nats / words:.2f} nats a word by the model, "
            f"{self.recall.ngram_nats / words:.2f} by the {ORDER}-gram of its training files"
        )
        none = Text("No longer span of it stands in the training files.")
        return Group(text, table if self.recall.copies else none, Text(nats))


def trace_copies(run: Path, reply: str, device: str) -> Copies:
    """Find what of a reply stands in the training files. Raises ConfigError and ModelError."""
    recall = find_copies(run, reply)
    model = load_model(str(run), device=device)
    return Copies(reply, recall, perplexity(model, reply).negative_log_likelihood)
