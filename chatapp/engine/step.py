"""One token through a GPT-2 by operations that never change, so that a GPU can record them.

A token is some hundred small operations, and a GPU waits longer for each to be started than it
takes. Recorded once as a CUDA graph, they are started together.

Keep: the logits are those of `GPT2.forward`. What a recording reads and writes stays where it
is as long as the step lives.
"""

import threading
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from chatapp.engine.cache import KeyValueCache

# Before they are recorded, operations have to run: the first time they reserve memory.
_TRIES = 3


# torch records one graph at a time.
_RECORDING = threading.Lock()

Compute = Callable[[Tensor, Tensor, "Step", Tensor], Tensor]
"""The model: logits (1, vocabulary) after one token.

Of its id (1, 1), its position (1,), where keys and values are, and a mask (1, all) to add to
the attention's scores.
"""


class Step:
    """One more token after those in a cache's room.

    It looks at the whole room, where all that lies after the token is masked. On a cuda
    device it is recorded, elsewhere it is computed.
    """

    def __init__(self, known: KeyValueCache, compute: Compute) -> None:
        self._compute = compute
        self._layers = known.layers
        device, room = known.layers[0].device, known.layers[0].shape[3]
        self._id = torch.zeros(1, 1, dtype=torch.long, device=device)
        self._place = torch.full((1,), len(known), device=device)
        self._slots = torch.arange(room, device=device)
        # What is masked counts for nothing, unless it is not a number.
        for layer in self._layers:
            layer.narrow(3, len(known), room - len(known)).zero_()
        self._record = self._recorded() if device.type == "cuda" else None

    def __call__(self, id: int, place: int) -> Tensor:
        """Logits (vocabulary,) after token `id`, where `place` tokens come before it.

        Its keys and values are in the room then. The logits last until the next call.
        """
        self._id.fill_(id)
        self._place.fill_(place)
        if self._record is None:
            return self._run()
        graph, logits = self._record
        graph.replay()
        return logits

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeyValueCache.extend`, but all keys and values of the room are returned."""
        room = self._layers[layer]
        room.index_copy_(3, self._place, new)
        keys, values = room.unbind(0)
        return keys, values

    def _run(self) -> Tensor:
        later = self._slots > self._place
        mask = torch.zeros(1, len(later), device=later.device).masked_fill_(later, -torch.inf)
        return self._compute(self._id, self._place, self, mask)[0]

    def _recorded(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        aside, graph = _stream(), torch.cuda.CUDAGraph()
        with _RECORDING:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_TRIES):
                    self._run()
            torch.cuda.current_stream().wait_stream(aside)
            # Meanwhile another thread may be using the GPU for another model.
            with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
                logits = self._run()
        return graph, logits


@cache
def _stream() -> torch.cuda.Stream:
    """One for all recordings: torch keeps memory for each stream that multiplied matrices."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
