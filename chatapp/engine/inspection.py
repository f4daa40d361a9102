"""A model with its lid off: attention weights, what each layer would say, how sure it is.

Keep: the numbers are the model's own, and looking changes nothing. A trace is computed from
the weights in float32, apart from the cache and the fast paths that replies are drawn with.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.checkpoint import ModelError, first_line
from chatapp.engine.decoder.gpt2 import GPT2
from chatapp.engine.generation import LocalGenerator
from chatapp.engine.model import ContextOverflow, Sampling
from chatapp.engine.sampling import Sampler

# Rows of attention, and of logits, computed at once: some 50 MB with GPT-2's 50,257 tokens.
ROWS = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may come next, under the model's plain softmax.

    text: the token's own, for display. rank: 1 is the likeliest.
    """

    id: int
    text: str
    probability: float
    rank: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a distribution over the next token amounts to.

    entropy: in bits. candidates: the likeliest, best first. actual: the token that did come;
    None after the last one.
    """

    entropy: float
    candidates: tuple[Candidate, ...]
    actual: Candidate | None


@dataclass(frozen=True, slots=True)
class Cut:
    """The next token's distribution before and after temperature, penalties and cuts.

    before: of the plain softmax. drawn: what each of its candidates' probability has become,
    0 where it was cut off. entropy: in bits, of what is left. kept: how many tokens are left.
    """

    before: Prediction
    drawn: tuple[float, ...]
    entropy: float
    kept: int


class Trace(ABC):
    """What happened in a model while it read `ids`.

    Positions count tokens from 0. Layer 0 is the embeddings, layer n the output of block n.
    """

    def __init__(
        self, ids: Sequence[int], *, layers: int, heads: int, piece: Callable[[int], str]
    ) -> None:
        self.ids = tuple(ids)
        self.layers = layers
        self.heads = heads
        self.texts = tuple(piece(id) for id in ids)
        self._piece = piece

    @abstractmethod
    def logits(self, start: int, stop: int) -> Tensor:
        """Logits (stop - start, vocabulary) after each of these positions."""

    @abstractmethod
    def layer_logits(self, position: int) -> Tensor:
        """Logits (layers + 1, vocabulary) that each layer's state gives at a position.

        The state goes through the final norm and the output matrix as if no block came after
        it: the "logit lens" (nostalgebraist 2020). The last row are the model's own logits.
        """

    @abstractmethod
    def attention(self, position: int) -> NDArray[np.float32]:
        """Attention weights (layers, heads, position + 1) of one position on those before it
        and itself. Each row sums to 1, but for what goes to special tokens put before the text.
        """

    def attentions(self) -> NDArray[np.float32]:
        """All attention weights (layers, heads, positions, positions); 0 on later positions.

        They take 4 · layers · heads · positions² bytes.
        """
        size = len(self.ids)
        weights = np.zeros((self.layers, self.heads, size, size), dtype=np.float32)
        for position in range(size):
            weights[:, :, position, : position + 1] = self.attention(position)
        return weights

    def predictions(self, top: int = 10) -> list[Prediction]:
        """What the model expected after each position, beside what did come."""
        found: list[Prediction] = []
        followers: list[int | None] = [*self.ids[1:], None]
        for start in range(0, len(self.ids), ROWS):
            stop = min(start + ROWS, len(self.ids))
            found += predictions(
                self.logits(start, stop), followers[start:stop], top=top, piece=self._piece
            )
        return found

    def lens(self, position: int, top: int = 5) -> list[Prediction]:
        """What each layer, from the embeddings on, would predict after a position."""
        follower = self.ids[position + 1] if position + 1 < len(self.ids) else None
        rows = self.layer_logits(position)
        return predictions(rows, [follower] * len(rows), top=top, piece=self._piece)


@torch.inference_mode()
def predictions(
    logits: Tensor, actual: Sequence[int | None], *, top: int, piece: Callable[[int], str]
) -> list[Prediction]:
    """Sum up distributions.

    logits: (rows, vocabulary). actual: what did come after each row, if that is known.
    """
    logprobs = logits.float().log_softmax(1)
    # A probability of 0 has a logarithm of -inf, and adds nothing.
    entropies = torch.special.entr(logprobs.exp()).sum(1) / np.log(2)
    values, ids = logprobs.topk(min(top, logprobs.shape[1]))
    found = []
    for row, id in enumerate(actual):
        pairs = zip(ids[row].tolist(), values[row].exp().tolist(), strict=True)
        best = (Candidate(i, piece(i), p, rank) for rank, (i, p) in enumerate(pairs, start=1))
        came = None
        if id is not None:
            logprob = logprobs[row, id]
            rank = 1 + int((logprobs[row] > logprob).sum())
            came = Candidate(id, piece(id), float(logprob.exp()), rank)
        found.append(Prediction(float(entropies[row]), tuple(best), came))
    return found


@torch.inference_mode()
def cut(
    logits: Tensor,
    ids: Sequence[int],
    sampler: Sampler,
    *,
    top: int,
    piece: Callable[[int], str],
) -> Cut:
    """The distribution after `ids`, before and after what the sampler does to it.

    logits: (vocabulary,).
    """
    (before,) = predictions(logits[None], [None], top=top, piece=piece)
    after = sampler.distribution(logits, ids)
    drawn = tuple(float(after[candidate.id]) for candidate in before.candidates)
    entropy = float(torch.special.entr(after).sum()) / np.log(2)
    return Cut(before, drawn, entropy, int((after > 0).sum()))


@runtime_checkable
class Inspectable(Protocol):
    """A language model that can be looked into."""

    def inspect(self, ids: Sequence[int]) -> Trace:
        """Let the model read `ids` and keep what happens in it.

        Raises ContextOverflow when they exceed the window, ValueError when there are none,
        ModelError when this model does not show its inside.
        """
        ...

    def stepper(self, ids: Sequence[int], sampling: Sampling) -> "Stepper":
        """Continue `ids` one token at a time. Raises as `inspect` does."""
        ...


class InspectableGenerator(LocalGenerator):
    """A model of this process as an `Inspectable`. A subclass computes the trace."""

    @abstractmethod
    def trace(self, ids: Sequence[int]) -> Trace:
        """The trace of ids that are known to be good."""

    def inspect(self, ids: Sequence[int]) -> Trace:
        """See `Inspectable.inspect`."""
        self._check(ids)
        return self.trace(ids)

    def stepper(self, ids: Sequence[int], sampling: Sampling) -> "Stepper":
        """See `Inspectable.stepper`."""
        self._check(ids)
        return Stepper(self._logits, self._piece, ids, sampling, self.context, self.end_ids)

    def _check(self, ids: Sequence[int]) -> None:
        self.check_ids(ids)
        if len(ids) > self.context:
            raise ContextOverflow(
                f"the text has {len(ids)} tokens; the model's window has {self.context}"
            )

    def _logits(self, ids: Sequence[int]) -> Tensor:
        """Logits (vocabulary,) after `ids`, as generation computes them, from its cache."""

        def never() -> None:
            """Nobody cancels a single token."""

        with self._lock, torch.inference_mode():
            try:
                return self.next_logits(ids, never)[0]
            except BaseException:
                self.forget()
                raise


class Stepper:
    """A reply generated one token at a time, each distribution in the open.

    taken: the tokens so far, drawn or chosen, as the model saw them coming.

    As long as the sampling stays and no token is chosen or taken back, it draws the very
    tokens that `LanguageModel.generate` gives with the same seed.
    """

    def __init__(
        self,
        logits: Callable[[Sequence[int]], Tensor],
        piece: Callable[[int], str],
        ids: Sequence[int],
        sampling: Sampling,
        context: int,
        end_ids: Collection[int],
    ) -> None:
        self.taken: list[Candidate] = []
        self._ids = list(ids)
        self._context = context
        self._end_ids = end_ids
        self._compute = logits
        self._piece = piece
        self._known: Tensor | None = None
        self.sampling = sampling

    @property
    def sampling(self) -> Sampling:
        """How the next token is drawn."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._sampler = Sampler(sampling)

    @property
    def is_over(self) -> bool:
        """Whether the reply has ended, or the window has no room for another token."""
        ended = bool(self.taken) and self.taken[-1].id in self._end_ids
        return ended or len(self._ids) >= self._context

    def look(self, top: int = 10) -> Cut:
        """The distribution of the next token."""
        return cut(self._logits(), self._ids, self._sampler, top=top, piece=self._piece)

    def draw(self) -> int:
        """Draw the next token and add it; returns its id. Raises ValueError when it is over."""
        self._check()
        id = self._sampler.draw(self._logits(), self._ids)
        self._add(id)
        return id

    def choose(self, id: int) -> None:
        """Add a token that was not drawn. Raises ValueError when it is over."""
        self._check()
        self._add(id)
        self._sampler = Sampler(self._sampling)

    def back(self) -> bool:
        """Take the last token back; False when there is none."""
        if not self.taken:
            return False
        del self._ids[-1], self.taken[-1]
        self._known = None
        self._sampler = Sampler(self._sampling)
        return True

    def _check(self) -> None:
        if self.is_over:
            raise ValueError("the reply has ended, or the model's window is full")

    def _add(self, id: int) -> None:
        (seen,) = predictions(self._logits()[None], [id], top=1, piece=self._piece)
        assert seen.actual is not None
        self.taken.append(seen.actual)
        self._ids.append(id)
        self._known = None

    def _logits(self) -> Tensor:
        if self._known is None:
            self._known = self._compute(self._ids)
        return self._known


class GPT2Trace(Trace):
    """The trace of a GPT-2 of this program, with an attention of its own.

    The states (layers + 1, positions, n_embd) and the queries and keys of every head are
    kept: 12 · layers · positions · n_embd bytes, which is linear in the positions.
    """

    @torch.inference_mode()
    def __init__(self, gpt2: GPT2, ids: Sequence[int], piece: Callable[[int], str]) -> None:
        config = gpt2.config
        super().__init__(ids, layers=config.n_layer, heads=config.n_head, piece=piece)
        self._gpt2 = gpt2
        x = F.embedding(torch.tensor(ids, device=gpt2.device), gpt2.token_embedding)
        x = x + gpt2.position_embedding[: len(ids)]
        self._states = [x]
        self._queries: list[Tensor] = []
        self._keys: list[Tensor] = []
        for layer, block in enumerate(gpt2.blocks):
            split = block.query_key_value(block.norm_1(x))
            # (positions, 3·n_embd) -> three of (heads, positions, head size)
            split = split.view(len(ids), 3, config.n_head, config.head_size)
            query, key, value = split.permute(1, 2, 0, 3).unbind(0)
            self._queries.append(query)
            self._keys.append(key)
            mixed = torch.cat(
                [
                    self._weights(layer, start, min(start + ROWS, len(ids))) @ value
                    for start in range(0, len(ids), ROWS)
                ],
                dim=1,
            )
            x = x + block.projection(mixed.transpose(0, 1).reshape(len(ids), config.n_embd))
            x = x + block.contract(block.activation(block.expand(block.norm_2(x))))
            self._states.append(x)

    def _weights(self, layer: int, start: int, stop: int) -> Tensor:
        """softmax(q kᵀ · scale) of the queries from start to stop: (heads, rows, positions)."""
        scores = self._queries[layer][:, start:stop] @ self._keys[layer].transpose(1, 2)
        scores *= self._gpt2.blocks[layer].scale
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device)
        later = later.triu(start + 1)
        return scores.masked_fill(later, -torch.inf).softmax(2)

    @torch.inference_mode()
    def logits(self, start: int, stop: int) -> Tensor:
        return self._gpt2.head(self._gpt2.norm(self._states[-1][start:stop])).cpu()

    @torch.inference_mode()
    def layer_logits(self, position: int) -> Tensor:
        states = torch.stack([state[position] for state in self._states])
        return self._gpt2.head(self._gpt2.norm(states)).cpu()

    @torch.inference_mode()
    def attention(self, position: int) -> NDArray[np.float32]:
        rows = [
            self._weights(layer, position, position + 1)[:, 0, : position + 1]
            for layer in range(self.layers)
        ]
        found: NDArray[np.float32] = torch.stack(rows).cpu().numpy()
        return found


# What transformers' models call the norm after their last block.
_FINAL_NORMS = ("ln_f", "norm", "final_layernorm", "final_layer_norm", "norm_f")


class TransformersTrace(Trace):
    """The trace of a model of transformers, as far as the model can give it.

    start: special tokens before the text, which positions do not count. real: cuts logits to
    the vocabulary. A model that lacks something raises ModelError when it is asked for it.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Any,
        ids: Sequence[int],
        *,
        start: Sequence[int],
        vocabulary: int,
        can_cache: bool,
        name: str,
        piece: Callable[[int], str],
    ) -> None:
        text = model.config.get_text_config()
        heads = getattr(text, "num_attention_heads", 0)  # a recurrent model has none
        super().__init__(ids, layers=text.num_hidden_layers, heads=heads, piece=piece)
        self._model = model
        self._name = name
        self._start = len(start)
        self._tokens = torch.tensor([[*start, *ids]], device=model.device)
        self._vocabulary = vocabulary
        self._can_cache = can_cache
        output = self._run(self._tokens, output_hidden_states=True, use_cache=False)
        if not getattr(output, "hidden_states", None):
            raise self._missing("hidden states")
        self._states = [state[0, self._start :] for state in output.hidden_states]

    def _run(self, tokens: Tensor, **options: Any) -> Any:
        try:
            return self._model(input_ids=tokens, **options)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self._name}: this model cannot be looked into: {first_line(error)}"
            ) from None

    def _missing(self, what: str) -> ModelError:
        return ModelError(f"{self._name}: this kind of model does not show its {what}")

    def _head(self, states: Tensor) -> Tensor:
        """Logits of states that have been through the final norm."""
        logits: Tensor = self._model.get_output_embeddings()(states)
        return logits[..., : self._vocabulary].float().cpu()

    @torch.inference_mode()
    def logits(self, start: int, stop: int) -> Tensor:
        return self._head(self._states[-1][start:stop])

    @torch.inference_mode()
    def layer_logits(self, position: int) -> Tensor:
        inside = self._model.base_model
        inside = getattr(inside, "decoder", inside)  # OPT has its blocks one floor below
        norm = next((getattr(inside, n) for n in _FINAL_NORMS if hasattr(inside, n)), None)
        if norm is None:
            raise self._missing("layers' predictions")
        # transformers' last hidden state has been through the norm already.
        *early, last = (state[position] for state in self._states)
        return self._head(torch.cat([norm(torch.stack(early)), last[None]]))

    @torch.inference_mode()
    def attention(self, position: int) -> NDArray[np.float32]:
        if not self.heads:
            raise self._missing("attention weights, because it has none")
        place = self._start + position
        tokens = self._tokens[:, : place + 1]
        options: dict[str, Any] = {"use_cache": False}
        if self._can_cache and place:
            # Only the last row is asked for, so that its memory is linear in the positions.
            past = self._run(tokens[:, :-1], use_cache=True).past_key_values
            tokens, options = tokens[:, -1:], {"past_key_values": past, "use_cache": True}
        with _eager(self._model):
            output = self._run(tokens, output_attentions=True, **options)
        weights = getattr(output, "attentions", None)
        if not weights or len(weights) != self.layers or any(w is None for w in weights):
            raise self._missing("attention weights")
        rows = torch.stack([w[0, :, -1] for w in weights])
        if rows.shape != (self.layers, self.heads, place + 1):
            raise self._missing("attention weights one position by another")
        found: NDArray[np.float32] = rows[:, :, self._start :].float().cpu().numpy()
        return found


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Let a model of transformers compute the attention that shows its weights."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
