"""What a server sends and understands: events of streams, tokens, scores, and schemas.

An event is a JSON object {"choices": [{"text", "finish_reason", "logprobs"}], "usage", "error"}, of
which all may be missing or null; the last event is the word [DONE]. In a chat, "text" is "delta":
{"content", "reasoning_content", "tool_calls"}, where some servers write "reasoning".

Invariants: an event is either understood or refused with a sentence. Tokens of replies arrive as
text without their ids, get numbers that no server uses, and are sent back as text. Scores are those
of a prompt's own tokens, which the server repeats.
"""

import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from chatapp.engine.backends.remote.http import (
    SILENCE_SECONDS,
    ArrivingReply,
    Client,
    RefusedError,
    Server,
    json_object,
    nonsense,
    reason_of,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.events import CALLING, THINKING, Alternative, Finished, FinishReason, Token
from chatapp.engine.model import Request
from chatapp.engine.stopping import RepetitionFilter, StopFilter

DONE = "[DONE]"
"""The data of a stream's last event."""


class ServedPiece(NamedTuple):
    """A token's text, its log-probability (nan if unknown), and those of the most likely
    alternatives, best first.
    """

    text: str
    logprob: float = math.nan
    alternatives: tuple[tuple[str, float], ...] = ()


Pieces = tuple[ServedPiece, ...]


class Chunk(NamedTuple):
    """The content of an event. reason: the server's finish reason, `DONE` after its last event.
    usage: the server's counts of tokens in the prompt, in the reply (0 if unknown), and reused.
    """

    pieces: Pieces = ()
    reason: str = ""
    usage: tuple[int, int, int] | None = None

    def __bool__(self) -> bool:
        """Whether it continues the reply with more than spaces."""
        return any(piece.text.strip() for piece in self.pieces)


class ServedReply(ArrivingReply):
    """A reply as it arrives. Thoughts and calls of tools that the server separates stand between
    their marks in its text.

    most: its most tokens.
    """

    def __init__(
        self,
        request: Request,
        server: Server,
        tokenizer: "RemoteTokenizer",
        room: int,
        prompt: Callable[[], str],
        count: int,
    ) -> None:
        """room: tokens that the window has for it. prompt: its text. count: about its tokens,
        forced ones included.
        """
        self.most = min(request.sampling.max_tokens, room)
        self._at_most: FinishReason = "length" if request.sampling.max_tokens <= room else "context"
        self._server, self._tokenizer, self._forced = server, tokenizer, request.forced
        self._stops = StopFilter(request.stop)
        self._repeats = RepetitionFilter(prompt, request.sampling.max_repeats)
        self._usage = (count, 0, 0)
        self._tokens = 0
        self._is_thinking = self._has_called = self._has_arguments = False
        self._call: int | None = None
        """The number of the call that has not ended."""

    def begin(self) -> Iterator[Token]:
        """The forced tokens. One that ends a reply ends it here."""
        for id in self._forced:
            if id == self._tokenizer.end_id:
                self.reason = "stop"
                return
            text = self._tokenizer.decode([id])
            yield Token(id, text, text, math.nan)

    def take(self, item: Chunk) -> Iterator[Token]:
        """The wanted tokens of a chunk. Raises ModelError for an unknown finish reason."""
        self._usage = item.usage or self._usage
        if item.pieces and self._tokens == self.most:  # more than the request allowed
            self.over = True
            return
        for text, logprob, alternatives in item.pieces[: self.most - self._tokens]:
            self._tokens += 1
            id = self._tokenizer.number(text)
            others = tuple(
                Alternative(self._tokenizer.number(other), other, value)
                for other, value in alternatives
            )
            visible = self._repeats.push(id, self._stops.push(text))
            yield Token(id, visible, text, logprob, others)
            if self._repeats.hit:
                self.reason = "repetition"
            if self._stops.hit or self._repeats.hit:
                self.over = True
                return
        self._take_reason(item.reason)

    def _take_reason(self, word: str) -> None:
        """word: the server's finish reason, "" for none."""
        ends = ("stop", "tool_calls") if self._has_called else ("stop",)
        if word not in ("", *ends, "length", DONE):
            raise ModelError(f"the server ended the reply: {word[:100]}")
        if word in ends:
            self.reason = "stop"
        elif word == "length" or self._tokens == self.most:
            self.reason = self.reason or self._at_most
        elif word == DONE:
            self.reason = self.reason or "stop"
        self.over = word == DONE

    def finished(self, failure: str) -> Finished:
        """See `ArrivingReply.finished`."""
        rest = self._repeats.flush(self._stops.flush())
        if self._stops.hit:
            self.reason = "stop"
        # Errors after the end do not matter.
        message = "" if self.reason else failure or "the server broke off the reply"
        prompt, reply, reused = self._usage
        forced = sum(id != self._tokenizer.end_id for id in self._forced)
        return Finished(
            self.reason or "error",
            text=rest,
            prompt_tokens=prompt - len(self._forced),
            reused_tokens=reused,
            reply_tokens=(reply or self._tokens) + forced,
            message=message,
        )

    def read(self, data: str) -> Chunk:
        """Parse an event. Raises ModelError."""
        if data.strip() == DONE:
            return Chunk(self._marked((), _pieces(self._closed(), None)), DONE)
        document = json_object(self._server, data, "one of its events")
        if document.get("error"):
            raise ModelError(f"the server failed: {reason_of(self._server, document)}")
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        try:
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            if not isinstance(text, str) or not isinstance(thought, str):
                raise TypeError
        except (TypeError, AttributeError):
            raise nonsense(self._server, "one of its events has no text") from None
        reason = choice.get("finish_reason")
        calls = self._calls(delta.get("tool_calls")) + (self._closed() if reason else "")
        # If one event has two texts, it is unknown which one the probabilities belong to.
        logprobs = None if text and thought else choice.get("logprobs")
        reply = (*_pieces(text, logprobs), *_pieces(calls, None))
        return Chunk(
            self._marked(_pieces(thought, logprobs), reply),
            reason if isinstance(reason, str) else "",
            _usage(document.get("usage")),
        )

    def _marked(self, thought: Pieces, reply: Pieces) -> Pieces:
        """All tokens of an event. A mark belongs to the text of the token after it."""
        begin, end = THINKING
        if thought and not self._is_thinking:
            thought = (thought[0]._replace(text=f"{begin}\n{thought[0].text}"), *thought[1:])
        self._is_thinking = self._is_thinking or bool(thought)
        if reply and self._is_thinking:
            reply = (reply[0]._replace(text=f"\n{end}\n\n{reply[0].text}"), *reply[1:])
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
                self._call, self._has_arguments, self._has_called = number, False, True
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


def token_count(value: object) -> int:
    """A server's number of tokens; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _usage(usage: object) -> tuple[int, int, int] | None:
    prompt = token_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else 0
    if not isinstance(usage, dict) or not prompt:
        return None
    details = usage.get("prompt_tokens_details")
    reused = token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return prompt, token_count(usage.get("completion_tokens")), reused


def _pieces(text: str, logprobs: object) -> Pieces:
    """The tokens of a text, or the whole text as one if the server does not separate them."""
    pieces = _with_logprobs(logprobs) if text and isinstance(logprobs, dict) else []
    if not text or (len(pieces) > 1 and "".join(piece.text for piece in pieces) == text):
        return tuple(pieces)
    # If parts do not end at token boundaries, the whole text is as likely as they are.
    logprob = math.fsum(piece.logprob for piece in pieces) if pieces else math.nan
    return (ServedPiece(text, logprob, pieces[0].alternatives if len(pieces) == 1 else ()),)


def _with_logprobs(logprobs: dict[str, Any]) -> list[ServedPiece]:
    """The tokens with their log-probabilities; none where these are in no known form.

    The protocol has three parallel lists for completions, one list of objects for chats.
    """
    try:
        if "content" in logprobs:
            return [
                _piece(row["token"], row["logprob"], _alternatives(row.get("top_logprobs")))
                for row in logprobs["content"]
            ]
        texts = logprobs["tokens"]
        tops = logprobs.get("top_logprobs") or [None] * len(texts)
        return [
            _piece(text, value, (top or {}).items())
            for text, value, top in zip(texts, logprobs["token_logprobs"], tops, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return []


def _alternatives(rows: object) -> list[tuple[str, Any]]:
    return [(row["token"], row["logprob"]) for row in rows] if isinstance(rows, list) else []


def _piece(text: str, logprob: Any, alternatives: Iterable[tuple[str, Any]]) -> ServedPiece:
    best_first = sorted(dict(alternatives).items(), key=lambda item: -item[1])
    value = math.nan if logprob is None else float(logprob)
    return ServedPiece(str(text), value, tuple((str(other), float(at)) for other, at in best_first))


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
    names_end = True

    _PIECE = re.compile(r" ?(?:[A-Za-z]{1,5}|.)", re.DOTALL)

    def __init__(self, client: Client | None = None) -> None:
        """client: requests to the server; without, texts are cut here."""
        self._client = client
        self._pieces = {"": UNKNOWN}
        self._texts = [""]
        self._lock = threading.Lock()
        self._cut = lru_cache(_REMEMBERED)(self._cut_by_server)
        self._join = lru_cache(_REMEMBERED)(self._joined_by_server)
        self.is_served, information = client is not None, dict[str, Any]()
        if client is not None:
            try:
                self._cut("a")
            except ModelError:
                self.is_served = False
            else:  # vLLM tells it where it was started with --enable-tokenizer-info-endpoint
                with suppress(ModelError):
                    information = client.get("/tokenizer_info")
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
