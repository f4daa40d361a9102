"""The answers of OpenAI's protocol, as JSON data.

Source of the forms: OpenAI's API reference, and what its Python library accepts in strict mode.
"""

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatapp.engine.events import Finished
from chatapp.engine.model import LanguageModel
from chatapp.prompting.messages import Requested
from chatapp.server.scores import ScoredToken, bytes_of

Document = dict[str, Any]

_LENGTH = ("length", "context")


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def head(prefix: str, kind: str, model: str) -> Document:
    """The fields that answers and their chunks begin with. model: its name here."""
    return {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}


def finish_reason(end: Finished | None, calls: Sequence[Document] = ()) -> str | None:
    """Why a reply ended: its end, calls of tools, or a limit; None while it goes on."""
    if calls:
        return "tool_calls"
    if end is None:
        return None
    return "length" if end.reason in _LENGTH else "stop"


def usage(ends: Iterable[Finished]) -> Document:
    """The numbers of tokens of all replies."""
    ends = list(ends)
    prompt, reply = sum(end.prompt_tokens for end in ends), sum(end.reply_tokens for end in ends)
    reused = sum(end.reused_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": {"cached_tokens": reused},
    }


def choice(
    place: int, written: Document, logprobs: Document | None, reason: str | None
) -> Document:
    """One of the `choices` of an answer or a chunk. written: its text, message or delta."""
    return {"index": place} | written | {"logprobs": logprobs, "finish_reason": reason}


def completion_logprobs(
    model: LanguageModel, tokens: Sequence[ScoredToken], offset: int = 0
) -> Document:
    """The `logprobs` of a completion. offset: characters of the text before the first token."""
    stream, offsets = model.tokenizer.stream(), []
    for token in tokens:
        offsets.append(offset)
        offset += len(stream.push(token.id))
    return {
        "tokens": [token.piece for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            None
            if token.logprob is None
            else {other.text: other.logprob for other in reversed(token.alternatives)}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def chat_logprobs(model: LanguageModel, tokens: Sequence[ScoredToken]) -> Document:
    """The `logprobs` of a chat's reply."""

    def described(piece: str, logprob: float | None, own: Iterable[int]) -> Document:
        known = -9999.0 if logprob is None else logprob
        return {"token": piece, "logprob": known, "bytes": list(own)}

    content = [
        described(token.piece, token.logprob, token.shown)
        | {
            "top_logprobs": [
                described(other.text, other.logprob, bytes_of(model, other.id, other.text))
                for other in token.alternatives
            ]
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def tool_call(requested: Requested) -> Document:
    """A call of a tool, for the caller to carry out."""
    arguments = json.dumps(requested.arguments, ensure_ascii=False)
    function = {"name": requested.name, "arguments": arguments}
    return {"id": new_id("call_"), "type": "function", "function": function}


def error(
    message: str, type: str, param: str | None = None, code: str | None = None
) -> Mapping[str, Document]:
    """An error as clients expect it."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
