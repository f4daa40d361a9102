"""A model on a server, for models that outgrow this machine.

The server is any that speaks OpenAI's protocol of completions: a text goes in as it stands,
and its continuation comes out as server-sent events. vLLM, llama.cpp's server,
llama-cpp-python's and Ollama's do.

Keep: the key goes to the server's own address and nowhere else, into no message and no name;
and text that has arrived is kept, whatever happens to the connection.
"""

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chatapp.engine.checkpoint import ModelError, first_line
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.model import ContextOverflow, Sampling, Tokenizer
from chatapp.engine.servers import SERVERS, Server
from chatapp.engine.stopping import StopFilter
from chatapp.foreign import without_surrogates

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    import numpy as np
    from numpy.typing import NDArray

# Seconds. A long prompt in a long queue may take minutes to its first token.
_CONNECT, _ANSWER, _SILENCE = 5.0, 10.0, 300.0

_LOOK = 0.05
"""Seconds between two looks at the cancel event while nothing arrives."""

_MOST = 2**20
"""Bytes of an answer that is no stream: a list of models, or what went wrong."""

_ASSUMED_CONTEXT = 2048
"""Where neither the server nor the settings tell: what even old and small models have."""

# Beyond the protocol, but what the servers named above draw by when they are not told
# otherwise. The penalty has two names.
_EXTENSIONS = {
    "top_k": ("top_k",),
    "min_p": ("min_p",),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
}

_NO_WAY = (ValueError, ImportError, OSError)
"""What httpx2 passes on of a host that cannot be named, of a proxy, and of certificates."""

_DONE = "[DONE]"
_REASONS = ("", "stop", "length", _DONE)


class TextPieces:
    """A `Tokenizer` for models whose own is out of reach: pieces of text, numbered as they come.

    A piece is up to five letters, or one other character, with the space before it. Their
    number is an estimate of that of tokens: for English prose it is 2 to 8 % above GPT-2's,
    for other scripts it may be too low. What a server sends as one token becomes one piece,
    so that replies are counted as they are.
    """

    end_id = 0

    _PIECE = re.compile(r" ?(?:[A-Za-z]{1,5}|.)", re.DOTALL)

    def __init__(self) -> None:
        # The end-of-text token stands for no text: what it is called there is not known.
        self._pieces = [""]
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()
        self.size = 1

    def encode(self, text: str) -> list[int]:
        return [self.token(piece) for piece in self._PIECE.findall(text)]

    def token(self, piece: str) -> int:
        """The id of a piece, whether or not `encode` would ever cut it so."""
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


@dataclass(frozen=True, slots=True)
class Served:
    """A model that a server has. context: its window in tokens; 0 when that is not told."""

    name: str
    context: int = 0


def served_models(server: Server) -> list[Served]:
    """What a server has, in its own order. Raises ModelError in words."""
    document = _get(server, f"{server.url}/models")
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise _nonsense(server, "its list of models is none")
    found = []
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("id"), str):
            meta = row.get("meta")
            told = (row.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else 0)
            found.append(Served(row["id"], next(filter(None, map(_count, told)), 0)))
    return found


class RemoteModel:
    """A `LanguageModel` on a server.

    server: where it is, with the model's name there. remark: what to know before it is used,
        in whole sentences; often empty.
    """

    folder: "Path | None" = None

    def __init__(self, server: Server, *, name: str, context: int, remark: str = "") -> None:
        self.name = name
        self.context = context
        self._text = TextPieces()
        self.tokenizer: Tokenizer = self._text
        self.remark = remark
        self.server = server
        self._takes_extensions = True
        self._said: set[str] = set()

    @classmethod
    def load(cls, server: Server, *, name: str) -> "RemoteModel":
        """Ask the server for its model. Raises ModelError.

        name: what the user called it.
        """
        remarks = []
        if server.key and server.url.startswith("http://") and not server.is_here:
            remarks.append(
                f"The key travels to {urlsplit(server.url).hostname} unencrypted; use https."
            )
        models = {model.name: model for model in served_models(server)}
        names = ", ".join(models)
        if not models:
            raise ModelError(f"{server.url}: the server has no model")
        if server.model and server.model not in models:
            raise ModelError(f"{server.url}: there is no model {server.model!r}; it has {names}")
        if not server.model and len(models) > 1:
            raise ModelError(
                f"{server.url}: the server has several models; put one of them after a #: {names}"
            )
        served = models[server.model or names]
        context = server.context or served.context or _context_of_llama_cpp(server)
        if not context:
            context = _ASSUMED_CONTEXT
            remarks.append(
                f"The server does not tell how long its context is; {context:,} tokens are "
                f"assumed unless {SERVERS} says otherwise."
            )
        chosen = Server(server.url, served.name, server.key, context)
        full = name if "#" in name else f"{name}#{served.name}"
        return cls(chosen, name=full, context=context, remark=" ".join(remarks))

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """See `LanguageModel.generate`. Without `top`, log-probabilities are not asked for."""
        prompt = list(ids)
        if not prompt:
            raise ValueError("there are no tokens to continue; expected at least one")
        if len(prompt) >= self.context:
            raise ContextOverflow(
                f"the prompt has about {len(prompt)} tokens; the model's window of "
                f"{self.context} has room for {self.context - 1} and a reply"
            )
        return self._run(prompt, sampling, StopFilter(stop), stop, cancel or threading.Event(), top)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Raises ModelError: the protocol gives no probabilities of a given text."""
        raise ModelError(
            f"{self.name}: a server does not give the probabilities of a given text; scoring "
            "needs a model on this machine"
        )

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """Raises ModelError: the protocol gives no hidden states."""
        raise ModelError(
            f"{self.name}: a server does not show a model's hidden states; they need a model on "
            "this machine"
        )

    def _run(
        self,
        prompt: list[int],
        sampling: Sampling,
        stops: StopFilter,
        stop: Sequence[str],
        cancel: threading.Event,
        top: int,
    ) -> Iterator[Event]:
        started = time.perf_counter()
        time_to_first_token, count = 0.0, 0
        usage = _Usage(len(prompt))
        room = self.context - len(prompt)
        most = min(sampling.max_tokens, room)
        full: FinishReason = "length" if sampling.max_tokens <= room else "context"
        reason: FinishReason | None = None
        message = ""
        events = _Events(self._stream(self._body(prompt, sampling, stop, most, top)))
        try:
            while (data := events.next(cancel)) is not None:
                chunk = self._chunk(data)
                usage = chunk.usage or usage
                if chunk.pieces and count == most:  # more than it was asked for
                    break
                for text, logprob, others in chunk.pieces:
                    time_to_first_token = time_to_first_token or time.perf_counter() - started
                    count += 1
                    id = self._text.token(text)
                    yield Token(id, stops.push(text), text, logprob, others)
                    if stops.hit or count == most:
                        break
                if stops.hit:
                    break
                if chunk.reason not in _REASONS:
                    raise ModelError(f"the server ended the reply: {chunk.reason[:100]}")
                if chunk.reason == "stop":
                    reason = "stop"
                elif chunk.reason == "length" or count == most:
                    reason = reason or full
                elif chunk.reason:
                    reason = reason or "stop"
                if chunk.reason == _DONE:
                    break
        except _Cancelled:
            reason = "cancelled"
        except ModelError as error:
            message = "" if reason else str(error)  # after the end it costs nothing
        finally:
            events.close()
        rest = stops.flush()
        if stops.hit:
            reason = "stop"
        if reason is None:
            reason, message = "error", message or "the server broke off the reply"
        yield Finished(
            reason,
            text=rest,
            prompt_tokens=usage.prompt,
            reused_tokens=usage.reused,
            reply_tokens=usage.reply or count,
            time_to_first_token=time_to_first_token,
            seconds=time.perf_counter() - started,
            message=message or self._options_in_words(sampling),
        )

    def _body(
        self, prompt: list[int], sampling: Sampling, stop: Sequence[str], most: int, top: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "prompt": without_surrogates(self._text.decode(prompt)),
            "max_tokens": most,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if stop:
            body["stop"] = list(stop)[:4]  # the protocol's limit; the rest is looked for here
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if top:
            body["logprobs"] = top
        if self._takes_extensions:
            for option, names in _EXTENSIONS.items():
                body |= dict.fromkeys(names, getattr(sampling, option))
        return body

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[str]:
        """The data of the server's events. Raises ModelError in words."""
        import httpx2

        try:
            async with (
                httpx2.AsyncClient(**_options(self.server, _SILENCE)) as client,
                self._accepted(client, body) as response,
            ):
                async for event in httpx2.EventSource(response):
                    yield event.data
        except httpx2.SSEError:
            raise _nonsense(self.server, "what it sends is no stream of events") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
            raise _unreachable(self.server, error) from None

    @asynccontextmanager
    async def _accepted(
        self, client: "httpx2.AsyncClient", body: dict[str, Any]
    ) -> "AsyncIterator[httpx2.Response]":
        """The answer to a request, asked again in the protocol's bare words if need be."""
        url = f"{self.server.url}/completions"
        while True:
            async with client.stream("POST", url, json=body) as response:
                if response.status_code == 200:
                    yield response
                    return
                text = await _beginning(response)
                extensions = [name for names in _EXTENSIONS.values() for name in names]
                named = [name for name in extensions if name in body and name in text]
                if response.status_code not in (400, 422) or not named:
                    raise _refusal(self.server, response, text)
            self._takes_extensions = False
            body = {name: value for name, value in body.items() if name not in extensions}

    def _chunk(self, data: str) -> "_Chunk":
        """What an event says. Raises ModelError."""
        if data.strip() == _DONE:
            return _Chunk([], _DONE, None)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            raise _nonsense(self.server, "an event of it is not JSON") from None
        if not isinstance(document, dict):
            raise _nonsense(self.server, "an event of it is no JSON object")
        if document.get("error"):
            raise ModelError(f"the server failed: {_reason_of(self.server, document)}")
        choices = document.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        text = choice.get("text") if isinstance(choice, dict) else 0
        if text is not None and not isinstance(text, str):
            raise _nonsense(self.server, "an event of it has no text")
        reason = choice.get("finish_reason")
        usage = document.get("usage")
        return _Chunk(
            self._pieces(text, choice.get("logprobs")) if text else [],
            reason if isinstance(reason, str) else "",
            _Usage.read(usage) if isinstance(usage, dict) else None,
        )

    def _pieces(self, text: str, logprobs: object) -> "list[_Piece]":
        """The tokens of a text; the whole of it as one where they are not told."""
        rows = _rows(logprobs) if isinstance(logprobs, dict) else []
        if len(rows) > 1 and "".join(token for token, _, _ in rows) != text:
            # Its parts do not lie at the borders of tokens; all of it is as likely as they are.
            return [(text, math.fsum(value for _, value, _ in rows), ())]
        if len(rows) < 2:
            rows = [(text, *(rows[0][1:] if rows else (math.nan, {})))]
        return [
            (
                token,
                value,
                tuple(
                    Alternative(self._text.token(other), other, chance)
                    for other, chance in sorted(others.items(), key=lambda each: -each[1])
                ),
            )
            for token, value, others in rows
        ]

    def _options_in_words(self, sampling: Sampling) -> str:
        """What of the options the server may not have heeded, said once each."""
        usual = Sampling()
        changed = [
            name
            for name in (*_EXTENSIONS, "no_repeat_ngram")
            if getattr(sampling, name) != getattr(usual, name) and name not in self._said
        ]
        self._said.update(changed)
        unheeded = [
            name for name in changed if name not in _EXTENSIONS or not self._takes_extensions
        ]
        uncertain = [name for name in changed if name not in unheeded]
        sentences = []
        if unheeded:
            sentences.append(f"The server cannot be asked for {' and '.join(unheeded)}.")
        if uncertain:
            sentences.append(
                f"The server was asked for {' and '.join(uncertain)}, but not every server heeds "
                "what the protocol does not have."
            )
        return " ".join(sentences)


_Piece = tuple[str, float, tuple[Alternative, ...]]
"""A token's text, its log-probability (nan when not told), and the alternatives to it."""


@dataclass(frozen=True, slots=True)
class _Usage:
    """Tokens as the server counts them; reply: 0 when it does not."""

    prompt: int
    reply: int = 0
    reused: int = 0

    @classmethod
    def read(cls, usage: dict[str, Any]) -> "_Usage | None":
        prompt = _count(usage.get("prompt_tokens"))
        details = usage.get("prompt_tokens_details")
        reused = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        return cls(prompt, _count(usage.get("completion_tokens")), reused) if prompt else None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """reason: the server's own word for the reply's end, `_DONE` after its last event."""

    pieces: list[_Piece]
    reason: str
    usage: _Usage | None


class _Cancelled(Exception):
    """The caller's cancel event was set while the server was waited for."""


class _Events:
    """The items of an asynchronous stream, one at a time, for a caller that is not.

    Its event loop runs only while an item is waited for, so that there is no thread, and
    cancelling closes the connection at once, whatever it is waiting for.
    """

    def __init__(self, stream: AsyncGenerator[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._items: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self._task = self._loop.create_task(self._pump(stream))

    def next(self, cancel: threading.Event) -> str | None:
        """The next item; None after the last. Raises _Cancelled and what the stream raises."""
        return self._loop.run_until_complete(self._next(cancel))

    def close(self) -> None:
        """End the stream, and its connection with it."""
        self._task.cancel()
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        self._loop.close()

    async def _pump(self, stream: AsyncGenerator[str]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    self._items.put_nowait(item)
            self._items.put_nowait(None)
        except Exception as error:
            self._items.put_nowait(error)

    async def _next(self, cancel: threading.Event) -> str | None:
        while not cancel.is_set():
            with suppress(TimeoutError):
                item = await asyncio.wait_for(self._items.get(), _LOOK)
                if isinstance(item, Exception):
                    raise item
                return item
        raise _Cancelled


def _options(server: Server, silence: float) -> dict[str, Any]:
    """How to ask this server. silence: how many seconds it may say nothing."""
    import httpx2

    key = server.secret()
    return {
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx2.Timeout(silence, connect=_CONNECT),
        "follow_redirects": False,  # the key is for this address alone
        "trust_env": not server.is_here,  # a proxy has no way to what runs here
        "verify": server.url.startswith("https:"),  # certificates take a while to be read
    }


def _get(server: Server, url: str) -> Any:
    """A JSON document of the server. Raises ModelError in words."""
    import httpx2

    try:
        with (
            httpx2.Client(**_options(server, _ANSWER)) as client,
            client.stream("GET", url) as response,
        ):
            body = b""
            for part in response.iter_bytes():
                body += part
                if len(body) > _MOST:
                    raise _nonsense(server, "its answer has no end")
    except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
        raise _unreachable(server, error) from None
    if response.status_code != 200:
        raise _refusal(server, response, body.decode("utf-8", "replace"))
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _nonsense(server, "its list of models is not JSON") from None


def _context_of_llama_cpp(server: Server) -> int:
    """The window that llama.cpp's own server tells in a place of its own; 0 elsewhere."""
    try:
        document = _get(server, f"{server.url.removesuffix('/v1')}/props")
    except ModelError:
        return 0
    settings = document.get("default_generation_settings") if isinstance(document, dict) else None
    return _count(settings.get("n_ctx")) if isinstance(settings, dict) else 0


async def _beginning(response: "httpx2.Response") -> str:
    """The body of an answer that is no stream, as far as anybody needs it."""
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MOST:
            break
    return body.decode("utf-8", "replace")


def _refusal(server: Server, response: "httpx2.Response", text: str) -> ModelError:
    """Why the server does not answer, in words. text: its body."""
    status = response.status_code
    if status in (401, 403):
        if server.key:
            return ModelError(f"{server.url}: the server refuses the key in {server.key}")
        return ModelError(
            f"{server.url}: the server wants a key; name the environment variable that holds it "
            f"in {SERVERS}"
        )
    if 300 <= status < 400:
        target = response.headers.get("location", "elsewhere")
        return ModelError(
            f"{server.url}: the server sends one on to {target[:200]}; if that is right, give "
            "that address"
        )
    try:
        reason = _reason_of(server, json.loads(text))
    except (ValueError, RecursionError):
        reason = ""
    if status == 404 and not reason:
        return ModelError(
            f"{server.url}: there is a server, but nothing of this name on it; expected an "
            "address like http://localhost:8000/v1"
        )
    return ModelError(f"{server.url}: the server refuses (status {status}): {reason or 'no word'}")


def _reason_of(server: Server, document: object) -> str:
    """What a server's error says; the protocol and its implementations put it differently.

    A key that it repeats is shown as its variable's name.
    """
    while isinstance(document, dict):
        document = next(
            (document[key] for key in ("error", "message", "detail") if document.get(key)), ""
        )
    words = " ".join(str(document).split())
    return (words.replace(server.secret(), server.key) if server.key else words)[:300]


def _unreachable(server: Server, error: Exception) -> ModelError:
    """What is wrong with the way to a server, in words."""
    import httpx2

    if isinstance(error, httpx2.ConnectTimeout):
        return ModelError(f"{server.url}: the server does not answer within {_CONNECT:.0f} seconds")
    if isinstance(error, (httpx2.ConnectError, *_NO_WAY)):
        return ModelError(f"{server.url}: the server cannot be reached: {first_line(error)}")
    if isinstance(error, httpx2.TimeoutException):
        return ModelError(f"{server.url}: the server has fallen silent")
    if isinstance(error, httpx2.DecodingError):
        return _nonsense(server, first_line(error))
    return ModelError(f"{server.url}: the server broke off the connection: {first_line(error)}")


def _nonsense(server: Server, what: str) -> ModelError:
    return ModelError(f"{server.url}: this is no server of completions: {what}")


def _count(value: object) -> int:
    """A number of tokens as a server tells it; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _rows(logprobs: dict[str, Any]) -> list[tuple[str, float, dict[str, float]]]:
    """Token, log-probability and the likeliest tokens with theirs, in either of the two forms.

    The protocol has three parallel lists; llama.cpp's server has one of objects.
    """
    content = logprobs.get("content")
    if isinstance(content, list):
        return [
            (
                str(row.get("token")),
                _number(row.get("logprob")),
                {
                    str(other.get("token")): _number(other.get("logprob"))
                    for other in row.get("top_logprobs") or []
                    if isinstance(other, dict)
                },
            )
            for row in content
            if isinstance(row, dict)
        ]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return []
    tops = logprobs.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(tokens):
        tops = [None] * len(tokens)
    return [
        (
            str(token),
            _number(value),
            {str(other): _number(chance) for other, chance in top.items()}
            if isinstance(top, dict)
            else {},
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    ]
