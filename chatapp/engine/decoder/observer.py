"""Looking into a forward pass, and changing it, at named points.

    embed                       the embeddings of tokens and positions      (rows, tokens, width)
    blocks.3.attention.query    with positions         (rows, heads, tokens, head size)
    blocks.3.attention.key      with positions         (rows, key/value heads, tokens, head size)
    blocks.3.attention.value                           (rows, key/value heads, tokens, head size)
    blocks.3.attention.head.5   what a head makes of the values, unprojected
                                                       (rows, tokens, head size)
    blocks.3.attention          what attention adds to the residual stream  (rows, tokens, width)
    blocks.3.mlp                what the MLP adds to it              (rows, tokens, width)
    blocks.3                    the residual stream after the block         (rows, tokens, width)
    final                       after the final norm                        (rows, tokens, width)

Blocks and heads count from 0; with a cache, the tokens are the new ones.

Keep: an observer that returns what it is given changes no number, and a pass without one does
nothing for it.
"""

from typing import Protocol

from torch import Tensor


class Observer(Protocol):
    """What looks at each point of a pass, in the order in which the pass comes to them."""

    def __call__(self, point: str, value: Tensor) -> Tensor:
        """What the pass goes on with: `value`, not changed in place, or another of its shape."""
        ...
