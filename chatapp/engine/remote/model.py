"""A `LanguageModel` on a server.

The server is any that speaks OpenAI's protocol of completions: a text goes in as it stands,
and its continuation comes out as server-sent events. vLLM, llama.cpp's server,
llama-cpp-python's and Ollama's do.

Keep: text that has arrived is kept, whatever happens to the connection.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chatapp.engine.errors import ModelError
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.model import ContextOverflow, Sampling, Tokenizer
from chatapp.engine.remote.chunks import DONE, Chunk, ServedToken, Usage, read_chunk
from chatapp.engine.remote.http import BlockingStream, Body, Cancelled, post
from chatapp.engine.remote.listing import context_of_llama_cpp, served_models
from chatapp.engine.remote.pieces import TextPieces
from chatapp.engine.servers import SERVERS, Server
from chatapp.engine.stopping import StopFilter
from chatapp.foreign import without_surrogates
from chatapp.parameters import PARAMETERS

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_ASSUMED_CONTEXT = 2048
"""Where neither the server nor the settings give one: what even old and small models have."""

_EXTENSIONS = {
    field
    for parameter in PARAMETERS.values()
    if parameter.is_extension
    for field in parameter.request_fields
}
"""Beyond the protocol, but what servers draw by when they are not told otherwise."""

_MOST_STOPS = 4
"""The protocol's limit of stop strings; the rest is looked for here."""


class RemoteModel:
    """A `LanguageModel` on a server.

    server: where it is, with the model's name there. remark: what to know before it is used,
        in whole sentences; often empty.
    """

    folder: "Path | None" = None
    start: Sequence[int] = ()
    precision = ""

    def __init__(self, server: Server, *, name: str, context: int, remark: str = "") -> None:
        self.name = name
        self.context = context
        self._text = TextPieces()
        self.tokenizer: Tokenizer = self._text
        self.remark = remark
        self.server = server
        self._takes_extensions = True
        self._mentioned: set[str] = set()

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
        context = server.context or served.context or context_of_llama_cpp(server)
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
        return self._run(prompt, sampling, stop, StopFilter(stop), cancel or threading.Event(), top)

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
        stop: Sequence[str],
        stops: StopFilter,
        cancel: threading.Event,
        top: int,
    ) -> Iterator[Event]:
        room = self.context - len(prompt)
        reply = _Reply(
            self._text,
            stops,
            prompt_tokens=len(prompt),
            most=min(sampling.max_tokens, room),
            at_most="length" if sampling.max_tokens <= room else "context",
        )
        body = self._body(prompt, sampling, stop, reply.most, top)
        events = BlockingStream(post(self.server, "completions", body, self._without_extensions))
        failure = ""
        try:
            while not reply.over and (data := events.next(cancel)) is not None:
                yield from reply.take(read_chunk(self.server, data))
        except Cancelled:
            reply.reason = "cancelled"
        except ModelError as error:
            failure = str(error)
        finally:
            events.close()
        finished = reply.finished(failure)
        yield replace(finished, message=finished.message or self._options_in_words(sampling))

    def _body(
        self, prompt: list[int], sampling: Sampling, stop: Sequence[str], most: int, top: int
    ) -> Body:
        body: Body = {
            "model": self.server.model,
            "prompt": without_surrogates(self._text.decode(prompt)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        options = replace(sampling, max_tokens=most)
        for name, parameter in PARAMETERS.items():
            value = getattr(options, name)
            if value is not None and (self._takes_extensions or not parameter.is_extension):
                body |= dict.fromkeys(parameter.request_fields, value)
        if stop:
            body["stop"] = list(stop[:_MOST_STOPS])
        if top:
            body["logprobs"] = top
        return body

    def _without_extensions(self, body: Body, status: int, text: str) -> Body | None:
        """The same request in the protocol's bare words, when the server names what is beyond."""
        named = any(name in body and name in text for name in _EXTENSIONS)
        if status not in (400, 422) or not named:
            return None
        self._takes_extensions = False
        return {name: value for name, value in body.items() if name not in _EXTENSIONS}

    def _options_in_words(self, sampling: Sampling) -> str:
        """Which of the options the server may not have heeded, each mentioned once."""
        changed = [
            parameter
            for name, parameter in PARAMETERS.items()
            if (parameter.is_extension or not parameter.request_fields)
            and getattr(sampling, name) != parameter.default
            and name not in self._mentioned
        ]
        self._mentioned.update(parameter.name for parameter in changed)
        extends = self._takes_extensions
        uncertain = [each.name for each in changed if each.is_extension and extends]
        unheeded = [each.name for each in changed if each.name not in uncertain]
        sentences = []
        if unheeded:
            sentences.append(f"The server cannot be asked for {' and '.join(unheeded)}.")
        if uncertain:
            sentences.append(
                f"The server was asked for {' and '.join(uncertain)}, but not every server heeds "
                "what the protocol does not have."
            )
        return " ".join(sentences)


class _Reply:
    """A reply as far as it has come.

    most: the most tokens it may have. over: nothing more of it is wanted. reason: why it
    ended; None as long as that is not known.
    """

    def __init__(
        self,
        text: TextPieces,
        stops: StopFilter,
        *,
        prompt_tokens: int,
        most: int,
        at_most: FinishReason,
    ) -> None:
        """at_most: the reason to end when it has `most` tokens."""
        self.most = most
        self.over = False
        self.reason: FinishReason | None = None
        self._text = text
        self._stops = stops
        self._at_most = at_most
        self._usage = Usage(prompt_tokens)
        self._tokens = 0
        self._started = time.perf_counter()
        self._time_to_first_token = 0.0

    def take(self, chunk: Chunk) -> Iterator[Token]:
        """The tokens of a chunk, as many as are wanted. Raises ModelError for an odd end."""
        self._usage = chunk.usage or self._usage
        if chunk.tokens and self._tokens == self.most:  # more than the server was asked for
            self.over = True
            return
        for token in chunk.tokens[: self.most - self._tokens]:
            self._time_to_first_token = (
                self._time_to_first_token or time.perf_counter() - self._started
            )
            self._tokens += 1
            yield self._token(token)
            if self._stops.hit:
                self.over = True
                return
        self._take_reason(chunk.reason)

    def finished(self, failure: str) -> Finished:
        """The end, with the text that was held back. failure: what went wrong, if anything."""
        rest = self._stops.flush()
        if self._stops.hit:
            self.reason = "stop"
        broken_off = self.reason is None
        return Finished(
            self.reason or "error",
            text=rest,
            prompt_tokens=self._usage.prompt,
            reused_tokens=self._usage.reused,
            reply_tokens=self._usage.reply or self._tokens,
            time_to_first_token=self._time_to_first_token,
            seconds=time.perf_counter() - self._started,
            # What goes wrong after the end costs nothing.
            message=(failure or "the server broke off the reply") if broken_off else "",
        )

    def _take_reason(self, word: str) -> None:
        """word: the server's, "" where it gives none."""
        if word not in ("", "stop", "length", DONE):
            raise ModelError(f"the server ended the reply: {word[:100]}")
        if word == "stop":
            self.reason = "stop"
        elif word == "length" or self._tokens == self.most:
            self.reason = self.reason or self._at_most
        elif word == DONE:
            self.reason = self.reason or "stop"
        self.over = word == DONE

    def _token(self, token: ServedToken) -> Token:
        alternatives = tuple(
            Alternative(self._text.token(text), text, logprob)
            for text, logprob in token.alternatives
        )
        id = self._text.token(token.text)
        return Token(id, self._stops.push(token.text), token.text, token.logprob, alternatives)
