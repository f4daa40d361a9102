"""A planted start of a decoder: positions as sinusoids, heads that look back, heads that copy.

With random initial positions, each position must learn separately which one precedes it; with
little text it never does, and nothing is copied from the context. Here two circuits that copy
are part of the initial weights of the first two blocks:

- after the same token (an induction head, Olsson et al. 2022): one head notes the token before,
  another looks for the place whose note is the token at hand, and passes on the token there;
- after a text like this one: one head notes the token two back, one notes the words of about
  the last ten tokens together, and others look for the place after the same two
  tokens and has like words before it. This is how a label is read from the demonstration
  nearest to the query.

Sinusoids (Vaswani et al. 2017) make one step back the same rotation everywhere.

Invariant: every weight stays free to learn; only its first value is chosen.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

# Radians per token of the fastest and the slowest pair of dimensions.
_FASTEST, _SLOWEST = 2.5, 0.001
# How sharply a head looks one or two tokens back.
_SHARPNESS = 2.2
# The head that notes many words reads slow pairs, so softly that it covers about ten tokens around
# its target.
_WIDE_SPEEDS, _WIDE_BACK, _WIDE_SHARPNESS = (0.004, 0.25), 5, 1.46
# The amplitude of the notes of one token and of many relative to the token itself.
_NOTE, _WORDS_NOTE = 0.2, 0.8
# The sharpness of the search for the same token, for the same two tokens, and for similar words.
_SAME_TOKEN, _SAME_PLACE, _LIKE_WORDS = 2.5, (3.2, 2.2), 2.4
# The amplitude of the copies: after the same token lower, so that other text is not drowned.
_COPY_TOKEN, _COPY_LABEL = 1.0, 2.0


def deviation(hidden: int) -> float:
    """Of the first token vectors, so that logits begin at about 1.

    GPT-2's 0.02 is for wide models. Here token vectors would soon grow to four times that and drown
    the positions, and with them the heads that look back.
    """
    return 1 / math.sqrt(hidden)


def position_dimensions(hidden: int) -> int:
    """The number of dimensions for the position, the first ones: even, about a third.

    Initially tokens are zero in these, and positions in the others: position and content do not
    disturb each other.
    """
    return max(2, 2 * (hidden // 6))


def frequencies(hidden: int) -> Tensor:
    """Radians per token of each pair of dimensions, falling: (position_dimensions // 2,)."""
    pairs = position_dimensions(hidden) // 2
    return _FASTEST * (_SLOWEST / _FASTEST) ** (torch.arange(pairs) / pairs)


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Sines in the even and cosines in the odd dimensions, then zeros: (positions, hidden)."""
    speeds = frequencies(hidden)
    angles = torch.arange(positions)[:, None] * speeds
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1) * deviation(hidden) * math.sqrt(2)
    vectors = torch.zeros(positions, hidden)
    vectors[:, : 2 * len(speeds)] = pairs.flatten(1)
    return vectors


def _look_back(query: Tensor, key: Tensor, speeds: Tensor, back: int, sharpness: float) -> None:
    """Make a head attend to the token so many positions back; in place.

    query, key: (hidden, width), the head's weights. The query is rotated back by so many steps, so
    that it matches the key of that position. speeds: (position_dimensions // 2,), 0 for pairs that
    it does not read.
    """
    query.zero_()
    key.zero_()
    for own, pair in enumerate(speeds.nonzero().flatten()[: key.shape[1] // 2].tolist()):
        angle = float(speeds[pair]) * back
        turn = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
        read, write = slice(2 * pair, 2 * pair + 2), slice(2 * own, 2 * own + 2)
        key[read, write] = sharpness * torch.eye(2)
        query[read, write] = sharpness * turn


def _head(attention: Any, head: int, width: int) -> tuple[Tensor, ...]:
    """Views of a head: query, key and value (hidden, width), and its output (width, hidden)."""
    own = slice(head * width, (head + 1) * width)
    parts = attention.c_attn.weight.chunk(3, dim=1)
    return *(part[:, own] for part in parts), attention.c_proj.weight[own]


@torch.no_grad()
def copying_heads(model: GPT2LMHeadModel) -> None:
    """Initialize the first heads of the first two blocks with the two circuits above; in place.

    Notes have spaces of their own, orthogonal to each other and to the positions. A model too small
    for them begins without.
    """
    blocks, hidden = model.transformer.h, model.config.n_embd
    width = hidden // model.config.n_head
    first = position_dimensions(hidden)
    size = min(width, (hidden - first) // 4)
    if len(blocks) < 2 or model.config.n_head < 3 or size < 4:
        return
    directions = torch.zeros(4 * size, hidden)
    torch.nn.init.orthogonal_(directions[:, first:])
    token, before, two_before, words = directions.view(4, size, hidden)

    speeds = frequencies(hidden)
    wide = speeds * ((speeds >= _WIDE_SPEEDS[0]) & (speeds <= _WIDE_SPEEDS[1]))
    for head, (note, loud, read, back, sharpness) in enumerate(
        (
            (before, _NOTE, speeds, 1, _SHARPNESS),
            (two_before, _NOTE, speeds, 2, _SHARPNESS),
            (words, _WORDS_NOTE, wide, _WIDE_BACK, _WIDE_SHARPNESS),
        )
    ):
        query, key, value, added = _head(blocks[0].attn, head, width)
        _look_back(query, key, read, back, sharpness)
        value[:, :size] = token.T
        added[:size] = loud * note

    query, key, value, added = _head(blocks[1].attn, 0, width)
    query[:, :size] = _SAME_TOKEN * token.T
    key[:, :size] = _SAME_TOKEN * before.T
    value[:, :size] = token.T
    added[:size] = _COPY_TOKEN * token
    # Half of a head tells whether the two tokens before are the same, half whether the words are
    # alike; two heads read different words.
    half = size // 2
    for head, read_words in ((1, words[:half]), (2, words[half : 2 * half])):
        query, key, value, added = _head(blocks[1].attn, head, width)
        mixed = torch.empty(2, half, size)
        for mix in mixed:
            torch.nn.init.orthogonal_(mix)
        one, two = (scale * mix for scale, mix in zip(_SAME_PLACE, mixed, strict=True))
        query[:, :half] = (one @ token + two @ before).T
        key[:, :half] = (one @ before + two @ two_before).T
        query[:, half : 2 * half] = key[:, half : 2 * half] = _LIKE_WORDS * read_words.T
        query[:, 2 * half :] = key[:, 2 * half :] = 0
        value[:, :size] = token.T
        added[:size] = _COPY_LABEL * token


@torch.no_grad()
def plant_heads(model: GPT2LMHeadModel) -> None:
    """Give a GPT-2 with random weights these positions and first heads; in place."""
    decoder = model.transformer
    hidden = model.config.n_embd
    decoder.wte.weight.mul_(deviation(hidden) / model.config.initializer_range)
    decoder.wte.weight[:, : position_dimensions(hidden)] = 0
    decoder.wpe.weight.copy_(sinusoids(*decoder.wpe.weight.shape))
    copying_heads(model)
