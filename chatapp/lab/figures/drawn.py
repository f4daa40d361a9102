"""From a finding to its blocks."""

from collections.abc import Callable, Sequence
from typing import Any

from chatapp.lab.figures import of_close_ups, of_parts, of_texts
from chatapp.lab.figures.blocks import Block, Heading
from chatapp.lab.findings import Finding

_BLOCKS: dict[str, Callable[[Any], list[Block]]] = {
    "prompt": of_texts.prompt_blocks,
    "tokens": of_texts.tokens_blocks,
    "next": of_texts.next_blocks,
    "mask": of_texts.mask_blocks,
    "attention": of_texts.attention_blocks,
    "layers": of_texts.layers_blocks,
    "parts": of_texts.parts_blocks,
    "texts": of_texts.head_texts_blocks,
    "why": of_parts.why_blocks,
    "ablation": of_parts.ablation_blocks,
    "losses": of_parts.losses_blocks,
    "patching": of_parts.patches_blocks,
    "circuit": of_parts.circuit_blocks,
    "heads": of_parts.heads_blocks,
    "neighbours": of_close_ups.neighbours_blocks,
    "state": of_close_ups.neighbours_blocks,
    "weight": of_close_ups.weight_blocks,
    "norms": of_close_ups.norms_blocks,
    "neurons": of_close_ups.neurons_blocks,
    "experts": of_close_ups.experts_blocks,
    "cross_attention": of_close_ups.cross_attention_blocks,
    "positions": of_close_ups.positions_blocks,
}
"""By the name of the finding, so that drawing one imports nothing of what computes the others."""


def blocks_of(finding: Finding) -> Sequence[Block]:
    """What a finding is drawn with; its sentence alone where nothing else was written for it."""
    draw = _BLOCKS.get(finding.name)
    if draw is None:
        return [Heading(finding.name.capitalize(), finding.sentence)]
    return draw(finding)
