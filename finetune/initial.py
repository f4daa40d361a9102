"""Where a decoder's weights begin: positions as sinusoids, heads that look back, heads that copy.

Learned positions that begin at random must each learn alone what stands before them; on little
text they never do, and nothing is ever copied from the context. Here the pair of heads that
copies begins ready made (an induction head, Olsson et al. 2022): a head of the first block
looks one token back and notes what stood there, a head of the second block looks for the place
whose note is the token at hand, and passes on the token that stands there. Sinusoids (Vaswani
et al. 2017) make one step back the same rotation everywhere.

The one invariant: every weight stays free to learn; only its first value is chosen.
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
_SHARPNESS = 1.2
# Of the heads that copy: how loud the note of the token before is, how sharply it is looked
# for, and how loud the copy. Softer than what copies best at once (measured), so that other
# text is not drowned by copies while the rest learns.
_NOTE, _SEARCH, _COPY = 0.33, 2.5, 1.0


def deviation(hidden: int) -> float:
    """Of the first token vectors, so that logits begin at about 1.

    GPT-2's 0.02 is for wide models. Here token vectors would soon grow to four times that and
    drown the positions beside them, and with them the heads that look back.
    """
    return 1 / math.sqrt(hidden)


def position_dimensions(hidden: int) -> int:
    """How many dimensions tell the position, the first ones: even, about a third.

    The others begin with nothing but the token, so that tokens can be compared wherever they
    stand.
    """
    return max(2, 2 * (hidden // 6))


def frequencies(hidden: int) -> Tensor:
    """Radians a token of each pair of dimensions, falling: (position_dimensions // 2,)."""
    pairs = position_dimensions(hidden) // 2
    return _FASTEST * (_SLOWEST / _FASTEST) ** (torch.arange(pairs) / pairs)


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Sines in the even and cosines in the odd dimensions, then zeros: (positions, hidden)."""
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
        attention[:, head * width : (head + 1) * width] = 0
        attention[:, hidden + head * width : hidden + (head + 1) * width] = 0
        for pair in range(min(width // 2, len(speeds))):
            sine, cosine = 2 * pair, 2 * pair + 1
            query = head * width + 2 * pair
            key = hidden + query
            angle = float(speeds[pair]) * steps
            turned = _SHARPNESS * math.cos(angle), _SHARPNESS * math.sin(angle)
            attention[sine, key] = attention[cosine, key + 1] = _SHARPNESS
            attention[sine, query] = attention[cosine, query + 1] = turned[0]
            attention[cosine, query], attention[sine, query + 1] = -turned[1], turned[1]


@torch.no_grad()
def copy(model: GPT2LMHeadModel) -> None:
    """Let heads of the second block pass on what stood after the token at hand before; in place.

    As many heads as look one token back and as there are free dimensions for. Each has two
    spaces of its own, as wide as a head and at right angles to all others: in one it reads the
    token, in the other stands the note of the token before.
    """
    blocks = model.transformer.h
    hidden, width = model.config.n_embd, model.config.n_embd // model.config.n_head
    first = position_dimensions(hidden)
    back = _STEPS_BACK[: model.config.n_head // 2].count(1)
    count = min(back, (hidden - first) // (2 * width))
    if len(blocks) < 2 or not count:
        return
    directions = torch.zeros(2 * count * width, hidden)
    torch.nn.init.orthogonal_(directions[:, first:])
    spaces = directions.view(count, 2, width, hidden)
    notes, searches = blocks[0].attn, blocks[1].attn
    for head, (token, note) in enumerate(spaces):
        own = slice(head * width, (head + 1) * width)
        query, key, value = (weight[:, own] for weight in searches.c_attn.weight.chunk(3, dim=1))
        notes.c_attn.weight[:, 2 * hidden :][:, own] = token.T
        notes.c_proj.weight[own] = _NOTE * note
        query.copy_(_SEARCH * token.T)
        key.copy_(_SEARCH * note.T)
        value.copy_(token.T)
        searches.c_proj.weight[own] = _COPY * token


@torch.no_grad()
def begin(model: GPT2LMHeadModel) -> None:
    """Give a GPT-2 with random weights these positions and first heads."""
    decoder = model.transformer
    hidden = model.config.n_embd
    decoder.wte.weight.mul_(deviation(hidden) / model.config.initializer_range)
    decoder.wpe.weight.copy_(sinusoids(*decoder.wpe.weight.shape))
    look_back(decoder.h[0].attn.c_attn.weight, model.config.n_head)
    copy(model)
