"""The log-probabilities of a prompt's own tokens, for requests with `echo`."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chatapp.engine.events import Alternative, Finished, Token
from chatapp.engine.model import LanguageModel, PieceTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.cache.key_values import KeyValueCache


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with the probability that the model gave it, as of `Token`; None for the first.

    shown: its bytes in a reply, where those are counted. forced, forbidden: as of `Token`.
    """

    id: int
    piece: str
    logprob: float | None
    alternatives: tuple[Alternative, ...] = ()
    shown: bytes = b""
    forced: bool = False
    forbidden: float = 0.0


def drawn(token: Token) -> ScoredToken:
    """A generated token."""
    logprob = None if math.isnan(token.logprob) else token.logprob
    others = token.alternatives, b"", token.forced, token.forbidden
    return ScoredToken(token.id, token.piece, logprob, *others)


def ended(model: LanguageModel, end: Finished) -> list[ScoredToken]:
    """The token that ended a completion: clients count it, so that they may take off the last."""
    if end.end_id is None or end.end_logprob is None:
        return []
    piece = piece_of(model, end.end_id)
    likely = Alternative(end.end_id, piece, end.end_logprob)
    return [ScoredToken(end.end_id, piece, end.end_logprob, (likely,))]


class ShownTokens:
    """The tokens of a chat's reply whose text is visible: their joined bytes are the reply.

    What is not visible belongs to no token: white space around the reply, a stop string. begun:
    the reply has a beginning already.
    """

    def __init__(self, model: LanguageModel, *, begun: bool = False) -> None:
        self._model = model
        self._held: deque[ScoredToken] = deque()
        self._bytes = b""
        """The reply's bytes, without those of the tokens that have been returned."""
        self._has_begun = begun

    def push(self, token: ScoredToken | None, text: str, *, is_last: bool) -> list[ScoredToken]:
        """Add a token, if there is one, and the text that has become visible; return the tokens
        that have become visible as a whole. is_last: also the part of one that no text follows.
        """
        if token is not None:
            shown = bytes(bytes_of(self._model, token.id, token.piece))
            self._held.append(replace(token, shown=shown))
        self._bytes += text.encode()
        visible = []
        while self._held and self._bytes:
            token = self._held[0]
            own = token.shown if self._has_begun else token.shown.lstrip()
            if len(own) > len(self._bytes) and not is_last:
                break
            self._held.popleft()
            own, self._bytes = self._bytes[: len(own)], self._bytes[len(own) :]
            self._has_begun = self._has_begun or bool(own)
            if own:
                visible.append(replace(token, shown=own))
        return visible


class PromptScorer:
    """Scores the tokens of prompts, each given those before it.

    What a prompt shares with the one before, as the labels of an evaluation share their question,
    is not computed again. For one thread.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._cache: KeyValueCache | None = None
        self._known: list[ScoredToken] = []
        """The scored tokens of the prompt in the cache, with `_top` alternatives each."""
        self._top = 0

    def score(self, ids: Sequence[int], top: int) -> list[ScoredToken]:
        """Score a prompt.

        top: the number of alternatives. A model without a decoder of its own has none but the token
        itself. Raises ContextOverflow.
        """
        from chatapp.engine.backends.local import LocalModel

        if isinstance(self._model, LocalModel) and len(ids) > 1:
            return self._by_decoder(self._model, ids, top)
        first = ScoredToken(ids[0], piece_of(self._model, ids[0]), None)
        if len(ids) == 1:
            return [first]
        (logprobs,) = self._model.score([(ids[:1], ids[1:])])
        pieces = [piece_of(self._model, id) for id in ids[1:]]
        return [
            first,
            *(
                ScoredToken(id, piece, logprob, (Alternative(id, piece, logprob),) if top else ())
                for id, piece, logprob in zip(ids[1:], pieces, logprobs, strict=True)
            ),
        ]

    def _by_decoder(self, model: "LocalModel", ids: Sequence[int], top: int) -> list[ScoredToken]:
        import torch

        from chatapp.engine.backends.local import LOGIT_ROWS
        from chatapp.engine.cache.key_values import common_prefix

        before, read = len(model.start), [*model.start, *ids]
        if self._cache is None or top != self._top:
            self._cache, self._known, self._top = model.decoder.new_cache(), [], top
        cache = self._cache
        # The token before the first one that differs is read again, because it predicts that one.
        reused = cache.rewind(read[: max(1, common_prefix(cache.ids, read))])
        scored = self._known[: max(1, reused + 1 - before)]
        scored = scored or [ScoredToken(ids[0], piece_of(model, ids[0]), None)]
        self._known = scored
        with model.lock, torch.inference_mode():
            for start in range(reused, len(read) - 1, LOGIT_ROWS):  # the last is only predicted
                end = min(start + LOGIT_ROWS, len(read) - 1)
                logits = model.decoder.forward(read[start:end], cache, all_positions=True)
                begin = max(start, before)
                scored += self._scored(logits[begin - start :], read[begin + 1 : end + 1])
        return scored

    def _scored(self, logits: "Tensor", ids: Sequence[int]) -> Iterator[ScoredToken]:
        """The tokens with their probabilities. logits: (tokens, vocabulary)."""
        import torch

        logprobs = logits.float().log_softmax(-1)
        own = logprobs.gather(1, torch.tensor(ids, dtype=torch.long)[:, None])[:, 0].tolist()
        values, best = (tensor.tolist() for tensor in logprobs.topk(self._top, -1))
        for id, logprob, *row in zip(ids, own, values, best, strict=True):
            others = tuple(
                Alternative(other, piece_of(self._model, other), value)
                for value, other in zip(*row, strict=True)
            )
            yield ScoredToken(id, piece_of(self._model, id), logprob, others)


def piece_of(model: LanguageModel, id: int) -> str:
    """A token's own text, for display."""
    tokenizer = model.tokenizer
    return tokenizer.piece(id) if isinstance(tokenizer, PieceTokenizer) else tokenizer.decode([id])


def bytes_of(model: LanguageModel, id: int, piece: str) -> list[int]:
    """A token's bytes, which may be a part of a character."""
    from chatapp.engine.tokenizers import BPETokenizer

    tokenizer = model.tokenizer
    own = tokenizer.token_bytes(id) if isinstance(tokenizer, BPETokenizer) else piece.encode()
    return list(own)
