"""The probabilities of given texts from a server: those of a prompt's own tokens, which it repeats.

Where the server cuts texts itself, the tokens are sent as numbers, and the result is that of the
same model here. Otherwise the text is sent, and a token that begins before the continuation and
ends in it belongs to the continuation.
"""

import math
from collections.abc import Sequence
from typing import Any

from chatapp.engine.backends.remote.http import SILENCE_SECONDS, JSONClient, RefusedError
from chatapp.engine.backends.remote.stream import TextPieces
from chatapp.engine.backends.remote.tokens import UNKNOWN, ServedTokens
from chatapp.engine.errors import ModelError

_NEEDED = (
    "scoring needs a server that repeats the prompt with its log-probabilities (echo and logprobs "
    "of /completions), as chatapp's, vLLM's and llama-cpp-python's with --logits_all do"
)


def score_continuation(
    client: JSONClient,
    tokens: ServedTokens | TextPieces,
    context: Sequence[int],
    continuation: Sequence[int],
) -> list[float]:
    """The log-probability of each token of a continuation, in nats.

    Without the server's tokens, each piece gets the same share of the sum. Raises ModelError with
    what the server lacks.
    """
    if isinstance(tokens, ServedTokens):
        ids = [*context, *continuation]
        if UNKNOWN in ids:
            raise ModelError(
                f"{client.server.url}: the server does not tell its end-of-text token, which this "
                "measurement begins with; vLLM does with --enable-tokenizer-info-endpoint"
            )
        if all(map(tokens.is_served, ids)):
            # vLLM and ours take 0 here; it leaves room for a prompt that fills the window.
            logprobs = _echoed(client, ids, most=0)["token_logprobs"]
            return _numbers(client, logprobs[len(context) : len(ids)], len(continuation))
    before, after = tokens.decode(context), tokens.decode(continuation)
    echoed = _echoed(client, before + after, most=1)
    ends = [*echoed["text_offset"][1:], math.inf]
    own = [
        logprob
        for logprob, begin, end in zip(
            echoed["token_logprobs"], echoed["text_offset"], ends, strict=True
        )
        if begin < len(before + after) and end > len(before)
    ]
    total = math.fsum(_numbers(client, own, len(own)))
    return [total / len(continuation)] * len(continuation)


def _echoed(client: JSONClient, prompt: str | list[int], most: int) -> dict[str, Any]:
    """The `logprobs` of a repeated prompt. Raises ModelError."""
    body = {"prompt": prompt, "max_tokens": most, "echo": True, "logprobs": 1, "temperature": 0}
    try:
        answer = client.post("/v1/completions", body, SILENCE_SECONDS)
    except RefusedError as refusal:
        raise ModelError(f"{refusal}; {_NEEDED}") from None
    try:
        logprobs: dict[str, Any] = answer["choices"][0]["logprobs"]
        is_whole = len(logprobs["token_logprobs"]) == len(logprobs["text_offset"])
    except (KeyError, IndexError, TypeError):
        is_whole = False
    if not is_whole:
        raise ModelError(f"{client.server.url}: the answer has no log-probabilities; {_NEEDED}")
    return logprobs


def _numbers(client: JSONClient, logprobs: list[Any], count: int) -> list[float]:
    """Check that all log-probabilities are there. Raises ModelError."""
    if len(logprobs) != count or not count or not all(isinstance(n, float | int) for n in logprobs):
        raise ModelError(f"{client.server.url}: the prompt was not repeated whole; {_NEEDED}")
    return [float(number) for number in logprobs]
