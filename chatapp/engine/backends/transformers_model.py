"""Any causal language model of transformers, and PEFT adapters, as a `LanguageModel`.

Invariant: a model whose cache can be cut back reuses it like this program's decoder; any other
model computes its whole sequence for each token.
"""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chatapp.engine.backends.transformers_internals import (
    accepts,
    cache_arguments,
    cache_of,
    cut_back,
    keeps_cache,
)
from chatapp.engine.backends.transformers_loading import context_of, load_causal, put_on
from chatapp.engine.cache.key_values import Lookup, common_prefix
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.generation import CancelCheck, LocalGenerator
from chatapp.engine.model import Generate, PieceTokenizer
from chatapp.engine.tokenizers import open_tokenizer

# Tokens computed between two checks of the cancel event.
CHUNK = 64
# Most logits of a batch for scoring, about 130 MB.
BATCH_LOGITS = 2**25


class NetworkModel(LocalGenerator):
    """A model of transformers, in float32.

    network: transformers' model. start, end: special tokens that it expects around a text, such as
    the first token of Llama and OPT; not included in any count. context: the longest sequence with
    them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PieceTokenizer,
        *,
        name: str,
        files: ModelFiles | None,
        layers: int,
        start: Sequence[int],
        end: Sequence[int] = (),
    ) -> None:
        super().__init__(
            name=name,
            files=files,
            context=context_of(model.config) - len(start) - len(end),
            vocabulary=min(tokenizer.size, model.get_input_embeddings().weight.shape[0]),
            layers=layers,
            tokenizer=tokenizer,
        )
        self.network = model.eval()
        self.start = list(start)
        self.end = list(end)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.device
        return device

    @property
    def precision(self) -> str:
        return "float32"

    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`. Each has its own cache."""

        return lambda request: self._with_own_cache().generate(request)

    @abstractmethod
    def _with_own_cache(self) -> Self:
        """The same model with a new cache of its own."""

    def _real(self, logits: Tensor) -> Tensor:
        """Drop the logits that only pad the vocabulary, and move the rest to the CPU."""
        return logits[..., : self.vocabulary].float().cpu()

    def _on_device(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Move ids to the model's current device: training may have moved it to a GPU."""
        return torch.tensor(rows, device=self.device)


class TransformersModel(NetworkModel):
    """A causal language model of transformers.

    can_cache: whether keys and values can be kept between passes. is_permuted: whether it predicts
    a token through a mask over the whole sequence, one at a time, as XLNet does.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PieceTokenizer,
        *,
        name: str,
        files: ModelFiles | None = None,
        start: Sequence[int] = (),
    ) -> None:
        layers = model.config.num_hidden_layers
        super().__init__(model, tokenizer, name=name, files=files, layers=layers, start=start)
        self._batch_tokens = max(1, BATCH_LOGITS // self.vocabulary)
        self.can_cache = keeps_cache(model)
        self._can_keep_few = accepts(model, "logits_to_keep")
        self.is_permuted = model.config.model_type == "xlnet"
        self._past: Any = None
        self._past_ids: list[int] = []
        self._lookup = Lookup()  # for the logits of forced tokens

    @classmethod
    def load(cls, files: ModelFiles, *, name: str = "", device: str = "cpu") -> "TransformersModel":
        """Load from a folder in Hugging Face layout; a PEFT adapter is merged into its base.

        device: see `device_for`. Raises ModelError.
        """
        model = put_on(device, load_causal(files), files)
        tokenizer, start = open_tokenizer(files.tokenizer)
        return cls(model, tokenizer, name=name or str(files.path), files=files, start=start)

    def _with_own_cache(self) -> Self:
        other = copy.copy(self)
        other._lookup = Lookup()
        other.forget()
        return other

    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int] = ()
    ) -> tuple[Tensor, int]:
        tokens = [*self.start, *ids]
        if not self.can_cache:
            raise_if_cancelled()
            options = {"logits_to_keep": 1} if self._can_keep_few else {}
            return self._last_logits(tokens, options), 0
        known = self._lookup.recall(tokens)
        if known is not None:
            return known, len(ids) - 1
        reused = self._rewind(tokens)
        ahead = list(ahead[: self.context - len(ids)])
        kept = 1 + len(ahead)
        for start in range(reused, len(tokens), CHUNK):
            raise_if_cancelled()
            is_last = start + CHUNK >= len(tokens)
            chunk = [*tokens[start : start + CHUNK], *(ahead if is_last else ())]
            output = self.network(
                input_ids=self._on_device([chunk]),
                **cache_arguments(self._past),
                **({"logits_to_keep": kept if is_last else 1} if self._can_keep_few else {}),
            )
            self._past = cache_of(output, self.network)
            self._past_ids += chunk
        logits = self._real(output.logits[0, -kept:])
        if ahead:
            self._lookup.keep([*tokens, *ahead], logits, is_guess=False)
        return logits[0], max(0, reused - len(self.start))

    def forget(self) -> None:
        self._past = None
        self._past_ids = []

    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        tokens = self._on_device([[*self.start, *ids]])
        output = self.network(input_ids=tokens, output_hidden_states=True)
        return torch.as_tensor(output.hidden_states[layer][0, len(self.start) :]).cpu()

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in rows]
        if self.can_cache:
            # In lexicographic order, rows with a common beginning are consecutive.
            for i in sorted(range(len(rows)), key=lambda index: list(rows[index])):
                with self.lock, torch.inference_mode():
                    try:
                        scores[i] = self._next_logprobs(rows[i], firsts[i])
                    except BaseException:
                        self.forget()
                        raise
            return scores
        # Rows of similar length share a batch.
        longest_first = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        while longest_first:
            size = max(1, self._batch_tokens // len(rows[longest_first[0]]))
            batch, longest_first = longest_first[:size], longest_first[size:]
            with self.lock, torch.inference_mode():
                logprobs = self._logprobs([rows[i] for i in batch], [firsts[i] for i in batch])
            for i, values in zip(batch, logprobs, strict=True):
                scores[i] = values
        return scores

    def _next_logprobs(self, row: Sequence[int], first: int) -> list[float]:
        """Log-probabilities of one row; what it shares with the last one is in the cache."""
        tokens = [*self.start, *row[:-1]]
        reused = self._rewind(tokens[: len(self.start) + first])
        size = len(row) - first
        output = self.network(
            input_ids=self._on_device([tokens[reused:]]),
            **cache_arguments(self._past),
            **({"logits_to_keep": size} if self._can_keep_few else {}),
        )
        self._past, self._past_ids = cache_of(output, self.network), tokens
        logits = self._real(output.logits[0, -size:])
        values = logits.log_softmax(1).gather(1, torch.tensor(row[first:])[:, None])
        return [float(value) for value in values]

    def _logprobs(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        """Log-probabilities of one padded batch."""
        if self.is_permuted:
            return [
                [self._permuted_logprob(row[:end], row[end]) for end in range(first, len(row))]
                for row, first in zip(rows, firsts, strict=True)
            ]
        # The last token is only predicted, never read.
        read = [torch.tensor([*self.start, *row[:-1]]) for row in rows]
        size = max(map(len, read)) - (len(self.start) + min(firsts) - 1)
        logits = self.network(
            input_ids=pad_sequence(read, batch_first=True).to(self.device),
            attention_mask=pad_sequence(
                [torch.ones_like(row) for row in read], batch_first=True
            ).to(self.device),
            **({"logits_to_keep": size} if self._can_keep_few else {}),
        ).logits[:, -size:]
        scores = []
        for row_logits, row, first in zip(logits, rows, firsts, strict=True):
            start = first - min(firsts)
            targets = torch.tensor(row[first:])
            own = self._real(row_logits[start : start + len(targets)])
            scores.append((own.gather(1, targets[:, None])[:, 0] - own.logsumexp(1)).tolist())
        return scores

    def _permuted_logprob(self, context: Sequence[int], id: int) -> float:
        logits = self._last_logits([*self.start, *context], {})
        return float(logits[id] - logits.logsumexp(0))

    def _last_logits(self, tokens: list[int], options: dict[str, Any]) -> Tensor:
        """Logits after `tokens`, computed without a cache."""
        ids = self._on_device([tokens])
        inputs = {"input_ids": ids}
        if self.is_permuted:
            inputs = self.network.prepare_inputs_for_generation(ids)
        return self._real(self.network(**inputs, **options).logits[0, -1])

    def _rewind(self, tokens: list[int]) -> int:
        """Cut the cache back to what `tokens` can reuse; return the number of reused tokens."""
        size = min(common_prefix(self._past_ids, tokens), len(tokens) - 1)
        surplus = len(self._past_ids) - size
        if surplus:
            if cut_back(self._past, surplus):
                del self._past_ids[size:]
            else:
                self.forget()
        return len(self._past_ids)
