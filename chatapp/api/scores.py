"""The log-probabilities of a prompt's own tokens, for requests with `echo`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatapp.engine.events import Alternative, Token
from chatapp.engine.model import LanguageModel, PieceTokenizer

if TYPE_CHECKING:
    from chatapp.engine.backends.local import LocalModel


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with the probability that the model gave it, as of `Token`; None for the first."""

    id: int
    piece: str
    logprob: float | None
    alternatives: tuple[Alternative, ...] = ()


def drawn(token: Token) -> ScoredToken:
    """A generated token."""
    logprob = None if math.isnan(token.logprob) else token.logprob
    return ScoredToken(token.id, token.piece, logprob, token.alternatives)


def score_prompt(model: LanguageModel, ids: Sequence[int], top: int) -> list[ScoredToken]:
    """Score a text's tokens, each given those before it.

    top: the number of alternatives. A model without a decoder of its own has none but the token
    itself. Raises ContextOverflow.
    """
    from chatapp.engine.backends.local import LocalModel

    pieces = [piece_of(model, id) for id in ids]
    first = ScoredToken(ids[0], pieces[0], None)
    if len(ids) == 1:
        return [first]
    if isinstance(model, LocalModel):
        return [first, *_by_decoder(model, ids, pieces, top)]
    (logprobs,) = model.score([(ids[:1], ids[1:])])
    return [
        first,
        *(
            ScoredToken(id, piece, logprob, (Alternative(id, piece, logprob),) if top else ())
            for id, piece, logprob in zip(ids[1:], pieces[1:], logprobs, strict=True)
        ),
    ]


def _by_decoder(
    model: "LocalModel",
    ids: Sequence[int],
    pieces: Sequence[str],
    top: int,
) -> list[ScoredToken]:
    import torch

    read = [*model.start, *ids]
    with model.lock, torch.inference_mode():
        logits = model.decoder.forward(read, all_positions=True)[len(model.start) : -1].float()
        logprobs = torch.log_softmax(logits, -1)
        own = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
        values, best = logprobs.topk(top, -1)
        rows = zip(values.tolist(), best.tolist(), strict=True)
    return [
        ScoredToken(
            id,
            piece,
            logprob,
            tuple(
                Alternative(int(other), piece_of(model, int(other)), value)
                for value, other in zip(*row, strict=True)
            ),
        )
        for id, piece, logprob, row in zip(ids[1:], pieces[1:], own, rows, strict=True)
    ]


def piece_of(model: LanguageModel, id: int) -> str:
    """A token's own text, for display."""
    tokenizer = model.tokenizer
    return tokenizer.piece(id) if isinstance(tokenizer, PieceTokenizer) else tokenizer.decode([id])


def bytes_of(model: LanguageModel, id: int, piece: str) -> list[int]:
    """A token's bytes, which may be a part of a character."""
    from chatapp.engine.tokenizers.byte_level import BPETokenizer

    tokenizer = model.tokenizer
    own = tokenizer.token_bytes(id) if isinstance(tokenizer, BPETokenizer) else piece.encode()
    return list(own)
