"""A GPT-2 of this program with its tokenizer: the model most chats run on.

Keep: nothing here or below imports transformers.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from chatapp.engine.checkpoint import ModelError
from chatapp.engine.generation import Check, LocalGenerator
from chatapp.engine.gpt2 import GPT2
from chatapp.engine.tokenizer import BPETokenizer, load_tokenizer
from chatapp.engine.tree import PrefixTree

# Rows of logits computed at once when scoring: about 50 MB with GPT-2's vocabulary.
LOGIT_ROWS = 256


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
            vocabulary=gpt2.head.weight.shape[0],
            tokenizer=tokenizer,
        )
        self.gpt2 = gpt2
        self._cache = gpt2.new_cache(spare=self.batch_tokens)

    @classmethod
    def load(cls, folder: Path, *, name: str = "") -> "LocalModel":
        """From a folder in Hugging Face layout. Raises ModelError."""
        tokenizer = load_tokenizer(folder)
        gpt2 = GPT2.load(folder, vocabulary=tokenizer.size)
        if tokenizer.end_id >= gpt2.config.vocab_size:
            raise ModelError(
                f"{folder}: the end-of-text token has the id {tokenizer.end_id}, "
                f"the model has {gpt2.config.vocab_size} tokens"
            )
        return cls(gpt2, tokenizer, name=name or str(folder), folder=folder)

    def next_logits(self, ids: Sequence[int], check: Check) -> tuple[Tensor, int]:
        reused = self._cache.rewind(ids)
        return self.gpt2.forward(ids[reused:], self._cache, check=check), reused

    def forget(self) -> None:
        self._cache.clear()

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in rows]
        # In lexicographic order, rows that begin alike stand together.
        waiting = deque(sorted(range(len(rows)), key=lambda index: list(rows[index])))
        while waiting:
            chunk: list[tuple[int, list[int]]] = []
            with self._lock, torch.inference_mode():
                self._cache.rewind(rows[waiting[0]][: firsts[waiting[0]]])
                tree = PrefixTree(self._cache.ids)
                while waiting:
                    row, first = rows[waiting[0]][:-1], firsts[waiting[0]]
                    shared = tree.shared(row)
                    # A row whose first token is predicted by what is cached needs that again.
                    if chunk and (
                        len(tree.ids) + len(row) - shared > self.batch_tokens
                        or (shared >= first and tree.path[first - 1] < tree.start)
                    ):
                        break
                    chunk.append((waiting.popleft(), tree.add(row)))
                hidden = self.gpt2.hidden(
                    torch.tensor([tree.ids]),
                    self._cache,
                    positions=torch.tensor(tree.positions),
                    mask=tree.mask(),
                )[0]
                self._cache.keep(tree.path)
                for index, path in chunk:
                    places = [slot - tree.start for slot in path[firsts[index] - 1 :]]
                    scores[index] = self._logprobs(hidden[places], rows[index][firsts[index] :])
        return scores

    def _logprobs(self, states: Tensor, ids: Sequence[int]) -> list[float]:
        """Log-probability of each token after its state."""
        values: list[float] = []
        for start in range(0, len(ids), LOGIT_ROWS):
            some = torch.tensor(ids[start : start + LOGIT_ROWS])
            logits = self.gpt2.head(states[start : start + LOGIT_ROWS])
            values += (logits.gather(1, some[:, None])[:, 0] - logits.logsumexp(1)).tolist()
        return values
