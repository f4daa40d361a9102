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
from chatapp.engine.decoder.gpt2 import GPT2
from chatapp.engine.errors import ModelError
from chatapp.engine.folder import ModelFiles
from chatapp.engine.generation import CancelCheck, LocalGenerator
from chatapp.engine.lookup import Lookup
from chatapp.engine.tokenizer import BPETokenizer, load_tokenizer
from chatapp.engine.tree import PrefixTree

# Rows of logits computed at once when scoring: about 50 MB with GPT-2's vocabulary.
LOGIT_ROWS = 256

# Bytes for keys and values of earlier texts: three full windows of a GPT-2 124M.
CACHE_BYTES = 288 * 2**20


class LocalModel(LocalGenerator):
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
        cls, files: ModelFiles, *, name: str = "", precision: str = "float32", device: str = "cpu"
    ) -> "LocalModel":
        """From a folder in Hugging Face layout, with precision and device of `GPT2.load`.

        Raises ModelError.
        """
        tokenizer = load_tokenizer(files.tokenizer)
        gpt2 = GPT2.load(files, vocabulary=tokenizer.size, precision=precision, device=device)
        # Special tokens beyond the embedding, such as an added padding token, do no harm.
        needed = max(tokenizer.end_id + 1, tokenizer.text_size)
        if needed > gpt2.config.vocab_size:
            raise ModelError(
                f"{files.path}: the tokenizer has {needed} tokens, the model only "
                f"{gpt2.config.vocab_size}; they do not belong together"
            )
        return cls(gpt2, tokenizer, name=name or str(files.path), folder=files.path)

    @property
    def device(self) -> torch.device:
        return self.gpt2.device

    @property
    def precision(self) -> str:
        return self.gpt2.precision

    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck
    ) -> tuple[Tensor, int]:
        known = self._lookup.recall(ids)
        if known is not None:
            return known, len(ids) - 1
        self._cache, reused = self._pool.take(ids)
        forward = partial(
            self.gpt2.forward, cache=self._cache, raise_if_cancelled=raise_if_cancelled
        )
        # Guesses are for decoding: not while a prompt is read, and on a GPU, where a pass of
        # several tokens is not recorded, it costs as much as many steps.
        is_decoding = len(ids) - reused == 1 and self.device.type != "cuda"
        guessed = self._lookup.guess(ids, self.context - len(ids)) if is_decoding else []
        if not guessed:
            return forward(ids[reused:]), reused
        ahead = [*ids, *guessed]
        logits = forward(ahead[reused:], all_positions=True)
        self._lookup.keep(ahead, logits)
        return logits[0], reused

    def forget(self) -> None:
        self._cache.clear()

    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        last = self.gpt2.config.n_layer
        return self.gpt2.hidden([ids], layer=layer if layer < last else None)[0].cpu()

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in rows]
        # In lexicographic order, rows that begin alike stand together.
        waiting = deque(sorted(range(len(rows)), key=lambda index: list(rows[index])))
        while waiting:
            with self.lock, torch.inference_mode():
                try:
                    paths, states = self._pass(rows, firsts, waiting)
                except BaseException:
                    self.forget()
                    raise
                # All at once: with short rows, a call costs more than what it computes.
                before = [index for i, path in paths.items() for index in path[firsts[i] - 1 :]]
                predicted = [id for i in paths for id in rows[i][firsts[i] :]]
                values = iter(self._logprobs(states[before], predicted))
            for i in paths:
                scores[i] = list(islice(values, len(rows[i]) - firsts[i]))
        return scores

    def _pass(
        self, rows: Sequence[Sequence[int]], firsts: Sequence[int], waiting: deque[int]
    ) -> tuple[dict[int, list[int]], Tensor]:
        """One pass of the model over the first of the waiting rows, taken from the queue.

        Returns for each of them the indices of its tokens among the states, and the states
        (tokens, n_embd). A token that the cache held before has a negative index, no state.
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

    def _logprobs(self, states: Tensor, ids: Sequence[int]) -> list[float]:
        """Log-probability of each token after the state (n_embd,) in its row of `states`."""
        values: list[float] = []
        for start in range(0, len(ids), LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            logits = self.gpt2.head(states[rows])
            predicted = torch.tensor(ids[rows], device=logits.device)
            values += logits.log_softmax(1).gather(1, predicted[:, None])[:, 0].tolist()
        return values
