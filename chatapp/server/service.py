"""One model and what it answers: completions, chats, embeddings, tokens, in OpenAI's forms.

Invariant: a reply is what `chatapp ask` and `complete` give for the same text, sampling and seed,
and a whole answer is the sum of the pieces that a stream would send. Thoughts, which have a field
of their own, the white space around a chat's reply, and calls of tools are not part of its text. A
text is cut into tokens on a thread, so that a long one holds up no other reply.
Source of the forms: OpenAI's API reference, and what its Python library accepts in strict mode.
"""

import asyncio
import base64
import json
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from chatapp.common.parameters import Choices
from chatapp.common.userfiles import UserError
from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import ReplyFilter, Trimmer, request_for
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import LanguageModel, Request
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Requested
from chatapp.server.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    InspectBody,
    TokenizeBody,
    Writing,
    ignored_keys,
)
from chatapp.server.inspecting import detokenized, inspect, tokenized
from chatapp.server.prompts import (
    MOST_TEXTS,
    BadRequestError,
    ChatPrompt,
    changes_in,
    chat_prompt,
    constraint_of,
    ids_of,
    requests_for,
    structured,
    too_long,
)
from chatapp.server.scores import ScoredToken, ShownTokens, bytes_of, drawn, ended
from chatapp.server.worker import MOST_WAITING, Turns, Worker, raise_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Document = dict[str, Any]

_LENGTH = ("length", "context")
_OWN_REASONS = ("stop", "length")
"""The finish reasons of OpenAI's protocol; others go into vLLM's field `stop_reason`."""

_MOST_ECHOED = 2**18
"""Tokens of prompts, and their scores, in one answer; it has some 16 MB then."""

_MANY = 1_000
"""Tokens in a part of an answer that are not made into JSON on the event loop."""

_MOST_TOKENS = 16
"""A completion's length unless the request says, as in OpenAI's protocol."""

_LONGEST_LOOK = 60.0
"""Seconds for all views of a request."""


class Service:
    """Answers requests to one model.

    template: of its chats. choices: the sampling that a request may change. worker: computes.
    """

    def __init__(
        self, model: LanguageModel, template: ChatTemplate, choices: Choices, name: str
    ) -> None:
        self.model, self._template, self._choices, self._name = model, template, choices, name
        self.worker = Worker(model)
        # A form may take ten seconds to compile, and other requests share the loop's threads.
        self._compiler, self._viewer = Turns(), Turns()
        self._is_closed = threading.Event()

    def close(self) -> None:
        """End all replies and views."""
        self._is_closed.set()
        for queue in (self._compiler, self._viewer):
            queue.close()
        self.worker.close()

    def ignored_keys(self, body: Body) -> list[str]:
        """The keys of a request that change nothing here; see `bodies.ignored_keys`."""
        names = ignored_keys(body)
        if isinstance(body, ChatBody) and body.reasoning_effort:
            switches = body.chat_template_kwargs
            is_switched = switches is not None and switches.enable_thinking is not None
            if is_switched or not self._template.switch:
                names = sorted([*names, "reasoning_effort"])
        return names

    async def answer(self, body: Body) -> Document | AsyncGenerator[Document]:
        """The answer to a request, or the chunks of its stream."""
        if isinstance(body, EmbeddingBody):
            return await self._embed(body)
        if isinstance(body, TokenizeBody):
            return await asyncio.to_thread(tokenized, body, self.model, self._template)
        if isinstance(body, DetokenizeBody):
            return await asyncio.to_thread(detokenized, body, self.model)
        if isinstance(body, InspectBody):
            return await self._inspect(body)
        assert isinstance(body, Writing)
        if size := await asyncio.to_thread(body.form_size):
            replies = await self._compiler.take(size, partial(self._replies, body))
        else:
            replies = await asyncio.to_thread(self._replies, body)
        if not body.stream:
            return await replies.whole(self.worker, self._name)
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        return replies.chunks(self.worker, self._name, with_usage=with_usage)

    def _replies(self, body: Writing) -> "Replies":
        if isinstance(body, CompletionBody):
            return Completions(self.model, self._choices, body)
        assert isinstance(body, ChatBody)
        return ChatReplies(self.model, self._template, self._choices, body)

    async def _embed(self, body: EmbeddingBody) -> Document:
        """Mean hidden states of texts after the final norm, for similarities."""
        texts = await asyncio.to_thread(ids_of, self.model, body.input, "input")
        vectors = [await self.worker.call(partial(self.model.embed, ids)) for ids in texts]
        data = await asyncio.to_thread(
            lambda: [
                {"object": "embedding", "index": place, "embedding": _vector(vector, body)}
                for place, vector in enumerate(vectors)
            ]
        )
        count = sum(map(len, texts))
        return {
            "object": "list",
            "data": data,
            "model": self._name,
            "method": "mean of the hidden states after the final norm",
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    async def _inspect(self, body: InspectBody) -> Document:
        """Views of the model while it reads a text, for as long as the client waits."""
        has_left = threading.Event()
        deadline = time.monotonic() + _LONGEST_LOOK

        def go_on(done: int, total: int) -> None:
            if has_left.is_set() or self._is_closed.is_set():
                raise UserError("nobody waits for the views any more")
            if time.monotonic() > deadline:
                raise UserError(
                    f"the views take more than {_LONGEST_LOOK:.0f} seconds; ask for fewer, or for "
                    "a shorter text"
                )

        try:
            model, sampling = self.model, self._choices.sampling
            work = partial(inspect, body, model, self._template, sampling, go_on)
            views = await self._viewer.take(0, work)
            return {"object": "inspection", "model": self._name} | views
        finally:
            has_left.set()


@dataclass(slots=True)
class ReplyPiece:
    """A part of the reply at a place. thought: of one before it. end: how it ended, in the last
    part.
    """

    place: int
    text: str = ""
    thought: str | None = None
    tokens: list[ScoredToken] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    end: Finished | None = None

    def add(self, other: "ReplyPiece") -> None:
        """Append the next part."""
        self.text += other.text
        if other.thought is not None:
            self.thought = (self.thought or "") + other.thought
        self.tokens += other.tokens
        self.calls += other.calls
        self.end = other.end or self.end

    def choice(self, written: Document, logprobs: Document | None) -> Document:
        """One of the `choices` of an answer or a chunk. written: its text, message or delta."""
        reason = None
        if self.end is not None:
            reason = "length" if self.end.reason in _LENGTH else "stop"
        reason = "tool_calls" if self.calls else reason
        ended = {"logprobs": logprobs, "finish_reason": reason}
        if self.end is not None:
            ended |= self.end.fit
            if self.end.reason not in _OWN_REASONS:
                ended["stop_reason"] = self.end.reason
            if self.end.valid is False:
                ended["misfit"] = self.end.message
        return {"index": self.place} | written | ended


class Replies(ABC):
    """The replies to one request.

    prefix, kind: of the answer's id and its `object`; chunk: the latter in a stream. requests: one
    for each reply, to `prompts` texts.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk: ClassVar[str]

    def __init__(self, model: LanguageModel, requests: Sequence[Request], count: int) -> None:
        """count: of replies to each prompt."""
        self._model, self._requests, self._count = model, requests, count
        self._places = len(requests)
        self._ends: list[Finished] = []

    async def whole(self, worker: Worker, name: str) -> Document:
        """The answer. name: of the model here."""
        joined = [ReplyPiece(place) for place in range(self._places)]
        async with aclosing(self._pieces(worker)) as pieces:
            async for piece in pieces:
                joined[piece.place].add(piece)
        # Not on the event loop, which all requests share.
        choices = await asyncio.to_thread(lambda: [self._choice(piece) for piece in joined])
        return self._head(self.kind, name) | {"choices": choices, "usage": self._usage()}

    async def chunks(
        self, worker: Worker, name: str, *, with_usage: bool
    ) -> AsyncGenerator[Document]:
        """The chunks of a stream; the numbers of tokens come last, where they are wanted."""
        head = self._head(self.chunk, name)
        async with aclosing(self._pieces(worker)) as pieces:
            async for piece in pieces:
                is_large = len(piece.tokens) > _MANY
                parts = self._parts(piece)
                for choice in await asyncio.to_thread(list, parts) if is_large else parts:
                    yield head | {"choices": [choice]}
        if with_usage:
            yield head | {"choices": [], "usage": self._usage()}

    @abstractmethod
    def _pieces(self, worker: Worker) -> AsyncGenerator[ReplyPiece]:
        """What the replies consist of, in the order in which it becomes known.

        Raises BadRequestError for one that fails.
        """

    @abstractmethod
    def _choice(self, piece: ReplyPiece) -> Document:
        """A whole reply."""

    @abstractmethod
    def _parts(self, piece: ReplyPiece) -> Iterable[Document]:
        """The parts of a stream for a piece."""

    def _head(self, kind: str, name: str) -> Document:
        head = {
            "id": _new_id(self.prefix),
            "object": kind,
            "created": int(time.time()),
            "model": name,
        }
        changes = self._requests[0].interventions.words if self._requests else ""
        return head | ({"changes": changes} if changes else {})

    def _ended(self, place: int, end: Finished) -> Finished:
        """Record an end. Several replies to one prompt read it once."""
        end = replace(end, prompt_tokens=0) if place % self._count else end
        self._ends.append(end)
        return end

    def _usage(self) -> Document:
        """The numbers of tokens of all replies."""
        prompt = sum(end.prompt_tokens for end in self._ends)
        reply = sum(end.reply_tokens for end in self._ends)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "prompt_tokens_details": {"cached_tokens": sum(e.reused_tokens for e in self._ends)},
        }


class ChatReplies(Replies):
    """The replies to a chat. Raises BadRequestError, MessageTooLong when it is made."""

    prefix, kind, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(
        self, model: LanguageModel, template: ChatTemplate, choices: Choices, body: ChatBody
    ) -> None:
        most = body.max_completion_tokens or body.max_tokens or choices.sampling.max_tokens
        self._body, self._chat = body, chat_prompt(model, template, body, most)
        options = Options(
            choices.sampling,
            constraint=constraint_of(model, body, self._chat),
            stop=body.stops,
            top=(body.top_logprobs or 0) if body.logprobs else 0,
            changes=changes_in(model, body.changes),
        )
        request = request_for(model, self._chat.writer, self._chat.prompt, options)
        requests = requests_for(model, body, choices, most, request)
        super().__init__(model, requests, len(requests))
        self._begun: set[int] = set()

    def _head(self, kind: str, name: str) -> Document:
        return super()._head(kind, name) | self._chat.loss

    async def _pieces(self, worker: Worker) -> AsyncGenerator[ReplyPiece]:
        replies = [_ChatReply(self._model, self._chat) for _ in self._requests]
        going_on = len(replies)
        async with aclosing(worker.generate(self._requests)) as events:
            async for place, event in events:
                if replies[place].has_ended:
                    continue
                piece = replies[place].take(event, place)
                if piece.end is not None:
                    going_on -= 1
                    piece.end = self._ended(place, piece.end)
                yield piece
                if not going_on:
                    return

    def _choice(self, piece: ReplyPiece) -> Document:
        content = piece.text if piece.text or not piece.calls else None
        message: Document = {"role": "assistant", "content": content, "refusal": None}
        if piece.thought is not None:
            message["reasoning_content"] = piece.thought
        if piece.calls:
            message["tool_calls"] = piece.calls
        return piece.choice({"message": message}, self._logprobs(piece))

    def _parts(self, piece: ReplyPiece) -> Iterable[Document]:
        """The first one of each reply has the role."""
        going_on = ReplyPiece(piece.place)
        if piece.place not in self._begun:
            self._begun.add(piece.place)
            yield going_on.choice({"delta": {"role": "assistant", "content": ""}}, None)
        if piece.thought is not None:
            yield going_on.choice({"delta": {"reasoning_content": piece.thought}}, None)
        if piece.text or (piece.tokens and self._body.logprobs):
            yield going_on.choice({"delta": {"content": piece.text}}, self._logprobs(piece))
        if piece.calls:
            calls = [{"index": index} | call for index, call in enumerate(piece.calls)]
            yield going_on.choice({"delta": {"tool_calls": calls}}, None)
        if piece.end is not None:
            yield piece.choice({"delta": {}}, None)

    def _logprobs(self, piece: ReplyPiece) -> Document | None:
        if not self._body.logprobs:
            return None

        def described(piece: str, logprob: float | None, own: Iterable[int]) -> Document:
            known = -9999.0 if logprob is None else logprob
            return {"token": piece, "logprob": known, "bytes": list(own)}

        content = [
            described(token.piece, token.logprob, token.shown)
            | {
                "top_logprobs": [
                    described(
                        other.text, other.logprob, bytes_of(self._model, other.id, other.text)
                    )
                    for other in token.alternatives
                ]
            }
            for token in piece.tokens
        ]
        return {"content": content, "refusal": None}


class _ChatReply:
    """A reply to a chat while it is written. has_ended: whether nothing more of it is wanted."""

    def __init__(self, model: LanguageModel, chat: ChatPrompt) -> None:
        self.has_ended = False
        self._prompt_tokens, self._tokens = len(chat.prompt.ids), 0
        self._split = ReplyFilter(model, chat.prompt, chat.calls, chat.tools)
        self._trimmer = Trimmer(begun=chat.is_continued)
        self._shown = ShownTokens(model, begun=chat.is_continued)

    def take(self, event: Event, place: int) -> ReplyPiece:
        """What an event adds to the reply, as a piece at a place.

        Raises BadRequestError for one that reports an error.
        """
        if isinstance(event, Finished):
            raise_error(event)
        visible, requested = self._split.push(event)
        text = self._trimmer.push(visible.text)
        is_last = isinstance(event, Finished) or requested is not None
        token = None
        if isinstance(event, Token):
            self._tokens += 1
            token = drawn(event) if visible.thought is None and requested is None else None
        shown = self._shown.push(token, text, is_last=is_last)
        piece = ReplyPiece(place, text, visible.thought, shown)
        if requested is not None:  # it ends the reply
            piece.calls.append(_call(requested))
        if isinstance(event, Finished):
            piece.end = event
        elif requested is not None:
            size = self._prompt_tokens
            piece.end = Finished("stop", prompt_tokens=size, reply_tokens=self._tokens)
        self.has_ended = piece.end is not None
        return piece


class Completions(Replies):
    """Texts continued, and their own tokens scored. Raises BadRequestError when it is made."""

    prefix, kind, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: LanguageModel, choices: Choices, body: CompletionBody) -> None:
        self._body, self._prompts = body, ids_of(model, body.prompt, "prompt")
        self._written: dict[int, int] = {}
        """The characters of each reply that a stream has sent."""
        count = body.n or 1
        self._refuse_large(count)
        super().__init__(model, self._requests_of(model, choices, count), count)
        self._places = len(self._prompts) * count

    def _refuse_large(self, count: int) -> None:
        """Raise BadRequestError for more texts or scores of their tokens than an answer may have.

        count: of replies to each prompt.
        """
        texts, top = len(self._prompts) * count, self._body.logprobs
        size = sum(map(len, self._prompts)) * count
        for number, most, what in (
            (texts, MOST_TEXTS, "texts"),
            (size if self._body.echo else 0, _MOST_ECHOED, "tokens of prompts"),
            (size * (top or 0) if self._body.echo else 0, _MOST_ECHOED, "log-probabilities"),
        ):
            if number > most:
                raise BadRequestError(
                    f"the answer would have {number:,} {what}; expected at most {most:,}", "prompt"
                )

    def _requests_of(self, model: LanguageModel, choices: Choices, count: int) -> list[Request]:
        """The requests for all completions; none for max_tokens 0."""
        body = self._body
        if body.changes is not None and body.echo:
            raise BadRequestError("echo scores the model without changes; use /v1/inspect", "echo")
        most = _MOST_TOKENS if body.max_tokens is None else body.max_tokens
        if most == 0:
            if not body.echo:
                raise BadRequestError("max_tokens is 0, which needs echo", "max_tokens")
            return []
        for ids in self._prompts:
            if len(ids) >= model.context:
                what = f"is {len(ids)} tokens long and leaves no room for a reply"
                raise too_long(model, what, "prompt")
        if (wanted := len(self._prompts) * count) > MOST_WAITING:
            raise BadRequestError(
                f"{wanted} replies are wanted; at most {MOST_WAITING} can wait", "prompt"
            )
        changes = changes_in(model, body.changes)
        top, limits = body.logprobs or 0, structured(model, body)
        requests = [
            Request(
                ids,
                choices.sampling,
                body.stops,
                top=top,
                constraint=limits,
                interventions=changes.added_after(len(ids)),
            )
            for ids in self._prompts
        ]
        return [
            one for request in requests for one in requests_for(model, body, choices, most, request)
        ]

    async def _pieces(self, worker: Worker) -> AsyncGenerator[ReplyPiece]:
        if self._body.echo:
            top = self._body.logprobs
            for number, ids in enumerate(self._prompts):
                tokens: list[ScoredToken] = []
                if top is not None:
                    tokens = await worker.call(partial(worker.scorer.score, ids, top))
                for which in range(self._count):
                    text = self._text(number, ids)
                    yield ReplyPiece(number * self._count + which, text, tokens=tokens)
        if not self._requests:
            for place in range(self._places):
                size = len(self._prompts[place // self._count])
                yield ReplyPiece(
                    place, end=self._ended(place, Finished("length", prompt_tokens=size))
                )
            return
        async with aclosing(worker.generate(self._requests)) as events:
            async for place, event in events:
                if isinstance(event, Finished):
                    raise_error(event)
                    tokens, end = ended(self._model, event), self._ended(place, event)
                    yield ReplyPiece(place, event.text, tokens=tokens, end=end)
                else:
                    yield ReplyPiece(place, event.text, tokens=[drawn(event)])

    def _choice(self, piece: ReplyPiece, offset: int = 0) -> Document:
        return piece.choice({"text": piece.text}, self._logprobs(piece.tokens, offset))

    def _parts(self, piece: ReplyPiece) -> Iterable[Document]:
        offset = self._written.get(piece.place, 0)
        self._written[piece.place] = offset + len(piece.text)
        return [self._choice(piece, offset)]

    def _logprobs(self, tokens: Sequence[ScoredToken], offset: int) -> Document | None:
        """offset: characters of the text before the first token."""
        if self._body.logprobs is None:
            return None
        stream, offsets = self._model.tokenizer.stream(), []
        for token in tokens:
            offsets.append(offset)
            offset += len(stream.push(token.id))

        def name(id: int, piece: str) -> str:
            return f"token_id:{id}" if self._body.return_tokens_as_token_ids else piece

        limits = {
            "forced": [token.forced for token in tokens],
            "forbidden": [token.forbidden for token in tokens],
        }
        return (limits if self._body.structured_outputs else {}) | {
            "tokens": [name(token.id, token.piece) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                None
                if token.logprob is None
                else {name(one.id, one.text): one.logprob for one in reversed(token.alternatives)}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _text(self, number: int, ids: Sequence[int]) -> str:
        """A prompt as text: the request's own, where it is one."""
        prompt = self._body.prompt
        if isinstance(prompt, str):
            return prompt
        own = prompt[number] if isinstance(prompt[0], str | list) else prompt
        return own if isinstance(own, str) else self._model.tokenizer.decode(ids)


def _new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def _call(requested: Requested) -> Document:
    """A call of a tool, for the caller to carry out."""
    arguments = json.dumps(requested.arguments, ensure_ascii=False)
    function = {"name": requested.name, "arguments": arguments}
    return {"id": _new_id("call_"), "type": "function", "function": function}


def _vector(vector: "NDArray[np.float32]", body: EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
