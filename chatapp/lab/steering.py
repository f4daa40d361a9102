"""Steering: a direction of the residual stream, made from pairs of texts, saved, added to replies.

    v = mean(h⁺) − mean(h⁻)      hidden states of the last tokens of both texts of each pair
    h ← h + c · m · v / ‖v‖      after one block, from the reply's first token on

with m the mean norm of the residual stream there, so that a strength c means the same in every
model (contrastive activation addition: Rimsky et al. 2023, arXiv 2312.06681).

A direction is kept as a GGUF control vector, as llama.cpp reads it: `direction.3` is added after
block 3. What is kept is m · v / ‖v‖, so that c is llama.cpp's scale.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatapp.common.foreign import parse_json
from chatapp.common.paths import data_dir
from chatapp.common.userfiles import (
    Progress,
    UserError,
    no_progress,
    quoted,
    read_required,
    whole_file,
)
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.interventions import (
    UNCHANGED,
    Change,
    Interventions,
    parse_parts,
    switched_off,
)
from chatapp.engine.events import Token
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.model import LanguageModel
from chatapp.lab.heads import own_decoder
from chatapp.lab.traces import Recorder

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TENSOR = re.compile(r"direction\.(0|[1-9][0-9]{0,8})")
_STRENGTH = re.compile(r"(.+?)(?:=|\s+)(\S+)")
_KIND = "controlvector"


@dataclass(frozen=True, eq=False)
class Direction:
    """vectors: what strength 1 adds after each block, by the block's number, (width,) each."""

    name: str
    vectors: Mapping[int, "np.ndarray[Any, np.dtype[np.float32]]"]

    def with_strength(self, strength: float, architecture: Architecture) -> Interventions:
        """The changes of this strength. Raises UserError for a direction of another model."""
        if not math.isfinite(strength):
            raise UserError(f"the strength of {self.name} is {strength}; expected a number")
        for layer, vector in self.vectors.items():
            if layer >= architecture.layers or len(vector) != architecture.width:
                raise UserError(
                    f"{self.name} was made for another model: it has {len(vector)} numbers for "
                    f"layer {layer}; this model has {architecture.width} in layers 0 to "
                    f"{architecture.layers - 1}"
                )
        return Interventions.of(
            Change(
                f"{self.name} {strength:g}",
                f"blocks.{layer}",
                tuple((strength * vector).tolist()),
                is_added=True,
            )
            for layer, vector in sorted(self.vectors.items())
        )


Pair = tuple[str, str]


def read_pairs(path: Path) -> list[Pair]:
    """Pairs of texts, one JSON object per line with "positive" and "negative". Raises UserError."""
    pairs: list[Pair] = []
    for number, line in enumerate(read_required(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            raise UserError(f"{path}, line {number}: is not JSON") from None
        match row:
            case {"positive": str(positive), "negative": str(negative)} if positive and negative:
                pairs.append((positive, negative))
            case _:
                raise UserError(
                    f"{path}, line {number}: expected an object with the texts positive and "
                    "negative"
                )
    if not pairs:
        raise UserError(f"{path}: there are no pairs of texts")
    return pairs


@torch.inference_mode()
def make_direction(
    model: LanguageModel,
    name: str,
    pairs: Sequence[Pair],
    layer: int | None = None,
    progress: Progress = no_progress,
) -> Direction:
    """The direction from the negative to the positive texts, after one block.

    layer: the block, from 0; the middle one by default. Raises UserError for a layer that is not
    there, texts that do not fit, and pairs without a difference.
    """
    own = own_decoder(model)
    layers = own.decoder.architecture.layers
    layer = layers // 2 if layer is None else layer
    if not 0 <= layer < layers:
        raise UserError(f"layer {layer}: the model has layers 0 to {layers - 1}")
    difference = torch.zeros(own.decoder.architecture.width, device=own.device)
    norms: list[Tensor] = []
    for done, texts in enumerate(pairs):
        progress(done, len(pairs))
        for text, sign in zip(texts, (1, -1), strict=True):
            states = _states(own, text, layer)
            difference += sign * states[-1] / len(pairs)
            norms.append(states[1:].norm(dim=1) if len(states) > 1 else states.norm(dim=1))
    length = float(difference.norm())
    if not length:
        raise UserError("the positive and the negative texts end in the same states")
    mean = float(torch.cat(norms).mean())
    return Direction(name, {layer: (difference * (mean / length)).cpu().numpy()})


def _states(model: LocalModel, text: str, layer: int) -> Tensor:
    """The residual stream after a block: (tokens, width)."""
    ids = model.tokenizer.encode(text)
    model.check_text(ids)
    recorder = Recorder([f"blocks.{layer}"])
    with model.lock:
        model.decoder.hidden([[*model.start, *ids]], layer=layer + 1, observe=recorder)
    return recorder.values[f"blocks.{layer}"][0]


def directions_dir() -> Path:
    """The folder of the directions with a name."""
    return data_dir() / "directions"


def direction_names() -> list[str]:
    """The names of the saved directions."""
    return sorted(path.stem for path in directions_dir().glob("*.gguf"))


def path_of(name: str) -> Path:
    """Where a direction is: of that name, or the GGUF file itself. Raises UserError."""
    if name.endswith(".gguf"):
        return Path(name)
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a name of a direction; expected letters, digits, - and _, as in calm"
        )
    return directions_dir() / f"{name}.gguf"


def save_direction(direction: Direction, path: Path, family: str) -> None:
    """Write a control vector. family: of the model, as GGUF names it. Raises OSError."""
    from gguf import GGUFWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        writer = GGUFWriter(draft, _KIND)
        writer.add_string(f"{_KIND}.model_hint", family)
        writer.add_uint32(f"{_KIND}.layer_count", len(direction.vectors))
        for layer, vector in sorted(direction.vectors.items()):
            writer.add_tensor(f"direction.{layer}", np.asarray(vector, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def load_direction(name: str) -> Direction:
    """A direction by its name, or of a GGUF file. Raises UserError."""
    path = path_of(name)
    if not path.is_file():
        known = direction_names()
        hint = f"; there are {', '.join(known)}" if known else "; `chatapp steer make` makes one"
        raise UserError(f"{name}: there is no such direction{hint}")
    file = GGUFFile(path)
    vectors = {}
    for tensor in file.names:
        match = _TENSOR.fullmatch(tensor)
        vector = file.array(tensor)
        if match is None or vector.ndim != 1 or not np.isfinite(vector).all():
            raise UserError(f"{path}: is not a control vector; {quoted(tensor)} is not a direction")
        vectors[int(match[1])] = vector
    if not vectors:
        raise UserError(f"{path}: is not a control vector; it has no directions")
    return Direction(path.stem, vectors)


def steering(text: str, architecture: Architecture) -> Interventions:
    """The changes that `calm=0.1` or `calm 0.1` asks for. Raises UserError."""
    match = _STRENGTH.fullmatch(text.strip())
    try:
        name, strength = (match[1], float(match[2])) if match else ("", math.nan)
    except ValueError:
        name, strength = "", math.nan
    if not name:
        raise UserError(f"{text!r}: expected a direction and a strength, as in calm=0.1")
    return load_direction(name).with_strength(strength, architecture)


def changes_of(
    model: LanguageModel, ablate: str | None, steer: Iterable[str] = ()
) -> Interventions:
    """Parts that are switched off, such as 3.5,4.mlp, and directions, such as calm=0.1. Raises
    UserError for a model without such parts."""
    if not isinstance(model, LocalModel):
        raise UserError(
            f"{model.name}: only models that chatapp computes itself have parts to switch off"
        )
    shape = model.decoder.architecture
    changes = UNCHANGED if ablate is None else switched_off(parse_parts(ablate, shape))
    return sum((steering(text, shape) for text in steer), changes)


@dataclass(frozen=True, slots=True)
class Steered:
    """A reply at one strength. kl: the mean over its tokens of KL(unchanged ‖ steered), in nats.
    perplexity: of the reply, under the unchanged model."""

    strength: float
    text: str
    kl: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Replies to one prompt by strength."""

    direction: str
    replies: tuple[Steered, ...]

    @property
    def reading(self) -> str:
        """What is shown, in a sentence."""
        return (
            f"Replies with {self.direction} at {len(self.replies)} strengths, their mean "
            "KL(unchanged ‖ steered) in nats, and their perplexity under the unchanged model"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"direction": self.direction, "replies": [asdict(reply) for reply in self.replies]}


def sweep(
    model: LanguageModel,
    direction: Direction,
    ids: Sequence[int],
    strengths: Sequence[float],
    draw: Callable[[Interventions], Iterable[Any]],
    progress: Progress = no_progress,
) -> Sweep:
    """The replies to a prompt at each strength. Raises UserError.

    ids: of the prompt. draw: draws the reply to it of the model that is changed so.
    """
    own = own_decoder(model)
    replies = []
    for done, strength in enumerate(strengths):
        progress(done, len(strengths))
        changes = direction.with_strength(strength, own.decoder.architecture).added_after(len(ids))
        events = list(draw(changes))
        text = "".join(event.text for event in events)
        drawn = [event.id for event in events if isinstance(event, Token)]
        replies.append(Steered(strength, text, *_compared(own, ids, drawn, changes)))
    return Sweep(direction.name, tuple(replies))


@torch.inference_mode()
def _compared(
    model: LocalModel, ids: Sequence[int], drawn: Sequence[int], changes: Interventions
) -> tuple[float, float]:
    """KL and perplexity of a reply; see `Steered`."""
    if not drawn:
        return 0.0, math.nan
    tokens = [*model.start, *ids, *drawn[:-1]]
    first = len(model.start) + len(ids) - 1
    logprobs = []
    with model.lock:
        for change in (Interventions(), changes.shifted(len(model.start))):
            states = model.decoder.hidden([tokens], changes=change)[0, first:]
            logprobs.append(model.decoder.head(states).float().log_softmax(-1))
    plain, steered = logprobs
    kl = (plain.exp() * (plain - steered)).sum(-1).mean()
    nats = -plain[range(len(drawn)), list(drawn)].mean()
    return float(kl), math.exp(float(nats))
