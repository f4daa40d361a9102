"""Activation patching: which states carry the difference between two prompts.

Two prompts of the same number of tokens are read, a clean and a corrupt one. A state of the one is
put into the reading of the other, and the difference of two logits, LD, is measured again:

    restored  = (LD_patched − LD_corrupt) / (LD_clean − LD_corrupt)     clean into corrupt
    destroyed = (LD_clean − LD_patched)   / (LD_clean − LD_corrupt)     corrupt into clean

(2309.16042; 2404.15255). Instead of a second prompt, noise on the embeddings of some tokens may
corrupt the first (causal tracing, Meng et al. 2022).

Estimated by one backward pass instead, a patch counts (a_clean − a_corrupt) · ∂LD/∂a (Nanda 2023):
good for heads, bad for the residual stream, so that the largest are measured.

Invariant: nothing is divided by a difference below 0.5; the result says so instead. It also says
which patches put in a state equal to the one it replaces.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from chatapp.common.userfiles import Progress, no_progress
from chatapp.engine.decoder.interventions import Change, Interventions
from chatapp.lab.reruns import (
    Contrast,
    Edit,
    LabError,
    Reading,
    last_logits,
    read_again,
    read_again_from,
)

Direction = Literal["restore", "destroy"]

SMALLEST = 0.5
"""A difference between the two prompts below this is not divided by."""

EXACT = 10
"""The number of largest estimates that are also measured."""

_NOISE = 3.0
"""Times the standard deviation of the token embeddings, as in causal tracing."""


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """The effect of patches at a kind of place.

    kind: `residual`, the stream before each layer, (layers, tokens), or `heads`, (layers, heads) at
    all tokens. values: shares where they are divided, otherwise differences of logits. unchanged:
    patches whose state equals the one it replaces. exact: which were measured, not estimated.
    """

    kind: Literal["residual", "heads"]
    values: list[list[float]]
    unchanged: list[list[bool]]
    exact: list[list[bool]]

    @property
    def count_unchanged(self) -> int:
        """How many patches change nothing."""
        return sum(map(sum, self.unchanged))

    def largest(self, count: int = EXACT) -> list[tuple[int, int, float]]:
        """Layer, token or head, and value of the largest effects, by magnitude."""
        cells = [
            (layer, column, value)
            for layer, row in enumerate(self.values)
            for column, value in enumerate(row)
        ]
        return sorted(cells, key=lambda cell: -abs(cell[2]))[:count]


@dataclass(frozen=True, slots=True)
class Patching:
    """Two readings and what patches between them do.

    clean, corrupt: LD of each. is_divided: whether the values are shares of their difference.
    """

    clean: float
    corrupt: float
    direction: Direction
    is_divided: bool
    grids: tuple[PatchGrid, ...] = field(default=())


def with_noise(clean: Reading, positions: Sequence[int], seed: int = 0) -> Reading:
    """The same text with noise on the embeddings of some tokens, from 0.

    Normal noise of three times the standard deviation of the token embeddings. Raises LabError.
    """
    size = len(clean.ids)
    if not positions or not all(0 <= position < size for position in positions):
        raise LabError(f"noise needs tokens of the text, numbered 0 to {size - 1}")
    embedded = clean.states[0][len(clean.start) :]
    scale = _NOISE * float(embedded.std())
    generator = torch.Generator().manual_seed(seed)
    changes = tuple(
        Change(
            "noise",
            "embed",
            tuple((scale * torch.randn(embedded.shape[1], generator=generator)).tolist()),
            is_added=True,
            start=position,
            stop=position + 1,
        )
        for position in positions
    )
    before = clean.changes.shifted(-len(clean.start))
    return Reading(clean.decoder, clean.ids, clean.start, before + Interventions(changes))


def patch(
    clean: Reading,
    corrupt: Reading,
    contrast: Contrast,
    direction: Direction = "restore",
    *,
    estimate: bool = False,
    progress: Progress = no_progress,
) -> Patching:
    """Patch the residual stream at each layer and token, and each head.

    estimate: by one backward pass, with the largest `EXACT` of each grid measured. Raises LabError
    for prompts that cannot be patched.
    """
    if len(clean.ids) != len(corrupt.ids):
        raise LabError(
            f"the two prompts have {len(clean.ids)} and {len(corrupt.ids)} tokens; patching needs "
            "the same number, so that each token replaces one of the other prompt"
        )
    base, source = (corrupt, clean) if direction == "restore" else (clean, corrupt)
    high, low = float(contrast.of(clean.logits)), float(contrast.of(corrupt.logits))
    is_divided = abs(high - low) >= SMALLEST
    plans = (_Plan.residual(base, source), _Plan.heads(base, source))
    estimates = _estimates(base, plans, contrast) if estimate else (None, None)
    # Patches of heads go through the layers together, those of states position by position.
    shape = base.decoder.architecture
    units = (len(base.ids), shape.layers)
    grids = []
    for number, (plan, guess) in enumerate(zip(plans, estimates, strict=True)):
        before = sum(units[:number])

        def tell(done: int, total: int, before: int = before, unit: int = units[number]) -> None:
            progress(before + done * unit // max(1, total), sum(units))

        grids.append(_measure(plan, guess, contrast, tell).grid(low, high, direction, is_divided))
    return Patching(high, low, direction, is_divided, tuple(grids))


@dataclass(slots=True)
class _Plan:
    """The patches of a grid: each puts in what `source` has there. measured: LD of each."""

    kind: Literal["residual", "heads"]
    base: Reading
    source: InitVar[Reading]
    edits: list[Edit]
    shape: tuple[int, int]
    is_unchanged: Tensor = field(init=False)
    measured: Tensor = field(init=False)
    is_exact: Tensor = field(init=False)

    def __post_init__(self, source: Reading) -> None:
        self.edits = [replace(edit, value=edit.there(source)) for edit in self.edits]
        unchanged = [_is_same(edit.value, edit.there(self.base)) for edit in self.edits]
        self.is_unchanged = torch.tensor(unchanged)
        self.measured = torch.zeros(len(self.edits))
        self.is_exact = torch.zeros(len(self.edits), dtype=torch.bool)

    @classmethod
    def residual(cls, base: Reading, source: Reading) -> "_Plan":
        layers, first = base.decoder.architecture.layers, len(base.start)
        edits = [
            Edit(layer, position=position)
            for layer in range(layers)
            for position in range(first, base.tokens)
        ]
        return cls("residual", base, source, edits, (layers, len(base.ids)))

    @classmethod
    def heads(cls, base: Reading, source: Reading) -> "_Plan":
        shape = base.decoder.architecture
        edits = [Edit(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]
        return cls("heads", base, source, edits, (shape.layers, shape.heads))

    def grid(self, low: float, high: float, direction: Direction, is_divided: bool) -> PatchGrid:
        values = self.measured - low if direction == "restore" else high - self.measured
        if is_divided:
            values = values / (high - low)
        values[self.is_unchanged] = 0.0
        parts = (
            part.view(self.shape).tolist() for part in (values, self.is_unchanged, self.is_exact)
        )
        return PatchGrid(self.kind, *parts)


def _is_same(value: Tensor | None, there: Tensor) -> bool:
    """Whether a patch puts in place what is there, up to the order of sums."""
    assert value is not None
    return bool((value - there).abs().max() <= 1e-5 * (1 + there.abs().max()))


@torch.inference_mode()
def _measure(plan: _Plan, guess: Tensor | None, contrast: Contrast, progress: Progress) -> _Plan:
    """Read again with the patches that change something; of estimates, with the largest alone."""
    base = plan.base
    there = float(contrast.of(base.logits))
    plan.measured.fill_(there)
    wanted = (~plan.is_unchanged).nonzero()[:, 0].tolist()
    if guess is not None:
        plan.measured = there + guess
        wanted = sorted(wanted, key=lambda index: -abs(float(guess[index])))[:EXACT]
    again = read_again_from if plan.kind == "residual" else read_again
    if wanted:
        plan.measured[wanted] = again(
            base,
            [plan.edits[index] for index in wanted],
            lambda states: contrast.of(last_logits(base.decoder, states)),
            progress,
        )
    plan.is_exact[wanted] = True
    plan.is_exact |= plan.is_unchanged
    return plan


def _estimates(
    base: Reading, plans: Sequence[_Plan], contrast: Contrast
) -> tuple[Tensor | None, ...]:
    """The change (edits,) of LD that a gradient predicts for each plan."""
    decoder, shape = base.decoder, base.decoder.architecture
    kept: dict[str, Tensor] = {}

    def keep(point: str, value: Tensor) -> Tensor:
        if point == "embed":
            value = value.detach().requires_grad_()
        if value.requires_grad:
            kept[point] = value
        return value

    with torch.inference_mode(False):
        states = decoder.hidden_with_gradients(
            [[*base.start, *base.ids]], keep, changes=base.changes
        )
        streams = ["embed", *(f"blocks.{layer}" for layer in range(shape.layers - 1))]
        heads = [
            f"blocks.{layer}.attention.head.{head}"
            for layer in range(shape.layers)
            for head in range(shape.heads)
        ]
        points = [kept[point] for point in (*streams, *heads)]
        with torch.enable_grad():
            target = contrast.of(decoder.uncapped_head(states[:, -1])).sum()
            gradients = torch.autograd.grad(target, points, allow_unused=True)
    by_point = dict(zip((*streams, *heads), gradients, strict=True))
    changes = []
    for plan in plans:
        values = []
        for edit in plan.edits:
            if edit.head is None:
                gradient = by_point[streams[edit.layer]]
            else:
                gradient = by_point[f"blocks.{edit.layer}.attention.head.{edit.head}"]
            assert edit.value is not None
            assert gradient is not None
            where = slice(None) if edit.position is None else edit.position
            values.append(float(((edit.value - edit.there(base)) * gradient[0][where]).sum()))
        changes.append(torch.tensor(values))
    return tuple(changes)
