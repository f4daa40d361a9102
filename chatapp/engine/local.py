"""A GPT-2 of this program with its tokenizer: the model most chats run on.

Keep: nothing here or below imports transformers.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from chatapp.engine.cache import CachePool
from chatapp.engine.checkpoint import ModelError
from chatapp.engine.decoder.gpt2 import GPT2
from chatapp.engine.generation import Check
from chatapp.engine.inspection import GPT2Trace, InspectableGenerator
from chatapp.engine.lookup import Lookup
from chatapp.engine.tokenizer import BPETokenizer, load_tokenizer
from chatapp.engine.tree import PrefixTree

# Rows of logits computed at once when scoring: about 50 MB with GPT-2's vocabulary.
LOGIT_ROWS = 256

# Bytes for keys and values of earlier texts: three full windows of a GPT-2 124M.
CACHE_BYTES = 288 * 2**20


class LocalModel(InspectableGenerator):
    """GPT-2 as a `LanguageModel`."""

    batch_tokens = 256
    """Most new tokens of one pass for scoring, a single longer row excepted."""

    def __init__(
        self, gpt2: GPT2, tokenizer: BPETokenizer, *, name: str, folder: Path | None = None
    ) -> None:
        super().__init__(
            name=name,
            folder=folder,
            context=gpt2.config.n_positions,
            vocabulary=gpt2.vocabulary,
            layers=gpt2.config.n_layer,
            tokenizer=tokenizer,
        )
        self.gpt2 = gpt2
        self._pool = CachePool(partial(gpt2.new_cache, self.batch_tokens), CACHE_BYTES)
        self._cache, _ = self._pool.take([gpt2.config.vocab_size])
        self._lookup = Lookup()

    @classmethod
    def load(
        cls, folder: Path, *, name: str = "", precision: str = "float32", device: str = "cpu"
    ) -> "LocalModel":
        """From a folder in Hugging Face layout, with precision and device of `GPT2.load`.

        Raises ModelError.
        """
        tokenizer = load_tokenizer(folder)
        gpt2 = GPT2.load(folder, vocabulary=tokenizer.size, precision=precision, device=device)
        # Special tokens beyond the embedding, such as an added padding token, do no harm.
        needed = max(tokenizer.end_id + 1, tokenizer.text_size)
        if needed > gpt2.config.vocab_size:
            raise ModelError(
                f"{folder}: the tokenizer has {needed} tokens, the model only "
                f"{gpt2.config.vocab_size}; they do not belong together"
            )
        return cls(gpt2, tokenizer, name=name or str(folder), folder=folder)

    @property
    def device(self) -> torch.device:
        return self.gpt2.device

    def next_logits(self, ids: Sequence[int], check: Check) -> tuple[Tensor, int]:
        known = self._lookup.recall(ids)
        if known is not None:
            return known, len(ids) - 1
        self._cache, reused = self._pool.take(ids)
        if len(ids) - reused > 1:
            return self.gpt2.forward(ids[reused:], self._cache, check=check), reused
        # On a GPU, a pass of several tokens is not recorded and costs as much as many steps.
        room = 0 if self.device.type == "cuda" else self.context - len(ids)
        guessed = self._lookup.guess(ids, room)
        if not guessed:
            return self.gpt2.forward(ids[reused:], self._cache, check=check), reused
        ahead = [*ids, *guessed]
        logits = self.gpt2.forward(ahead[reused:], self._cache, every=True, check=check)
        self._lookup.keep(ahead, logits)
        return logits[0], reused

    def forget(self) -> None:
        self._cache.clear()

    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        last = self.gpt2.config.n_layer
        return self.gpt2.hidden([ids], layer=layer if layer < last else None)[0].cpu()

    def trace(self, ids: Sequence[int]) -> GPT2Trace:
        return GPT2Trace(self.gpt2, ids, self._piece)

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in rows]
        # In lexicographic order, rows that begin alike stand together.
        waiting = deque(sorted(range(len(rows)), key=lambda index: list(rows[index])))
        while waiting:
            with self._lock, torch.inference_mode():
                try:
                    paths, states = self._pass(rows, firsts, waiting)
                except BaseException:
                    self.forget()
                    raise
                # All at once: with short rows, a call costs more than what it computes.
                places = [place for i, path in paths.items() for place in path[firsts[i] - 1 :]]
                predicted = [id for i in paths for id in rows[i][firsts[i] :]]
                values = iter(self._logprobs(states, places, predicted))
            for i in paths:
                scores[i] = list(islice(values, len(rows[i]) - firsts[i]))
        return scores

    def _pass(
        self, rows: Sequence[Sequence[int]], firsts: Sequence[int], waiting: deque[int]
    ) -> tuple[dict[int, list[int]], Tensor]:
        """One pass of the model over the first of the waiting rows, taken from the queue.

        Returns the place of each of their tokens among the states, and the states
        (places, n_embd). What the cache holds has a negative place and no state.
        """
        self._cache, _ = self._pool.take(rows[waiting[0]][: firsts[waiting[0]]])
        tree = PrefixTree(self._cache.ids)
        paths: dict[int, list[int]] = {}
        while waiting:
            # The last token of a row is only predicted, never read.
            row, first = rows[waiting[0]][:-1], firsts[waiting[0]]
            new = len(row) - tree.shared(row)
            if paths and len(tree.ids) + new > self.batch_tokens:
                break
            # What predicts the first token may have been computed in an earlier pass.
            if len(row) - new >= first and tree.path[first - 1] < tree.start:
                break
            path = tree.add(row)
            paths[waiting.popleft()] = [slot - tree.start for slot in path]
        states = self.gpt2.hidden(
            [tree.ids], self._cache, positions=torch.tensor(tree.positions), mask=tree.mask()
        )[0]
        self._cache.keep(tree.path)
        return paths, states

    def _logprobs(self, states: Tensor, places: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Log-probability of each token after the state in its place."""
        values: list[float] = []
        for start in range(0, len(ids), LOGIT_ROWS):
            some = slice(start, start + LOGIT_ROWS)
            logits = self.gpt2.head(states[places[some]])
            predicted = torch.tensor(ids[some], device=logits.device)
            values += logits.log_softmax(1).gather(1, predicted[:, None])[:, 0].tolist()
        return values
