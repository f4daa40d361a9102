"""Where a decoder's weights begin: positions as sinusoids, and heads that look back.

Learned positions that begin at random must each learn alone what stands before them; on little
text they never do, and without a head that looks at the token before nothing can be copied
from the context (Olsson et al. 2022). Sinusoids (Vaswani et al. 2017) make one step back the
same rotation everywhere, and some heads of the first block begin as that rotation. The one
invariant: every weight stays free to learn; only its first value is chosen.
"""

import math

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

# Radians a token of the fastest and the slowest pair of dimensions.
_FASTEST, _SLOWEST = 2.5, 0.001
# Pairs that tell near positions apart turn by so many radians or more a token. They are twice
# as long, so that they stand out from the token's own vector.
_FAST = 0.7
# How many tokens back each of the first heads begins by looking, and how sharply.
_STEPS_BACK = (1, 1, 2)
_SHARPNESS = 0.8


def deviation(hidden: int) -> float:
    """Of the first token vectors, so that logits begin at about 1.

    GPT-2's 0.02 is for wide models. Here token vectors would soon grow to four times that and
    drown the positions beside them, and with them the heads that look back.
    """
    return 1 / math.sqrt(hidden)


def frequencies(hidden: int) -> Tensor:
    """Radians a token of each pair of dimensions, falling: (hidden // 2,)."""
    share = torch.arange(hidden // 2) / max(1, hidden // 2)
    return _FASTEST * (_SLOWEST / _FASTEST) ** share


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Sines in the even and cosines in the odd dimensions: (positions, hidden)."""
    speeds = frequencies(hidden)
    angles = torch.arange(positions)[:, None] * speeds
    lengths = deviation(hidden) * math.sqrt(2) * (1 + (speeds >= _FAST))
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1) * lengths[:, None]
    vectors = torch.zeros(positions, hidden)
    vectors[:, : 2 * len(speeds)] = pairs.flatten(1)
    return vectors


@torch.no_grad()
def look_back(attention: Tensor, heads: int) -> None:
    """Let the first heads of a block look 1, 1 and 2 tokens back; in place.

    attention: (hidden, 3 · hidden), GPT-2's weights from a state to queries, keys and values.
        The first heads read the fastest pairs of dimensions and turn the query back by their
        steps, so that it meets the key of the position so many tokens before.
    """
    hidden = attention.shape[0]
    width = hidden // heads
    speeds = frequencies(hidden)
    for head, steps in enumerate(_STEPS_BACK[: heads // 2]):
        for pair in range(width // 2):
            sine, cosine = 2 * pair, 2 * pair + 1
            query = head * width + 2 * pair
            key = hidden + query
            attention[:, query : query + 2] = 0
            attention[:, key : key + 2] = 0
            angle = float(speeds[pair]) * steps
            turned = _SHARPNESS * math.cos(angle), _SHARPNESS * math.sin(angle)
            attention[sine, key] = attention[cosine, key + 1] = _SHARPNESS
            attention[sine, query] = attention[cosine, query + 1] = turned[0]
            attention[cosine, query], attention[sine, query + 1] = -turned[1], turned[1]


@torch.no_grad()
def begin(model: GPT2LMHeadModel) -> None:
    """Give a GPT-2 with random weights these positions and first heads."""
    decoder = model.transformer
    hidden = model.config.n_embd
    decoder.wte.weight.mul_(deviation(hidden) / model.config.initializer_range)
    decoder.wpe.weight.copy_(sinusoids(*decoder.wpe.weight.shape))
    look_back(decoder.h[0].attn.c_attn.weight, model.config.n_head)
