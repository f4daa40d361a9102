"""A text read once, and read again with one thing different, many times and at little cost.

What lies before a changed layer is not computed again, and many changes go through the later layers
together, one a row. A patch at one position leaves all earlier positions as they were: their keys
and values are used again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from chatapp.common.userfiles import Progress, UserError, no_progress
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, Part
from chatapp.lab.traces import Recorder

_TOKENS_AT_ONCE = 8192
"""How many tokens all rows have together: the inside of an MLP takes some 100 MB for them."""


class LabError(UserError, ValueError):
    """Why an experiment cannot be made, or means nothing, in one sentence."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A token's logit against another's, or against the mean of the vocabulary where there is
    none: a raw logit holds a constant that the softmax ignores.
    """

    token: int
    against: int | None = None

    def of(self, logits: Tensor) -> Tensor:
        """The differences (…) of logits (…, vocabulary)."""
        other = logits.mean(-1) if self.against is None else logits[..., self.against]
        return logits[..., self.token] - other


class Reading:
    """What happened in a decoder while it read a text, for what comes after its last token.

    start: tokens before the text, which every text of the model begins with.
    states: (layers + 1, tokens, width), the residual stream before each layer and after the last.
    heads: (layers, heads, tokens, head size), what heads mix of the values, before the projection.
    mlps: (layers, tokens, width), what MLPs add. positions: (tokens, width), None where they are
    not added to embeddings. logits: (vocabulary,) after the last token, before a cap.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        ids: Sequence[int],
        start: Sequence[int] = (),
        changes: Interventions = UNCHANGED,
    ) -> None:
        shape = decoder.architecture
        self.decoder, self.ids, self.start = decoder, tuple(ids), tuple(start)
        self.changes = changes.shifted(len(start))
        blocks = [f"blocks.{layer}" for layer in range(shape.layers)]
        heads = [f"{b}.attention.head.{h}" for b in blocks for h in range(shape.heads)]
        mlps = [f"{block}.mlp" for block in blocks]
        keys = [f"{block}.attention.key" for block in blocks]
        values = [f"{block}.attention.value" for block in blocks]
        points = ["positions", "embed", *blocks, *heads, *mlps, *keys, *values]
        seen = Recorder(points)
        decoder.hidden([[*start, *ids]], observe=seen, changes=self.changes)
        kept = seen.values
        self.states = torch.stack([kept[point][0] for point in ("embed", *blocks)])
        by_head = torch.stack([kept[point][0] for point in heads])
        self.heads = by_head.view(shape.layers, shape.heads, *by_head.shape[1:])
        self.mlps = torch.stack([kept[point][0] for point in mlps])
        self.keys = [kept[point] for point in keys]
        self.values = [kept[point] for point in values]
        self.positions = kept["positions"][0] if "positions" in kept else None
        self.logits = last_logits(decoder, self.states[-1][None])[0]

    @property
    def tokens(self) -> int:
        """How many tokens were read, those before the text included."""
        return len(self.start) + len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One thing that is different when a text is read again.

    layer: from which on. head, is_mlp: what of it changes; neither is the residual stream before
    it. position: the only one that changes, None for all. value: what is put there, (tokens, size)
    or (size,); None for zeros.
    """

    layer: int
    head: int | None = None
    is_mlp: bool = False
    position: int | None = None
    value: Tensor | None = None

    @classmethod
    def without(cls, part: Part, value: Tensor | None = None) -> "Edit":
        """Without a head or an MLP, or with `value` in its place. Raises LabError for others."""
        if part.neuron is not None or (part.head is None and not part.is_mlp):
            raise LabError(f"{part}: only heads and MLPs are switched off one by one")
        return cls(part.layer, part.head, part.is_mlp, value=value)

    def there(self, reading: Reading) -> Tensor:
        """What a reading has where this puts its value: (tokens, size) or (size,)."""
        states = reading.mlps if self.is_mlp else reading.states
        whole = states[self.layer] if self.head is None else reading.heads[self.layer, self.head]
        return whole if self.position is None else whole[self.position]

    def put(self, into: Tensor) -> None:
        """Change (tokens, size) in place."""
        target = into if self.position is None else into[self.position]
        if self.value is None:
            target.zero_()
        else:
            target.copy_(self.value)


def _through(reading: Reading, edits: Sequence[Edit], states: Tensor, layer: int) -> Tensor:
    """The states after a layer of all edits that have begun, one a row: those of earlier layers,
    whose `states` are before it, and those of this layer."""
    coming = list(enumerate((edit for edit in edits if edit.layer == layer), start=len(states)))
    fresh = reading.states[layer].expand(len(coming), -1, -1)
    states = torch.cat([states, fresh])
    for row, edit in coming:
        if edit.head is None and not edit.is_mlp:
            edit.put(states[row])

    def change(point: str, value: Tensor) -> Tensor:
        changing = [(row, edit) for row, edit in coming if point == _point(edit)]
        if changing:
            value = value.clone()
            for row, edit in changing:
                edit.put(value[row])
        return value

    return reading.decoder.block_states(states, layer, observe=change, changes=reading.changes)


def _point(edit: Edit) -> str:
    """Where a pass computes what changes; "" for the residual stream, which is there already."""
    if edit.head is not None:
        return f"blocks.{edit.layer}.attention.head.{edit.head}"
    return f"blocks.{edit.layer}.mlp" if edit.is_mlp else ""


@torch.inference_mode()
def read_again(
    reading: Reading,
    edits: Sequence[Edit],
    measure: Callable[[Tensor], Tensor],
    progress: Progress = no_progress,
) -> Tensor:
    """What `measure` gives of the text with each edit alone, (edits, …) in their order.

    measure: takes the states (rows, tokens, width) after the last layer.
    """
    layers = reading.decoder.architecture.layers
    order = sorted(range(len(edits)), key=lambda index: edits[index].layer)
    size = max(1, _TOKENS_AT_ONCE // reading.tokens)
    groups = [order[at : at + size] for at in range(0, len(order), size)]
    total = sum(layers - edits[group[0]].layer for group in groups)
    results: dict[int, Tensor] = {}
    done = 0
    for group in groups:
        rows = [edits[index] for index in group]
        states = reading.states[0][None][:0]
        for layer in range(rows[0].layer, layers):
            progress(done, total)
            states = _through(reading, rows, states, layer)
            done += 1
        results |= dict(zip(group, measure(states), strict=True))
    progress(total, total)
    return torch.stack([results[index] for index in range(len(edits))])


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Keys and values of earlier tokens as `KeyValues`: (1 or rows, heads, tokens, head size)."""

    keys: Tensor
    values: Tensor

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.extend`."""
        keys, values = (
            torch.cat([old.expand(new.shape[1], -1, -1, -1), added], 2)
            for old, added in zip((self.keys, self.values), new, strict=True)
        )
        return keys, values


@torch.inference_mode()
def read_again_from(
    reading: Reading,
    edits: Sequence[Edit],
    measure: Callable[[Tensor], Tensor],
    progress: Progress = no_progress,
) -> Tensor:
    """As `read_again`, for edits of the residual stream at single positions.

    What lies before a position is not computed again, and of the last block only what it makes of
    the last token. `measure` takes the states (rows, 1, width) of that token.
    """
    # Neighbouring positions go through the layers together, from the first of them on.
    size = max(1, min(4, _TOKENS_AT_ONCE // (reading.tokens * len(reading.keys))))
    place = [(edit.position or 0) // size for edit in edits]
    order = sorted(range(len(edits)), key=lambda index: (place[index], edits[index].layer))
    groups = [(first, list(of)) for first, of in groupby(order, key=place.__getitem__)]
    results: dict[int, Tensor] = {}
    for done, (first, group) in enumerate(groups):
        progress(done, len(groups))
        states = _last_states(reading, [edits[index] for index in group], first * size)
        results |= dict(zip(group, measure(states), strict=True))
    progress(len(groups), len(groups))
    return torch.stack([results[index] for index in range(len(edits))])


def _last_states(reading: Reading, edits: Sequence[Edit], start: int) -> Tensor:
    """The last token's states (edits, 1, width) after the last layer.

    edits: of the residual stream from position `start` on, those of the first layers first.
    """
    decoder, last = reading.decoder, len(reading.keys) - 1
    states = reading.states[0][None, start:][:0]
    for layer in range(last + 1):
        coming = [edit for edit in edits if edit.layer == layer]
        fresh = reading.states[layer][start:].expand(len(coming), -1, -1).clone()
        for row, edit in zip(fresh, coming, strict=True):
            replace(edit, position=(edit.position or 0) - start).put(row)
        states = torch.cat([states, fresh])
        if not len(states):
            continue
        before = _Earlier(reading.keys[layer][:, :, :start], reading.values[layer][:, :, :start])
        at = start
        if layer == last:
            new = decoder.keys_and_values(states, layer, start)[..., :-1, :]
            before, at = _Earlier(*before.extend(layer, new)), reading.tokens - 1
            states = states[:, -1:]
        states = decoder.block_states(
            states, layer, start=at, before=before, changes=reading.changes
        )
    return states


def last_logits(decoder: Decoder, states: Tensor) -> Tensor:
    """Logits (rows, vocabulary) after the last token of states (rows, tokens, width), uncapped."""
    return decoder.uncapped_head(decoder.normed(states[:, -1])).cpu()


def heads_and_mlps(decoder: Decoder) -> Iterator[Part]:
    """Every head and every MLP, layer by layer."""
    shape = decoder.architecture
    for layer in range(shape.layers):
        yield from (Part(layer, head) for head in range(shape.heads))
        yield Part(layer, is_mlp=True)
