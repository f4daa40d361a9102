"""What a server sends and understands: events of streams, tokens, scores, and constraints.

An event is a JSON object {"choices": [{"text", "finish_reason", "logprobs"}], "usage", "error"}, of
which all may be missing or null; the last event is the word [DONE]. In a chat, "text" is "delta":
{"content", "reasoning_content", "tool_calls"}, where some servers write "reasoning".

Invariants: an event is either understood or refused with a sentence. `TextPieces` cuts text into
numbered pieces that replace the tokens of an unavailable tokenizer; their concatenation is the
text. Where a server cuts texts, a count of tokens is its own; tokens of its replies arrive as text
without their ids, get numbers that no server uses, and are sent back as text. Scores are those of a
prompt's own tokens, which the server repeats. A schema is sent with the request, and every reply is
checked here.
"""

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.engine.backends.remote.http import (
    SILENCE_SECONDS,
    Body,
    JSONClient,
    RefusedError,
    Server,
    nonsense,
    reason_of,
)
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.errors import ModelError
from chatapp.engine.events import CALLING, THINKING, Finished
from chatapp.engine.model import Request

DONE = "[DONE]"
"""The data of a stream's last event."""


@dataclass(frozen=True, slots=True)
class ServedToken:
    """A token's text, its log-probability (nan if unknown), and those of the most likely
    alternatives, best first.
    """

    text: str
    logprob: float = math.nan
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's token counts; reply: 0 if unknown."""

    prompt: int
    reply: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of the `index`th tool call of the reply. name: only in its first part. arguments: a
    part of the JSON text of the arguments.
    """

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """The content of an event.

    thoughts: the thought before the reply, if a server separates it. calls: parts of tool calls.
    reason: the server's finish reason, `DONE` after its last event.
    """

    tokens: tuple[ServedToken, ...] = ()
    thoughts: tuple[ServedToken, ...] = ()
    calls: tuple[CallPiece, ...] = ()
    reason: str = ""
    usage: Usage | None = None

    @property
    def has_words(self) -> bool:
        """Whether it continues the reply with more than spaces."""
        texts = [token.text for token in (*self.tokens, *self.thoughts)]
        texts += [call.name + call.arguments for call in self.calls]
        return any(text.strip() for text in texts)


def read_chunk(server: Server, data: str) -> Chunk:
    """Parse an event. Raises ModelError."""
    if data.strip() == DONE:
        return Chunk(reason=DONE)
    try:
        document = parse_json(data)
    except ValueError:
        raise nonsense(server, "one of its events is not JSON") from None
    if not isinstance(document, dict):
        raise nonsense(server, "one of its events is not a JSON object")
    if document.get("error"):
        raise ModelError(f"the server failed: {reason_of(server, document)}")
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    try:
        text, thought = _texts(choice)
    except (TypeError, AttributeError):
        raise nonsense(server, "one of its events has no text") from None
    # If one event has two texts, it is unknown which one the probabilities belong to.
    logprobs = None if text and thought else choice.get("logprobs")
    reason = choice.get("finish_reason")
    return Chunk(
        _tokens(text, logprobs) if text else (),
        _tokens(thought, logprobs) if thought else (),
        _calls(choice),
        reason if isinstance(reason, str) else "",
        _usage(document.get("usage")),
    )


def _texts(choice: dict[str, Any]) -> tuple[str, str]:
    """The reply and the thought in an event. Raises TypeError or AttributeError for other types."""
    delta = choice.get("delta") or {}
    reply = choice.get("text") or delta.get("content") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    if not isinstance(reply, str) or not isinstance(thought, str):
        raise TypeError
    return reply, thought


def _calls(choice: dict[str, Any]) -> tuple[CallPiece, ...]:
    rows = (choice.get("delta") or {}).get("tool_calls")
    pieces = []
    for place, row in enumerate(rows if isinstance(rows, list) else ()):
        function = row.get("function") if isinstance(row, dict) else None
        if not isinstance(function, dict):
            continue
        index = row.get("index")
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(arguments, dict):  # as from Ollama
            arguments = json.dumps(arguments)
        pieces.append(
            CallPiece(
                index if isinstance(index, int) else place,
                name if isinstance(name, str) else "",
                arguments if isinstance(arguments, str) else "",
            )
        )
    return tuple(pieces)


def token_count(value: object) -> int:
    """A server's number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _usage(usage: object) -> Usage | None:
    prompt = token_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else 0
    if not isinstance(usage, dict) or not prompt:
        return None
    details = usage.get("prompt_tokens_details")
    reused = token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(prompt, token_count(usage.get("completion_tokens")), reused)


def _tokens(text: str, logprobs: object) -> tuple[ServedToken, ...]:
    """The tokens of a text, or the whole text as one if the server does not separate them."""
    tokens = _with_logprobs(logprobs) if isinstance(logprobs, dict) else []
    if len(tokens) > 1 and "".join(token.text for token in tokens) == text:
        return tuple(tokens)
    if len(tokens) > 1:
        # Its parts do not end at token boundaries; the whole text is as likely as they are.
        return (ServedToken(text, math.fsum(token.logprob for token in tokens)),)
    return tuple(replace(token, text=text) for token in tokens or [ServedToken(text)])


def _with_logprobs(logprobs: dict[str, Any]) -> list[ServedToken]:
    """The tokens, from either of the two forms of log-probabilities.

    The protocol has three parallel lists; llama.cpp's server has one list of objects.
    """
    content = logprobs.get("content")
    if isinstance(content, list):
        return [_from_object(row) for row in content if isinstance(row, dict)]
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values):
        return []
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(texts):
        tops = [None] * len(texts)
    return [
        _token(text, value, top.items() if isinstance(top, dict) else ())
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _from_object(row: dict[str, Any]) -> ServedToken:
    tops = row.get("top_logprobs")
    tops = [top for top in tops if isinstance(top, dict)] if isinstance(tops, list) else []
    others = [(top.get("token"), top.get("logprob")) for top in tops]
    return _token(row.get("token"), row.get("logprob"), others)


def _token(
    text: object, logprob: object, alternatives: Iterable[tuple[object, object]]
) -> ServedToken:
    others = {str(other): _number(value) for other, value in alternatives}
    best_first = sorted(others.items(), key=lambda item: -item[1])
    return ServedToken(str(text), _number(logprob), tuple(best_first))


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


class TextPieces:
    """A `Tokenizer` for models whose own is unavailable: pieces of text, numbered as they come.

    A piece is up to five letters, or one other character, with the space before it. Their number
    estimates that of tokens: for English prose it is 2 to 8 % above GPT-2's, for other scripts it
    may be too low. Each token from a server becomes one piece, so the tokens of replies are counted
    exactly.
    """

    end_id = 0
    special: Mapping[str, int] = MappingProxyType({})

    _PIECE = re.compile(r" ?(?:[A-Za-z]{1,5}|.)", re.DOTALL)

    def __init__(self) -> None:
        # The end-of-text token has no text here, because its name is unknown.
        self._pieces = [""]
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()
        self.size = 1

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        return [self.token(piece) for piece in self._PIECE.findall(text)]

    def token(self, piece: str) -> int:
        """The id of a piece, even if `encode` would never cut it so."""
        with self._lock:
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
                self.size += 1
            return self._ids[piece]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self.piece, ids))

    def piece(self, id: int) -> str:
        """A token's own text."""
        return self._pieces[id]

    def stream(self) -> "TextPieces":
        return self

    def push(self, id: int) -> str:
        return self.piece(id)

    def flush(self) -> str:
        return ""


class Calls:
    """Converts the calls in a stream to text. have_come: whether there were any."""

    def __init__(self) -> None:
        self.have_come = False
        self._open: int | None = None
        self._has_arguments = False

    def into_text(self, chunk: Chunk) -> tuple[ServedToken, ...]:
        """The calls of a chunk; the last call is closed at the end of the reply."""
        text = ""
        for piece in chunk.calls:
            if piece.index != self._open:
                text += self._closed()
                self.have_come = True
                self._open, self._has_arguments = piece.index, False
                text += f'{CALLING[0]}{{"name": {json.dumps(piece.name)}, "arguments": '
            text += piece.arguments
            self._has_arguments = self._has_arguments or bool(piece.arguments.strip())
        if chunk.reason:
            text += self._closed()
        return (ServedToken(text),) if text else ()

    def _closed(self) -> str:
        if self._open is None:
            return ""
        self._open = None
        return f"{'' if self._has_arguments else '{}'}}}{CALLING[1]}"


class Thoughts:
    """Joins the thoughts and the reply in a stream to one text."""

    def __init__(self) -> None:
        self._is_open = False

    def into_text(self, chunk: Chunk) -> tuple[ServedToken, ...]:
        """All tokens of a chunk. A mark belongs to the text of the token after it."""
        begin, end = THINKING
        tokens: tuple[ServedToken, ...] = ()
        if chunk.thoughts:
            tokens += chunk.thoughts if self._is_open else _after(f"{begin}\n", chunk.thoughts)
            self._is_open = True
        if chunk.tokens:
            tokens += _after(f"\n{end}\n\n", chunk.tokens) if self._is_open else chunk.tokens
            self._is_open = False
        return tokens


def _after(mark: str, tokens: tuple[ServedToken, ...]) -> tuple[ServedToken, ...]:
    first, *others = tokens
    return (replace(first, text=mark + first.text), *others)


_PIECES = 2**40
"""The first number of a piece of a reply; every id of a server is below."""

_REMEMBERED = 4096
"""Texts and runs of tokens whose conversions are kept."""

UNKNOWN = -1
"""The id of an end-of-text token that the server does not tell."""


class ServedTokens:
    """A `Tokenizer` for a model on a server that cuts texts, as ours, vLLM and llama.cpp's do."""

    special: Mapping[str, int]

    def __init__(self, client: JSONClient) -> None:
        """Raises ModelError for a server that does not cut texts."""
        self._client = client
        self._pieces = TextPieces()
        self.encode_once = lru_cache(_REMEMBERED)(self._encode)
        self._join = lru_cache(_REMEMBERED)(self._joined)
        self._encode("a")
        information = self._information()
        end, size = information.get("eos_token_id"), information.get("vocab_size")
        if not isinstance(end, int) and isinstance(information.get("eos_token"), str):
            (end, *_) = self.encode(information["eos_token"])  # vLLM cuts its name so
        self.end_id = end if isinstance(end, int) else UNKNOWN
        self.size = size if isinstance(size, int) else _PIECES
        special = information.get("special_tokens")
        self.special = special if isinstance(special, dict) else {}

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The server's tokens of a text. Raises ModelError."""
        return list(self.encode_once(text)) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, of the server and of replies. Raises ModelError."""
        return "".join(
            self._join(tuple(run))
            if served
            else "".join(self._pieces.piece(id - _PIECES) for id in run)
            for served, run in groupby(ids, key=self.is_served)
        )

    def is_served(self, id: int) -> bool:
        """Whether a token is the server's, which it can be sent as a number."""
        return 0 <= id < _PIECES

    def token(self, piece: str) -> int:
        """The number of a piece of a reply."""
        return _PIECES + self._pieces.token(piece)

    def piece(self, id: int) -> str:
        """A token's own text."""
        return self.decode([id])

    def stream(self) -> "_Stream":
        return _Stream(self)

    def _encode(self, text: str) -> tuple[int, ...]:
        # llama.cpp's own server calls the text "content".
        body: dict[str, object] = {"prompt": text, "content": text, "add_special_tokens": False}
        body["parse_special"] = False  # in ours and llama.cpp's
        ids = self._client.post("/tokenize", body).get("tokens")
        if not isinstance(ids, list) or not all(isinstance(id, int) for id in ids):
            raise ModelError("the server does not cut texts into tokens")
        return tuple(ids)

    def _joined(self, ids: tuple[int, ...]) -> str:
        answer = self._client.post("/detokenize", {"tokens": [id for id in ids if id >= 0]})
        text = answer.get("prompt", answer.get("content"))
        if not isinstance(text, str):
            raise ModelError("the server does not join tokens to a text")
        return text

    def _information(self) -> Mapping[str, Any]:
        """What the server tells of its vocabulary; vLLM does so where it was started with
        --enable-tokenizer-info-endpoint.
        """
        try:
            return self._client.get("/tokenizer_info")
        except ModelError:
            return {}


class _Stream:
    """Tokens to text, one at a time."""

    def __init__(self, tokens: ServedTokens) -> None:
        self._tokens, self._ids, self._text = tokens, list[int](), ""

    def push(self, id: int) -> str:
        self._ids.append(id)
        whole = self._tokens.decode(self._ids)
        if whole.endswith("\ufffd"):  # a part of a character
            return ""
        new, self._text = whole[len(self._text) :], whole
        return new

    def flush(self) -> str:
        return self._tokens.decode(self._ids)[len(self._text) :]


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


def ending_with_constraint(name: str, request: Request) -> Request:
    """A request that ends where its constraint does. Raises ConstraintError for a pattern or a
    grammar, which servers do not take."""
    constraint = request.constraint
    if constraint is None or constraint.is_optional:
        return request
    if constraint.kind != "schema":
        raise ConstraintError(
            f"{name}: servers take a JSON schema, but no {constraint.kind}; that needs a model on "
            "this machine"
        )
    return replace(request, stop=(), sampling=replace(request.sampling, max_repeats=0))


def response_format(constraint: Constraint | None) -> Body:
    """The field of OpenAI's protocol for a schema."""
    if constraint is None or constraint.is_optional:
        return {}
    schema = {"name": "answer", "schema": parse_json(constraint.source), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def checked(finished: Finished, text: str, constraint: Constraint) -> Finished:
    """The end of a reply, with whether it fits: not every server heeds the schema."""
    why_not = misfit(text.rpartition(THINKING[1])[2].strip(), constraint.source)
    if finished.reason != "stop":
        why_not = why_not or f"it ended with {finished.reason!r}"
    message = f"the reply does not fit its schema: {why_not}" if why_not else ""
    return replace(finished, valid=not why_not, message=finished.message or message)
