"""A GPT-2 of this program with its tokenizer: the model most chats run on.

Keep: nothing here or below imports transformers.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chatapp.engine.checkpoint import ModelError
from chatapp.engine.generation import Check, LocalGenerator
from chatapp.engine.gpt2 import GPT2
from chatapp.engine.tokenizer import BPETokenizer, load_tokenizer

# Rows of logits computed at once when scoring: about 50 MB with GPT-2's vocabulary.
LOGIT_ROWS = 256


class LocalModel(LocalGenerator):
    """GPT-2 as a `LanguageModel`."""

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
        self._cache = gpt2.new_cache()

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

    def logprobs(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        # The last token is only predicted, never read.
        read = [torch.tensor(row[:-1]) for row in rows]
        hidden = self.gpt2.hidden(pad_sequence(read, batch_first=True))
        found = []
        for states, row, first in zip(hidden, rows, firsts, strict=True):
            values: list[float] = []
            for start in range(first, len(row), LOGIT_ROWS):
                ids = torch.tensor(row[start : start + LOGIT_ROWS])
                logits = self.gpt2.head(states[start - 1 : start - 1 + len(ids)])
                values += (logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(1)).tolist()
            found.append(values)
        return found
