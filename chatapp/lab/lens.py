"""The Jacobian lens: what a state within the model is disposed to make it write.

    lens_l(h) = unembed(J_l h)        J_l = mean of Σ_{t' ≥ t} ∂h_final(t') / ∂h_l(t)

with h_l(t) the residual stream after block l at position t, h_final that after the last block, and
unembed the final norm and the output matrix. The mean is over texts and over their positions t, of
which the first 16 are left out (Gurnee et al. 2026, "Verbalizable Representations Form a Global
Workspace in Language Models", transformer-circuits.pub/2026/workspace). The logit lens is the same
with J_l = 1.

Invariant: a lens is used for the model alone that it was computed for; an interrupted computation
goes on where it was.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chatapp.common.paths import data_dir
from chatapp.common.progress import Progress, no_progress
from chatapp.common.userfiles import UserError, whole_file
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.files.safetensors import open_weights
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.resolving import BUNDLED_FOLDER, BUNDLED_LENS
from chatapp.lab.heads import own_decoder

SKIPPED = 16
"""First positions that are left out: much attention goes to them."""

LONGEST = 128
"""Tokens of a text that are read, as in the paper."""

SAVED_EVERY = 10.0
"""Seconds between two saves of what is not finished."""


@dataclass(frozen=True, eq=False)
class JacobianLens:
    """jacobians: (layers, width, width), J of the embeddings and of all blocks but the last, whose
    is 1. positions: how many the mean is over."""

    jacobians: Tensor
    positions: int

    def transport(self, states: Tensor) -> Tensor:
        """J_l h of a token's states (layers + 1, width), from the embeddings on."""
        early, last = states[:-1], states[-1:]
        jacobians = self.jacobians.to(states.device)
        return torch.cat([torch.einsum("loi,li->lo", jacobians, early), last])


def compute_lens(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    path: Path,
    progress: Progress = no_progress,
) -> JacobianLens:
    """Compute the lens of a model and save it.

    texts: tokens, of which `LONGEST` are read; texts of up to `SKIPPED` tokens add nothing. path:
    where the lens goes; what is not finished is kept beside it. Raises UserError when no text is
    long enough, ModelError unless the weights are float32.
    """
    own = own_decoder(model)
    rows = [[*own.start, *ids][: min(LONGEST, own.context)] for ids in texts]
    rows = [row for row in rows if len(row) > SKIPPED]
    if not rows:
        raise UserError(
            f"no text has more than {SKIPPED} tokens; a lens is computed on longer ones"
        )
    draft = path.with_suffix(".partial")
    digest = hashlib.sha256(json.dumps([model_key(own), rows]).encode()).hexdigest()
    done, total = _resumed(draft, digest)
    saved_at = time.monotonic()
    for row in rows[done:]:
        progress(done, len(rows))
        with own.lock:
            added = _summed_jacobians(own.decoder, row)
        total = added if total is None else total + added
        done += 1
        if time.monotonic() - saved_at > SAVED_EVERY:
            _save(draft, total, {"texts": digest, "done": done})
            saved_at = time.monotonic()
    progress(done, len(rows))
    assert total is not None
    positions = sum(len(row) - SKIPPED for row in rows)
    mean = (total / positions).half()
    _save(path, mean, {"model": model_key(own), "texts": len(rows), "positions": positions})
    draft.unlink(missing_ok=True)
    return JacobianLens(mean.float(), positions)


def _summed_jacobians(decoder: Decoder, ids: Sequence[int]) -> Tensor:
    """Σ over positions t of Σ_{t' ≥ t} ∂h_final(t')/∂h_l(t): (layers, width, width).

    One backward pass for each number of h_final gives its derivatives at all positions and layers.
    """
    shape = decoder.architecture
    last = f"blocks.{shape.layers - 1}"
    points = ["embed", *(f"blocks.{layer}" for layer in range(shape.layers - 1))]
    seen: dict[str, Tensor] = {}

    def record(point: str, value: Tensor) -> Tensor:
        if point == "embed":
            value = value.detach().requires_grad_()
        if point in points or point == last:
            seen[point] = value
        return value

    decoder.hidden_with_gradients([ids], record)
    with torch.inference_mode(False), torch.enable_grad():
        states = [seen[point] for point in points]
        # Causal attention keeps a state from what comes before it, so that t' >= t holds by itself.
        final = seen[last].reshape(len(ids), -1).sum(0)
        gradients = [torch.autograd.grad(one, states, retain_graph=True) for one in final.unbind()]
    width = shape.width
    sums = [
        torch.stack([gradient.reshape(-1, width)[SKIPPED:].sum(0) for gradient in by_layer])
        for by_layer in gradients
    ]
    return torch.stack(sums, 1).cpu()


def find_lens(model: LocalModel) -> JacobianLens | None:
    """The lens of a model: the user's own, or the one that ships with it; None without one."""
    key = model_key(model)
    shape = model.decoder.architecture
    for path in (lens_path(model), BUNDLED_FOLDER / BUNDLED_LENS):
        if not path.is_file():
            continue
        with open_weights(path, "pt") as file:
            if (file.metadata() or {}).get("model") == key:
                jacobians = file.get_tensor("jacobians").float()
                if jacobians.shape == (shape.layers, shape.width, shape.width):
                    return JacobianLens(jacobians, int(file.metadata()["positions"]))
    return None


def lens_path(model: LocalModel) -> Path:
    """Where the user's own lens of a model is."""
    return data_dir() / "lenses" / f"{model_key(model)}.safetensors"


def model_key(model: LocalModel) -> str:
    """What tells models apart: the name, and the weights of all norms, which have the same numbers
    in every precision."""
    decoder = model.decoder
    norms = [norm for block in decoder.blocks for norm in (block.norm_1, block.norm_2)]
    digest = hashlib.sha256(model.name.encode())
    if not decoder.architecture.is_post_norm:
        norms.append(decoder.norm)
    for norm in norms:
        digest.update(norm.weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _resumed(draft: Path, digest: str) -> tuple[int, Tensor | None]:
    """How many texts are done, and their sum."""
    if draft.is_file():
        with open_weights(draft, "pt") as file:
            known = file.metadata() or {}
            if known.get("texts") == digest:
                return int(known["done"]), file.get_tensor("jacobians")
    return 0, None


def _save(path: Path, jacobians: Tensor, about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        save_file(
            {"jacobians": jacobians.contiguous()}, file, {k: str(v) for k, v in about.items()}
        )
