"""The log-probabilities of a run's labels under the reference: computed once, stored on disk.

The reference is the model with which a run begins. For an adapter that is the base with the adapter
switched off; with full tuning it is gone after the first step, so a run stores its values.

Invariant: stored log-probabilities are of the rows, weights and precision in the digest; others are
computed again.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from chatapp.common.progress import Progress
from chatapp.common.userfiles import whole_file
from chatapp.engine.backends.head import in_place_of
from finetune.data.batches import ByLength, Collate, loader
from finetune.objectives.log_probs import token_log_probs
from finetune.objectives.objective import has_adapter, model_inputs
from finetune.objectives.rows import PairRows

REFERENCE_FILE = "reference.safetensors"
_BATCH = 8


def give_reference(
    model: Any,
    sets: Mapping[str, PairRows],
    collate: Collate,
    precision: str,
    progress: Progress,
    path: Path | None = None,
    digest: str = "",
) -> None:
    """Add the reference to row sets: from a file, else computed, and stored there.

    model: the initial model of the run, on its device. digest: of rows and weights.
    """
    shapes = {name: [row_shape(rows, i) for i in range(len(rows))] for name, rows in sets.items()}
    described = sha256(repr((digest, precision, shapes)).encode()).hexdigest()
    flat = _read(path, described) if path else None
    total, done = sum(map(len, sets.values())), 0
    if flat is None:
        flat = {}
        for name, rows in sets.items():

            def tell(rows_done: int, before: int = done) -> None:
                progress(before + rows_done, total)

            computed = log_probs_of(model, rows, collate, precision, tell)
            flat[name] = torch.cat([part.flatten() for part in computed])
            done += len(rows)
        if path:
            _write(path, flat, described)
    for name, rows in sets.items():
        sizes = [height * width for height, width in shapes[name]]
        parts = torch.split(flat[name], sizes)
        rows.reference = [p.view(s) for p, s in zip(parts, shapes[name], strict=True)]


def row_shape(rows: PairRows, index: int) -> tuple[int, int]:
    """Sequences and tokens of a row."""
    return 2, rows.lengths[index]


@torch.no_grad()
def log_probs_of(
    model: Any, rows: PairRows, collate: Collate, precision: str, tell: Callable[[int], None]
) -> list[Tensor]:
    """log p of the labels of each row, (2, tokens) on the CPU, 0 for other tokens."""
    model.eval()
    head = model.get_output_embeddings()
    order = list(ByLength(rows.lengths))
    by_index: dict[int, Tensor] = {}
    device = next(model.parameters()).device
    cast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    for batch in loader(rows, ByLength(rows.lengths), _BATCH, collate):
        here = {key: value.to(device) for key, value in batch.items()}

        def compute(hidden: Tensor, here: dict[str, Tensor] = here) -> Tensor:
            return token_log_probs(hidden, head, here, here["response_mask"])

        with cast, _adapter_off(model), in_place_of(head, compute):
            logps = model(**model_inputs(here)).logits.cpu()
        for number in range(len(logps) // 2):
            index = order[len(by_index)]
            by_index[index] = logps[2 * number : 2 * number + 2, : rows.lengths[index]].clone()
        tell(len(by_index))
    return [by_index[index] for index in range(len(rows))]


def _adapter_off(model: Any) -> AbstractContextManager[Any]:
    return model.disable_adapter() if has_adapter(model) else nullcontext()


def _read(path: Path, described: str) -> dict[str, Tensor] | None:
    """None when the file is missing, of another run or broken."""
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("of") != described:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _write(path: Path, flat: Mapping[str, Tensor], described: str) -> None:
    with whole_file(path) as draft:
        save_file(dict(flat), draft, metadata={"of": described})
