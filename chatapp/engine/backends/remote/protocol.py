"""What a server sends and understands: events of streams, tokens, scores, and schemas.

An event is a JSON object {"choices": [{"text", "finish_reason", "logprobs"}], "usage", "error"}, of
which all may be missing or null; the last event is the word [DONE]. In a chat, "text" is "delta":
{"content", "reasoning_content", "tool_calls"}, where some servers write "reasoning".

Invariants: an event is either understood or refused with a sentence. Tokens of replies arrive as
text without their ids, get numbers that no server uses, and are sent back as text. Scores are those
of a prompt's own tokens, which the server repeats. A schema is sent with the request, and every
reply is checked here.
"""

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.engine.backends.remote.http import (
    SILENCE_SECONDS,
    Body,
    Client,
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
class TokenCounts:
    """The server's token counts; reply: 0 if unknown."""

    prompt: int
    reply: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """The content of an event. reason: the server's finish reason, `DONE` after its last event."""

    tokens: tuple[ServedToken, ...] = ()
    reason: str = ""
    usage: TokenCounts | None = None

    def __bool__(self) -> bool:
        """Whether it continues the reply with more than spaces."""
        return any(token.text.strip() for token in self.tokens)


class EventReader:
    """Reads the events of one reply. Thoughts and calls of tools that the server separates stand
    between their marks in its text. has_called: whether it has called a tool.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_thinking = False
        self._call: int | None = None
        """The number of the call that has not ended."""
        self._has_arguments = False
        self.has_called = False

    def read(self, data: str) -> Chunk:
        """Parse an event. Raises ModelError."""
        if data.strip() == DONE:
            return Chunk(self._marked((), _tokens(self._closed(), None)), DONE)
        try:
            document = parse_json(data)
        except ValueError:
            raise nonsense(self._server, "one of its events is not JSON") from None
        if not isinstance(document, dict):
            raise nonsense(self._server, "one of its events is not a JSON object")
        if document.get("error"):
            raise ModelError(f"the server failed: {reason_of(self._server, document)}")
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        try:
            text, thought = _texts(choice)
        except (TypeError, AttributeError):
            raise nonsense(self._server, "one of its events has no text") from None
        reason = choice.get("finish_reason")
        calls = self._calls((choice.get("delta") or {}).get("tool_calls"))
        if reason:
            calls += self._closed()
        # If one event has two texts, it is unknown which one the probabilities belong to.
        logprobs = None if text and thought else choice.get("logprobs")
        reply = (*_tokens(text, logprobs), *_tokens(calls, None))
        return Chunk(
            self._marked(_tokens(thought, logprobs), reply),
            reason if isinstance(reason, str) else "",
            _usage(document.get("usage")),
        )

    def _marked(
        self, thought: tuple[ServedToken, ...], reply: tuple[ServedToken, ...]
    ) -> tuple[ServedToken, ...]:
        """All tokens of an event. A mark belongs to the text of the token after it."""
        begin, end = THINKING
        if thought and not self._is_thinking:
            thought = _after(f"{begin}\n", thought)
            self._is_thinking = True
        if reply and self._is_thinking:
            reply = _after(f"\n{end}\n\n", reply)
            self._is_thinking = False
        return thought + reply

    def _calls(self, rows: object) -> str:
        """The text of parts of calls: the first part of each has its name."""
        text = ""
        for place, row in enumerate(rows if isinstance(rows, list) else ()):
            function = row.get("function") if isinstance(row, dict) else None
            if not isinstance(function, dict):
                continue
            number = row.get("index")
            number = number if isinstance(number, int) else place
            name, arguments = function.get("name"), function.get("arguments")
            if number != self._call:
                text += self._closed()
                self._call, self._has_arguments, self.has_called = number, False, True
                name = json.dumps(name if isinstance(name, str) else "")
                text += f'{CALLING[0]}{{"name": {name}, "arguments": '
            if isinstance(arguments, dict):  # as from Ollama
                arguments = json.dumps(arguments)
            if isinstance(arguments, str):
                text += arguments
                self._has_arguments = self._has_arguments or bool(arguments.strip())
        return text

    def _closed(self) -> str:
        """The end of the call that has not ended, if there is one."""
        if self._call is None:
            return ""
        self._call = None
        return f"{'' if self._has_arguments else '{}'}}}{CALLING[1]}"


def _texts(choice: dict[str, Any]) -> tuple[str, str]:
    """The reply and the thought in an event. Raises TypeError or AttributeError for other types."""
    delta = choice.get("delta") or {}
    reply = choice.get("text") or delta.get("content") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    if not isinstance(reply, str) or not isinstance(thought, str):
        raise TypeError
    return reply, thought


def _after(mark: str, tokens: tuple[ServedToken, ...]) -> tuple[ServedToken, ...]:
    first, *others = tokens
    return (replace(first, text=mark + first.text), *others)


def token_count(value: object) -> int:
    """A server's number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _usage(usage: object) -> TokenCounts | None:
    prompt = token_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else 0
    if not isinstance(usage, dict) or not prompt:
        return None
    details = usage.get("prompt_tokens_details")
    reused = token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return TokenCounts(prompt, token_count(usage.get("completion_tokens")), reused)


def _tokens(text: str, logprobs: object) -> tuple[ServedToken, ...]:
    """The tokens of a text, or the whole text as one if the server does not separate them."""
    tokens = _with_logprobs(logprobs) if text and isinstance(logprobs, dict) else []
    if not text or (len(tokens) > 1 and "".join(token.text for token in tokens) == text):
        return tuple(tokens)
    if len(tokens) > 1:
        # Its parts do not end at token boundaries; the whole text is as likely as they are.
        return (ServedToken(text, math.fsum(token.logprob for token in tokens)),)
    return tuple(replace(token, text=text) for token in tokens or [ServedToken(text)])


def _with_logprobs(logprobs: dict[str, Any]) -> list[ServedToken]:
    """The tokens with their log-probabilities; none where these are in no known form.

    The protocol has three parallel lists for completions, one list of objects for chats.
    """
    try:
        if "content" in logprobs:
            return [
                _token(row["token"], row["logprob"], _alternatives(row.get("top_logprobs")))
                for row in logprobs["content"]
            ]
        texts = logprobs["tokens"]
        tops = logprobs.get("top_logprobs") or [None] * len(texts)
        return [
            _token(text, value, (top or {}).items())
            for text, value, top in zip(texts, logprobs["token_logprobs"], tops, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return []


def _alternatives(rows: object) -> list[tuple[str, Any]]:
    return [(row["token"], row["logprob"]) for row in rows] if isinstance(rows, list) else []


def _token(text: str, logprob: Any, alternatives: Iterable[tuple[str, Any]]) -> ServedToken:
    best_first = sorted(dict(alternatives).items(), key=lambda item: -item[1])
    value = math.nan if logprob is None else float(logprob)
    return ServedToken(str(text), value, tuple((str(other), float(at)) for other, at in best_first))


_REMEMBERED = 4096
"""Texts and runs of tokens whose conversions are kept."""

UNKNOWN = 2**40
"""The first number of a piece, whose text is empty; every id of a server is below. It stands for an
end-of-text token that the server does not tell.
"""


class RemoteTokenizer:
    """A `Tokenizer` for a model on a server. Ours, vLLM and llama.cpp's cut texts for it.

    Where the server does not, `is_served` is false, and texts are cut into pieces of up to five
    letters, or one other character, with the space before it. Their number estimates that of
    tokens: for English prose it is 2 to 8 % above GPT-2's, for other scripts it may be too low.
    Each token of a reply becomes one piece, so these are counted exactly. The concatenation of the
    pieces is the text.
    """

    special: Mapping[str, int]

    _PIECE = re.compile(r" ?(?:[A-Za-z]{1,5}|.)", re.DOTALL)

    def __init__(self, client: Client | None = None) -> None:
        """client: requests to the server; without, texts are cut here."""
        self._client = client
        self._pieces = {"": UNKNOWN}
        self._texts = [""]
        self._lock = threading.Lock()
        self._cut = lru_cache(_REMEMBERED)(self._cut_by_server)
        self._join = lru_cache(_REMEMBERED)(self._joined_by_server)
        self.is_served = client is not None and self._is_able()
        information = self._information(client) if client is not None and self.is_served else {}
        end, size = information.get("eos_token_id"), information.get("vocab_size")
        if not isinstance(end, int) and isinstance(information.get("eos_token"), str):
            (end, *_) = self.encode(information["eos_token"])  # vLLM cuts its name so
        self.end_id = end if isinstance(end, int) else UNKNOWN
        self.size = size if isinstance(size, int) else UNKNOWN
        special = information.get("special_tokens")
        self.special = special if isinstance(special, dict) else {}

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The tokens of a text. Raises ModelError."""
        if self.is_served and text:
            return list(self._cut(text))
        return [self.number(piece) for piece in self._PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, of the server and of replies. Raises ModelError."""
        return "".join(
            self._join(tuple(run)) if is_own else "".join(self._texts[id - UNKNOWN] for id in run)
            for is_own, run in groupby(ids, key=self.knows)
        )

    def knows(self, id: int) -> bool:
        """Whether a token is the server's own, which can be sent to it as a number."""
        return 0 <= id < UNKNOWN

    def number(self, piece: str) -> int:
        """The id of a piece, even if `encode` would never cut it so."""
        with self._lock:
            if piece not in self._pieces:
                self._pieces[piece] = UNKNOWN + len(self._texts)
                self._texts.append(piece)
            return self._pieces[piece]

    def piece(self, id: int) -> str:
        """A token's own text."""
        return self.decode([id])

    def stream(self) -> "_Stream":
        return _Stream(self)

    def _is_able(self) -> bool:
        try:
            self._cut("a")
        except ModelError:
            return False
        return True

    def _cut_by_server(self, text: str) -> tuple[int, ...]:
        assert self._client is not None
        # llama.cpp's own server calls the text "content".
        body: dict[str, object] = {"prompt": text, "content": text, "add_special_tokens": False}
        body["parse_special"] = False  # in ours and llama.cpp's
        ids = self._client.post("/tokenize", body).get("tokens")
        if not isinstance(ids, list) or not all(isinstance(id, int) for id in ids):
            raise ModelError("the server does not cut texts into tokens")
        return tuple(ids)

    def _joined_by_server(self, ids: tuple[int, ...]) -> str:
        assert self._client is not None
        answer = self._client.post("/detokenize", {"tokens": list(ids)})
        text = answer.get("prompt", answer.get("content"))
        if not isinstance(text, str):
            raise ModelError("the server does not join tokens to a text")
        return text

    @staticmethod
    def _information(client: Client) -> Mapping[str, Any]:
        """What the server tells of its vocabulary; vLLM does so where it was started with
        --enable-tokenizer-info-endpoint.
        """
        try:
            return client.get("/tokenizer_info")
        except ModelError:
            return {}


class _Stream:
    """Tokens to text, one at a time."""

    def __init__(self, tokens: RemoteTokenizer) -> None:
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
    client: Client, tokens: RemoteTokenizer, context: Sequence[int], continuation: Sequence[int]
) -> list[float]:
    """The log-probability of each token of a continuation, in nats.

    Without the server's tokens, each piece gets the same share of the sum. Raises ModelError with
    what the server lacks.
    """
    ids = [*context, *continuation]
    if tokens.is_served and UNKNOWN in ids:
        raise ModelError(
            f"{client.server.url}: the server does not tell its end-of-text token, which this "
            "measurement begins with; vLLM does with --enable-tokenizer-info-endpoint"
        )
    if all(map(tokens.knows, ids)):
        # vLLM and ours take 0 here; it leaves room for a prompt that fills the window.
        logprobs = _echoed(client, ids, most=0)["token_logprobs"]
        return _numbers(client, logprobs[len(context) : len(ids)], len(continuation))
    before, after = tokens.decode(context), tokens.decode(continuation)
    echoed = _echoed(client, before + after, most=1)
    begins, values = echoed["text_offset"], echoed["token_logprobs"]
    own = [
        logprob
        for logprob, begin, end in zip(values, begins, [*begins[1:], math.inf], strict=True)
        if begin < len(before + after) and end > len(before)
    ]
    total = math.fsum(_numbers(client, own, len(own)))
    return [total / len(continuation)] * len(continuation)


def _echoed(client: Client, prompt: str | list[int], most: int) -> dict[str, Any]:
    """The `logprobs` of a repeated prompt. Raises ModelError."""
    body = {"prompt": prompt, "max_tokens": most, "echo": True, "logprobs": 1, "temperature": 0}
    try:
        answer = client.post("completions", body, SILENCE_SECONDS)
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


def _numbers(client: Client, logprobs: list[Any], count: int) -> list[float]:
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
