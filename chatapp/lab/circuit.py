"""A few heads and MLPs that still tell one token from another on a prompt.

Greedy pruning by ablation, after the automatic search for circuits (2304.14997): in each round
every part that is left is ranked by what the difference of the logits loses without it, and they
are taken away, the least first, as long as the rest keeps the share that is wanted.

    faithfulness = LD(the circuit alone) / LD(the whole model)
    completeness = LD(the model without the circuit) / LD(the whole model), near 0 where nothing
                   outside of the circuit does the same

(Wang et al. 2023, "Interpretability in the Wild".) What is taken away is replaced by its mean over
the tokens of the text, or of another prompt. A circuit that is found on one prompt may
fail on the next, so another prompt, such as one with two names swapped, is tried as well.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from chatapp.common.userfiles import Progress, no_progress
from chatapp.engine.decoder.interventions import Change, Interventions, Part
from chatapp.lab.reruns import (
    Contrast,
    Edit,
    LabError,
    Reading,
    heads_and_mlps,
    last_logits,
    read_again,
)

_KEEP = 0.9
"""The least share of the difference of the logits that a circuit keeps."""

SMALLEST = 0.5
"""A difference of logits below this is not a behaviour that a circuit could keep."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A circuit on another prompt. faithfulness: None where the whole model's difference there is
    below 0.5 in size."""

    difference: float
    faithfulness: float | None


@dataclass(frozen=True, slots=True)
class Circuit:
    """The parts that are left, layer by layer. difference: of the whole model. total: how many
    parts there are. other: what they do on another prompt, whose means replace the others then.
    """

    parts: tuple[str, ...]
    total: int
    difference: float
    faithfulness: float
    completeness: float
    other: Tried | None = None


def small_circuit(
    reading: Reading,
    contrast: Contrast,
    other: Reading | None = None,
    *,
    progress: Progress = no_progress,
) -> Circuit:
    """The circuit that greedy pruning leaves. other: the reading of another prompt, which gives the
    means and is tried on.

    Raises LabError where the difference is below 0.5.
    """
    whole = float(contrast.of(reading.logits))
    if whole < SMALLEST:
        raise LabError(
            f"the difference of the logits is {whole:.2f}; a circuit is searched from {SMALLEST} "
            "on, because there is hardly anything to keep"
        )
    search = _Search(reading, contrast, other or reading)
    everything = list(heads_and_mlps(reading.decoder))
    left, off = everything, frozenset[Part]()
    while left:
        without = search.read_without(off)
        ranked = search.ranked(left, without, progress)
        taken = search.prune(ranked, off, without, _KEEP * whole, progress)
        if taken == off:
            break
        off = taken
        left = [part for part in everything if part not in off]
    circuit, tried = frozenset(left), None
    if other is not None:
        there = float(contrast.of(other.logits))
        kept = search.difference(off, other)
        tried = Tried(there, kept / there if abs(there) >= SMALLEST else None)
    return Circuit(
        tuple(str(part) for part in sorted(left, key=lambda p: (p.layer, p.is_mlp, p.head or 0))),
        len(everything),
        whole,
        search.difference(off) / whole,
        search.difference(circuit) / whole,
        tried,
    )


class _Search:
    """The difference of the logits without any set of parts. means: the text over whose tokens
    parts are averaged."""

    def __init__(self, reading: Reading, contrast: Contrast, means: Reading) -> None:
        self._reading, self._contrast = reading, contrast
        self._values = {
            part: Edit.without(part).there(means).mean(0)
            for part in heads_and_mlps(reading.decoder)
        }

    def _changes(self, off: Collection[Part], reading: Reading | None = None) -> Interventions:
        """What takes these parts away, after the changes that a reading has."""
        changes = (
            Change(str(part), part.points[0], tuple(self._values[part].tolist())) for part in off
        )
        return (reading or self._reading).changes + Interventions(tuple(changes))

    def difference(self, off: Collection[Part], other: Reading | None = None) -> float:
        """Without these parts, on the text or on another prompt."""
        reading = other or self._reading
        tokens = [[*reading.start, *reading.ids]]
        states = reading.decoder.hidden(tokens, changes=self._changes(off, reading))
        return float(self._contrast.of(reading.decoder.uncapped_head(states[0, -1])))

    def read_without(self, off: Collection[Part]) -> Reading:
        """The text as the model reads it without these parts."""
        reading = self._reading
        changes = self._changes(off).shifted(-len(reading.start))
        return Reading(reading.decoder, reading.ids, reading.start, changes)

    def ranked(self, left: Sequence[Part], without: Reading, progress: Progress) -> list[Part]:
        """Those left, that first whose loss matters least when the others are off already."""
        before = float(self._contrast.of(without.logits))
        after = read_again(
            without,
            [Edit.without(part, self._values[part]) for part in left],
            lambda states: self._contrast.of(last_logits(without.decoder, states)),
            progress,
        )
        lost = dict(zip(left, (before - after).tolist(), strict=True))
        return sorted(left, key=lambda part: lost[part])

    @torch.inference_mode()
    def prune(
        self,
        ranked: Sequence[Part],
        off: frozenset[Part],
        without: Reading,
        least: float,
        progress: Progress,
    ) -> frozenset[Part]:
        """Take away one after the other, as long as the difference stays.

        without: the text read without those that are off. What lies before a part's layer is not
        computed again.
        """
        decoder, streams = without.decoder, list(without.states[:, None])
        for done, part in enumerate(ranked):
            progress(done, len(ranked))
            changes = self._changes(off | {part})
            later, states = [], streams[part.layer]
            for layer in range(part.layer, decoder.architecture.layers):
                states = decoder.block_states(states, layer, changes=changes)
                later.append(states)
            if float(self._contrast.of(last_logits(decoder, states)[0])) >= least:
                off, streams[part.layer + 1 :] = off | {part}, later
        return off
