"""One token through a decoder by a fixed list of operations, so that a GPU can record them.

A token is some hundred small operations, and a GPU needs longer to start each than to run it.
Recorded once as a CUDA graph, they are started together.

Invariant: the logits are those of `Decoder.forward`. The tensors that a recording reads and writes
keep their addresses as long as the step exists.
"""

import functools
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from chatapp.engine.cache.key_values import KeyValueCache

# Before they are recorded, operations have to run: the first time they reserve memory.
_WARM_UPS = 3

# torch records one graph at a time.
_RECORDING = threading.Lock()

Compute = Callable[[Tensor, Tensor, "Step", Tensor], Tensor]
"""The model: logits (1, vocabulary) after one token.

Its arguments: the token's id (1, 1), its position (1,), the keys and values, and a mask (1, all) to
add to the attention's scores.
"""


class Step:
    """One more token after those in a cache.

    Its attention covers all positions that the cache reserved; those after the token are masked. On
    a cuda device it is recorded, elsewhere it is computed.

    layers: of the cache. A cache that has grown since then needs another step.
    """

    def __init__(self, cache: KeyValueCache) -> None:
        self.layers = cache.layers
        device, positions = cache.layers[0].device, cache.layers[0].shape[3]
        self._id = torch.zeros(1, 1, dtype=torch.long, device=device)
        self._position = torch.full((1,), len(cache), device=device)
        self._positions = torch.arange(positions, device=device)
        # Masked values are multiplied by 0, but 0 times NaN is NaN, and new memory may contain
        # some.
        for layer in self.layers:
            layer.narrow(3, len(cache), positions - len(cache)).zero_()
        self._recording: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, id: int, position: int, compute: Compute) -> Tensor:
        """Logits (vocabulary,) after token `id`, with `position` tokens before it.

        compute: the same in each call. It is not stored, because a model stores its steps: the two
        would keep each other in memory. Its keys and values are in the cache afterwards. The logits
        are valid until the next call.
        """
        self._id.fill_(id)
        self._position.fill_(position)
        if self._id.device.type != "cuda":
            return self._run(compute)
        if self._recording is None:
            self._recording = self._record(compute)
        graph, logits = self._recording
        graph.replay()
        return logits

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Like `KeyValueCache.extend`, but returns the keys and values of all reserved
        positions."""
        reserved = self.layers[layer]
        reserved.index_copy_(3, self._position, new)
        keys, values = reserved.unbind(0)
        return keys, values

    def _run(self, compute: Compute) -> Tensor:
        later = self._positions > self._position
        mask = torch.zeros(1, len(later), device=later.device).masked_fill_(later, -torch.inf)
        return compute(self._id, self._position, self, mask)[0]

    def _record(self, compute: Compute) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        aside, graph = _stream(), torch.cuda.CUDAGraph()
        with _RECORDING:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    self._run(compute)
            torch.cuda.current_stream().wait_stream(aside)
            # Another thread may be using the GPU for another model at the same time.
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                logits = self._run(compute)
        return graph, logits


@functools.cache
def _stream() -> torch.cuda.Stream:
    """One for all recordings: torch keeps memory for each stream that multiplied matrices."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
