"""The reference of a run: computed before its first step, and found again when it goes on.

Keep: it is computed from the weights that the run begins with, whichever checkpoint follows.
"""

import json
import os
from pathlib import Path

from rich.console import Console

from finetune.material import Material, processes
from finetune.objectives.pair_rows import PairRows
from finetune.objectives.reference import REFERENCE_FILE, give_reference


def keep_reference(material: Material, folder: Path, console: Console) -> None:
    """Give the rows of a run what the reference says of them, kept in the run's folder.

    Each of several processes computes it for itself, and the first one keeps it.
    """
    data, record = material.data, material.record
    sets = {"train": data.train, **{f"held out, {k}": v for k, v in data.held_out.items()}}
    pairs = {name: rows for name, rows in sets.items() if isinstance(rows, PairRows)}
    digest = json.dumps([record["data"], record["weights"], record["template"]])
    folder.mkdir(parents=True, exist_ok=True)
    is_first = os.environ.get("RANK", "0") == "0"
    path = folder / REFERENCE_FILE if is_first or processes() == 1 else None
    material.model.to(material.device)
    with console.status("the reference") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"log-probabilities of the reference, {done:,} of {total:,} rows")

        give_reference(
            material.model, pairs, data.collate, material.precision, progress, path, digest
        )
