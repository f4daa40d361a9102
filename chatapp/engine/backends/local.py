"""A decoder of this program with its tokenizer: the model of most chats.

Invariant: with GPT-2's own tokenizer, neither this module nor those below import transformers.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from chatapp.engine.batch import SharedBatch, generate_many, write_ahead
from chatapp.engine.cache.key_values import CachePool, KeyValueCache, Lookup, PrefixTree
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.files.weights import kept_weights, read_weights
from chatapp.engine.generation import CancelCheck, Continuation, LocalGenerator
from chatapp.engine.kernels.linear import (
    QUANTISED,
    layout,
    precision_for,
    quantised,
    to_bfloat16,
)
from chatapp.engine.kernels.machine import device_for
from chatapp.engine.model import Generate, PieceTokenizer, Request
from chatapp.engine.tokenizers import chat_tokenizer

# Rows of logits computed in one step of scoring: about 50 MB with GPT-2's vocabulary.
LOGIT_ROWS = 256

# Weights of matrices that stay in a processor's cache, so that reading them takes no time.
_CACHED = 2**23

# Bytes for keys and values of earlier texts: three full windows of a GPT-2 124M.
CACHE_BYTES = 288 * 2**20


def load_decoder(
    files: ModelFiles,
    *,
    vocabulary: int | None = None,
    precision: str = "float32",
    device: str = "cpu",
    tensors: Mapping[str, Tensor] | None = None,
) -> Decoder:
    """Load the decoder of a whole model. Raises ModelError, NoDecoder for an unsupported model.

    vocabulary: see `Decoder`. precision: float32, bfloat16, int8, int4, or auto for the fastest one
    here. device: cpu, cuda, mps, or auto; see `device_for`. tensors: of a checkpoint, by name,
    instead of those in the files; then in float32.
    """
    size = files.architecture.matrix_parameters
    target = device_for(device, precision, size)
    chosen = precision_for(precision, size, target)
    if tensors is not None:
        weights = dict(read_weights(files, tensors))
    elif chosen in QUANTISED:
        four_bits = chosen == "int4"
        weights = kept_weights(
            files,
            chosen,
            layout(chosen),
            lambda: quantised(read_weights(files, four_bits=four_bits), chosen),
        )
    elif chosen == "bfloat16":
        weights = to_bfloat16(read_weights(files))
    else:
        weights = dict(read_weights(files))
    weights = {name: tensor.to(target) for name, tensor in weights.items()}
    return Decoder(files.architecture, weights, vocabulary=vocabulary)


def guess_cost(decoder: Decoder) -> float:
    """The time of one more token in a pass, in passes of one token, as measured: small where
    reading the weights takes most of it.
    """
    if decoder.architecture.matrix_parameters < _CACHED:
        return 0.4
    return {"int8": 0.1, "int4": 0.25}.get(decoder.precision, 0.05)


class LocalModel(LocalGenerator):
    """A decoder as a `LanguageModel`.

    start: see `LanguageModel.start`; not included in any count.
    """

    takes_interventions = True

    batch_tokens = 256
    """Most new tokens of one pass for scoring, except for a single longer row."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: PieceTokenizer,
        *,
        name: str,
        files: ModelFiles | None = None,
        start: Sequence[int] = (),
    ) -> None:
        super().__init__(
            name=name,
            files=files,
            context=decoder.architecture.context - len(start),
            vocabulary=decoder.vocabulary,
            layers=decoder.architecture.layers,
            tokenizer=tokenizer,
        )
        self.start = list(start)
        self.decoder = decoder
        self._pool = CachePool(partial(decoder.new_cache, self.batch_tokens), CACHE_BYTES)
        self._cache, _ = self._pool.take([decoder.architecture.vocabulary])
        self._lookup = Lookup(guess_cost(decoder))
        self._interventions = UNCHANGED
        self._read_last: tuple[list[int], Tensor] = ([], torch.empty(0))
        """The last argument of `read`, and the logits after it."""

    @classmethod
    def load(
        cls, files: ModelFiles, *, name: str = "", precision: str = "float32", device: str = "cpu"
    ) -> "LocalModel":
        """Load a model's files, with precision and device of `load_decoder`.

        Raises ModelError, NoDecoder for a model that needs transformers.
        """
        vocabulary = files.architecture.vocabulary
        tokenizer, start = chat_tokenizer(files)
        # Special tokens beyond the embedding, such as an added padding token, do no harm.
        needed = max(tokenizer.end_id + 1, tokenizer.text_size)
        if needed > vocabulary:
            raise ModelError(
                f"{files.path}: the tokenizer has {needed} tokens, the model only "
                f"{vocabulary}; they do not belong together"
            )
        decoder = load_decoder(files, vocabulary=tokenizer.size, precision=precision, device=device)
        return cls(decoder, tokenizer, name=name or str(files.path), files=files, start=start)

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def precision(self) -> str:
        return self.decoder.precision

    @property
    def memory(self) -> int | None:
        """See `Architecture.memory`."""
        return self.decoder.architecture.memory

    def change(self, interventions: Interventions) -> None:
        if interventions != self._interventions:
            self._interventions = interventions
            self.start_over()

    def start_over(self) -> None:
        self._pool.clear()
        self._lookup = Lookup(guess_cost(self.decoder))
        self._read_last = ([], torch.empty(0))

    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int] = ()
    ) -> tuple[Tensor, int]:
        logits, reused = self._logits_after([*self.start, *ids], raise_if_cancelled, ahead)
        return logits, max(0, reused - len(self.start))

    def write(self, reply: Continuation) -> bool:
        ids = [*self.start, *reply.sequence]
        if self._lookup.recall(ids) is not None:
            return False
        self._cache, reused = self._pool.take(ids)
        if len(ids) - reused > 1 or self._guess(ids):
            return False
        try:
            return write_ahead(self.decoder, [reply], self._cache)
        except BaseException:
            self.forget()
            raise

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`; the sequences share passes, see `batch`."""
        return generate_many(self, requests)

    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`; the sequences share passes, see `batch`."""
        return SharedBatch(self, count).generate

    def read(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck
    ) -> tuple[Tensor, int, KeyValueCache]:
        """`next_logits` of a prompt, and the cache that contains it until the next computation."""
        self.change(UNCHANGED)
        tokens = [*self.start, *ids]
        last, logits = self._read_last
        if tokens == last == self._cache.ids:  # several replies to one prompt
            return logits, len(ids) - 1, self._cache
        self._cache, reused = self._pool.take(tokens)
        try:
            logits = self.decoder.forward(
                tokens[reused:], self._cache, raise_if_cancelled=raise_if_cancelled
            )
        except BaseException:
            self.forget()
            raise
        self._read_last = tokens, logits
        return logits, max(0, reused - len(self.start)), self._cache

    def keep(self, caches: Sequence[KeyValueCache]) -> None:
        """See `CachePool.kept`."""
        self._pool.kept = caches

    def known(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a prompt are cached."""
        return max(0, self._pool.known([*self.start, *ids]) - len(self.start))

    def _logits_after(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int]
    ) -> tuple[Tensor, int]:
        """`next_logits`, where `ids` is everything that the decoder reads."""
        known = self._lookup.recall(ids)
        if known is not None:
            return known, len(ids) - 1
        self._cache, reused = self._pool.take(ids)
        forward = partial(
            self.decoder.forward,
            cache=self._cache,
            raise_if_cancelled=raise_if_cancelled,
            changes=self._interventions.shifted(len(self.start)),
        )
        known_next = list(ahead[: self.decoder.architecture.context - len(ids)])
        is_decoding = len(ids) - reused == 1
        guessed = [] if known_next or not is_decoding else self._guess(ids)
        following = known_next or guessed
        if not following:
            return forward(ids[reused:]), reused
        if len(ids) - reused > 1:  # logits of a whole prompt would take much memory
            forward(ids[reused:-1])
        whole = [*ids, *following]
        logits = forward(whole[len(ids) - 1 :], all_positions=True)
        self._lookup.keep(whole, logits, is_guess=not known_next)
        return logits[0], reused

    def _guess(self, ids: Sequence[int]) -> list[int]:
        """Tokens that may follow. Guesses help only in decoding: not while a prompt is read, and
        not on a GPU, where a pass of several tokens costs as much as many steps.
        """
        room = self.decoder.architecture.context - len(ids)
        return [] if self.device.type == "cuda" else self._lookup.guess(ids, room)

    def forget(self) -> None:
        self._cache.clear()

    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        until = layer if layer < self.layers else None
        states = self.decoder.hidden([[*self.start, *ids]], layer=until)[0]
        return states[len(self.start) :].cpu()

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in rows]
        read = [[*self.start, *row] for row in rows]
        begins = [len(self.start) + first for first in firsts]
        # In lexicographic order, rows with a common beginning are adjacent.
        waiting = deque(sorted(range(len(read)), key=lambda index: read[index]))
        while waiting:
            with self.lock, torch.inference_mode():
                try:
                    paths, states = self._pass(read, begins, waiting)
                except BaseException:
                    self.forget()
                    raise
                # All in one call: with short rows, a call costs more than its computation.
                before = [index for i, path in paths.items() for index in path[begins[i] - 1 :]]
                predicted = [id for i in paths for id in read[i][begins[i] :]]
                values = iter(self._logprobs(states[before], predicted))
            for i in paths:
                scores[i] = list(islice(values, len(read[i]) - begins[i]))
        return scores

    def _pass(
        self, rows: Sequence[Sequence[int]], firsts: Sequence[int], waiting: deque[int]
    ) -> tuple[dict[int, list[int]], Tensor]:
        """Run the model once over the first of the waiting rows, which are removed from the queue.

        Returns for each of them the indices of its tokens among the states, and the states (tokens,
        width). A token that was in the cache has a negative index and no state.
        """
        self.change(UNCHANGED)
        self._cache, _ = self._pool.take(rows[waiting[0]][: firsts[waiting[0]]])
        tree = PrefixTree(self._cache.ids)
        paths: dict[int, list[int]] = {}
        while waiting:
            # The last token of a row is only predicted, never read.
            row, first = rows[waiting[0]][:-1], firsts[waiting[0]]
            new = len(row) - tree.shared(row)
            if paths and len(tree.ids) + new > self.batch_tokens:
                break
            # The state before the first token may come from an earlier pass.
            if len(row) - new >= first and tree.path[first - 1] < tree.start:
                break
            path = tree.add(row)
            paths[waiting.popleft()] = [slot - tree.start for slot in path]
        states = self.decoder.hidden(
            [tree.ids], self._cache, positions=torch.tensor(tree.positions), mask=tree.mask()
        )[0]
        self._cache.keep(tree.path)
        return paths, states

    def _logprobs(self, states: Tensor, ids: Sequence[int]) -> list[float]:
        """Log-probability of each token after the state (width,) in its row of `states`."""
        values: list[float] = []
        for start in range(0, len(ids), LOGIT_ROWS):
            rows = slice(start, start + LOGIT_ROWS)
            logits = self.decoder.head(states[rows])
            predicted = torch.tensor(ids[rows], device=logits.device)
            values += logits.log_softmax(1).gather(1, predicted[:, None])[:, 0].tolist()
        return values
