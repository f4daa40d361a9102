"""One model and what it answers: completions, chats, embeddings, tokens.

Invariant: a reply is what `chatapp ask` and `complete` give for the same text, sampling and seed.
A text is cut into tokens on a thread, so that a long one holds up no other reply.
"""

import asyncio
import base64
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chatapp.api import answers, bodies
from chatapp.api.answers import Document
from chatapp.api.prompts import BadRequestError, ChatPrompt, chat_prompt, ids_of, sampling_of
from chatapp.api.scores import ScoredToken, drawn, score_prompt
from chatapp.api.worker import FAILED, MOST_WAITING, Worker
from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Choices
from chatapp.dialogue.reply import reply_events
from chatapp.dialogue.tool_calls import call_marks
from chatapp.dialogue.writers.prompt import trimmed
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import LanguageModel, Request
from chatapp.prompting.calls import CallFilter
from chatapp.prompting.chat_template import Template
from chatapp.prompting.messages import Requested

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_COMPLETION_TOKENS = 16
"""A completion's length unless the request says, as in OpenAI's protocol."""


class ModelFailedError(Exception):
    """The model has failed, for no fault of the request."""


class Service:
    """Answers requests to one model.

    template: of its chats. choices: the sampling that a request may change.
    """

    def __init__(
        self, model: LanguageModel, template: Template, choices: Choices, name: str
    ) -> None:
        self.model, self._template, self._choices, self._name = model, template, choices, name
        self._worker = Worker(model)

    def close(self) -> None:
        """End all replies."""
        self._worker.close()

    # Completions

    async def complete(self, body: bodies.CompletionBody) -> Document:
        """The answer to a request for completions."""
        prompts, requests = await asyncio.to_thread(self._completions, body)
        echoed = await self._echoed(body, prompts)
        replies = await self._whole(requests)
        count = body.n or 1
        choices = []
        ends = []
        for number, prompt in enumerate(prompts):
            for which in range(count):
                place = number * count + which
                tokens, text, end = replies[place] if replies else ([], "", _nothing(prompt))
                tokens = [*echoed[number], *tokens] if body.echo else tokens
                text = self._text(body, number, prompt) + text if body.echo else text
                logprobs = body.logprobs is not None
                choices.append(
                    {
                        "index": place,
                        "text": text,
                        "logprobs": answers.completion_logprobs(self.model, tokens)
                        if logprobs
                        else None,
                        "finish_reason": answers.finish_reason(end),
                    }
                )
                # Several replies to one prompt read it once.
                ends.append(replace(end, prompt_tokens=0) if which else end)
        return self._head("cmpl", "text_completion") | {
            "choices": choices,
            "usage": answers.usage(ends),
        }

    async def stream_completion(self, body: bodies.CompletionBody) -> AsyncGenerator[Document]:
        """The chunks of completions that are written."""
        prompts, requests = await asyncio.to_thread(self._completions, body)
        echoed = await self._echoed(body, prompts)
        head = self._head("cmpl", "text_completion")
        count, ends = body.n or 1, []
        offsets: dict[int, int] = {}

        def chunk(place: int, text: str, tokens: Sequence[ScoredToken], reason: str | None) -> Any:
            logprobs = None
            if body.logprobs is not None:
                logprobs = answers.completion_logprobs(self.model, tokens, offsets.get(place, 0))
            offsets[place] = offsets.get(place, 0) + len(text)
            choice = {
                "index": place,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": reason,
            }
            return head | {"choices": [choice]}

        if body.echo:
            for number, prompt in enumerate(prompts):
                for which in range(count):
                    text = self._text(body, number, prompt)
                    yield chunk(number * count + which, text, echoed[number], None)
        if not requests:
            for place in range(len(prompts) * count):
                yield chunk(place, "", [], "length")
            ends = [_nothing(prompt) for prompt in prompts]
        else:
            async with aclosing(self._worker.generate(requests)) as events:
                async for place, event in events:
                    if isinstance(event, Finished):
                        _raise_error(event)
                        ends.append(replace(event, prompt_tokens=0) if place % count else event)
                        yield chunk(place, event.text, [], answers.finish_reason(event))
                    else:
                        yield chunk(place, event.text, [drawn(event)], None)
        if _wants_usage(body):
            yield head | {"choices": [], "usage": answers.usage(ends)}

    def _completions(self, body: bodies.CompletionBody) -> tuple[list[list[int]], list[Request]]:
        """The prompts, and the requests for all of their replies; none for max_tokens 0."""
        prompts = ids_of(self.model, body.prompt, "prompt")
        most = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        if most == 0:
            if not body.echo:
                raise BadRequestError("max_tokens is 0, which needs echo", "max_tokens")
            return prompts, []
        for ids in prompts:
            if len(ids) >= self.model.context:
                raise BadRequestError(
                    f"the prompt is {len(ids)} tokens long and leaves no room for a reply; the "
                    f"model's window has {self.model.context}",
                    "prompt",
                    "context_length_exceeded",
                )
        count = body.n or 1
        if len(prompts) * count > MOST_WAITING:
            raise BadRequestError(
                f"{len(prompts) * count} replies are wanted; at most {MOST_WAITING} can wait",
                "prompt",
            )
        sampling = sampling_of(body, self._choices, most)
        return prompts, [
            Request(
                ids,
                replace(sampling, seed=None if sampling.seed is None else sampling.seed + which),
                body.stops,
                top=body.logprobs or 0,
            )
            for ids in prompts
            for which in range(count)
        ]

    async def _echoed(
        self, body: bodies.CompletionBody, prompts: Sequence[Sequence[int]]
    ) -> list[list[ScoredToken]]:
        """The prompts' own tokens, if they are wanted."""
        if not body.echo or body.logprobs is None:
            return [[] for _ in prompts]
        top = body.logprobs
        return [
            await self._worker.call(lambda ids=ids: score_prompt(self.model, ids, top))  # type: ignore[misc]
            for ids in prompts
        ]

    def _text(self, body: bodies.CompletionBody, number: int, ids: Sequence[int]) -> str:
        """A prompt as text: the request's own, where it is one."""
        if isinstance(body.prompt, str):
            return body.prompt
        own = body.prompt[number] if isinstance(body.prompt[0], str | list) else body.prompt
        return own if isinstance(own, str) else self.model.tokenizer.decode(ids)

    async def _whole(
        self, requests: Sequence[Request]
    ) -> list[tuple[list[ScoredToken], str, Finished]]:
        """All replies with their tokens. Raises BadRequestError for one that fails."""
        if not requests:
            return []
        tokens: list[list[ScoredToken]] = [[] for _ in requests]
        texts, ends = [""] * len(requests), [Finished("error")] * len(requests)
        async with aclosing(self._worker.generate(requests)) as events:
            async for place, event in events:
                texts[place] += event.text
                if isinstance(event, Finished):
                    _raise_error(event)
                    ends[place] = event
                else:
                    tokens[place].append(drawn(event))
        return list(zip(tokens, texts, ends, strict=True))

    # Chats

    async def chat(self, body: bodies.ChatBody) -> Document:
        """The answer to a chat."""
        chat, requests = await asyncio.to_thread(self._chats, body)
        replies = [_ChatReply(self.model, chat, request) for request in requests]
        async with aclosing(self._worker.generate(requests)) as events:
            async for place, event in events:
                replies[place].add(event)
                if all(reply.has_ended() for reply in replies):
                    break
        choices = [
            {
                "index": place,
                "message": {
                    "role": "assistant",
                    "content": reply.text if reply.text or not reply.calls else None,
                    "refusal": None,
                }
                | ({"tool_calls": reply.calls} if reply.calls else {}),
                "logprobs": answers.chat_logprobs(self.model, reply.tokens)
                if body.logprobs
                else None,
                "finish_reason": reply.reason,
            }
            for place, reply in enumerate(replies)
        ]
        return self._head("chatcmpl", "chat.completion") | {
            "choices": choices,
            "usage": answers.usage(_ends(replies, chat)),
        }

    async def stream_chat(self, body: bodies.ChatBody) -> AsyncGenerator[Document]:
        """The chunks of a chat's reply; the first has the role."""
        chat, requests = await asyncio.to_thread(self._chats, body)
        head = self._head("chatcmpl", "chat.completion.chunk")
        replies = [_ChatReply(self.model, chat, request) for request in requests]

        def chunk(place: int, delta: Document, reason: str | None, logprobs: Any = None) -> Any:
            choice = {
                "index": place,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": reason,
            }
            return head | {"choices": [choice]}

        begun: set[int] = set()
        async with aclosing(self._worker.generate(requests)) as events:
            async for place, event in events:
                reply = replies[place]
                if reply.has_ended():
                    continue
                before = len(reply.tokens)
                text = reply.add(event)
                if place not in begun:
                    begun.add(place)
                    yield chunk(place, {"role": "assistant", "content": ""}, None)
                new = reply.tokens[before:]
                logprobs = answers.chat_logprobs(self.model, new) if body.logprobs else None
                if text or (new and body.logprobs):
                    yield chunk(place, {"content": text}, None, logprobs)
                if reply.has_ended():
                    if reply.calls:
                        calls = [{"index": n} | call for n, call in enumerate(reply.calls)]
                        yield chunk(place, {"tool_calls": calls}, None)
                    yield chunk(place, {}, reply.reason)
                if all(reply.has_ended() for reply in replies):
                    break
        if _wants_usage(body):
            yield head | {"choices": [], "usage": answers.usage(_ends(replies, chat))}

    def _chats(self, body: bodies.ChatBody) -> tuple[ChatPrompt, list[Request]]:
        most = body.max_completion_tokens or body.max_tokens
        most = most or self._choices.sampling.max_tokens
        sampling = sampling_of(body, self._choices, most)
        chat = chat_prompt(self.model, self._template, body, most)
        top = (body.top_logprobs or 0) if body.logprobs else 0
        stop = (*chat.writer.stop, *body.stops)
        requests = [
            Request(
                chat.prompt.ids,
                replace(sampling, seed=None if sampling.seed is None else sampling.seed + which),
                stop,
                top=top,
                messages=chat.prompt.messages_sent if chat.prompt.messages else (),
                tools=chat.prompt.tools if chat.prompt.messages else (),
            )
            for which in range(body.n or 1)
        ]
        return chat, requests

    # Others

    async def embed(self, body: bodies.EmbeddingBody) -> Document:
        """Mean hidden states of texts after the final norm, for similarities."""
        texts = await asyncio.to_thread(ids_of, self.model, body.input, "input")
        vectors = [
            await self._worker.call(lambda ids=ids: self.model.embed(ids))  # type: ignore[misc]
            for ids in texts
        ]
        data = [
            {"object": "embedding", "index": place, "embedding": _vector(vector, body)}
            for place, vector in enumerate(vectors)
        ]
        count = sum(map(len, texts))
        return {
            "object": "list",
            "data": data,
            "model": self._name,
            "method": "mean of the hidden states after the final norm",
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def tokenize(self, body: bodies.TokenizeBody) -> Document:
        """The tokens of a text or of a chat's prompt."""
        if body.messages is not None:
            chat = bodies.ChatBody(messages=body.messages)
            ids = list(chat_prompt(self.model, self._template, chat, 1).prompt.ids)
        elif body.prompt is not None:
            ids = self.model.tokenizer.encode(without_surrogates(body.prompt))
        else:
            raise BadRequestError("there is neither prompt nor messages", "prompt")
        return {"tokens": ids, "count": len(ids), "max_model_len": self.model.context}

    def detokenize(self, body: bodies.DetokenizeBody) -> Document:
        """The text of tokens."""
        if not all(0 <= id < self.model.tokenizer.size for id in body.tokens):
            raise BadRequestError("tokens has ids that are not in the vocabulary", "tokens")
        return {"prompt": self.model.tokenizer.decode(body.tokens)}

    def tokenizer_info(self) -> Document:
        """What a client has to know about the vocabulary."""
        tokenizer = self.model.tokenizer
        names = {id: name for name, id in tokenizer.special.items()}
        return {
            "vocab_size": tokenizer.size,
            "eos_token": names.get(tokenizer.end_id),
            "eos_token_id": tokenizer.end_id,
            "bos_token_ids": list(self.model.start),
            "model_max_length": self.model.context,
            "special_tokens": dict(tokenizer.special),
        }

    def _head(self, prefix: str, kind: str) -> Document:
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self._name,
        }


class _ChatReply:
    """A reply to a chat while it is written: its text without thoughts, white space and calls."""

    def __init__(self, model: LanguageModel, chat: ChatPrompt, request: Request) -> None:
        self.text, self.calls = "", list[Document]()
        self.end: Finished | None = None
        self.tokens: list[ScoredToken] = []
        self._filter = CallFilter(chat.writer.calls, chat.tools) if chat.tools else None
        self._marks = call_marks(model, chat.writer.calls)
        self._arrived: deque[Event] = deque()
        # Each step of these generators takes one event and gives one.
        events = reply_events(
            model, chat.prompt, request, lambda _: iter(self._arrived.popleft, None)
        )
        self._visible = trimmed(self._without_calls(events))

    def has_ended(self) -> bool:
        """Whether nothing more of it is wanted."""
        return self.end is not None or bool(self.calls)

    @property
    def reason(self) -> str:
        """Why it ended, in the words of the protocol."""
        if self.calls:
            return "tool_calls"
        return "stop" if self.end is None else answers.finish_reason(self.end)

    def add(self, event: Event) -> str:
        """Take an event; returns the text of the reply that it makes visible.

        Raises BadRequestError for one that reports an error.
        """
        if isinstance(event, Finished):
            _raise_error(event)
        self._arrived.append(event)
        visible = next(self._visible)
        if isinstance(event, Finished):
            self.end = event
        elif visible.thought is None and not self.calls:
            self.tokens.append(drawn(event))
        self.text += visible.text
        return visible.text

    def _without_calls(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events up to the first call, and those after it without their texts."""
        for event in events:
            if self._filter is None:
                yield event
                continue
            text = event.text if not self.calls else ""
            if isinstance(event, Token) and event.thought is None and not self.calls:
                mark = self._marks.get(event.id, "")
                text = text.removesuffix(mark) + mark
            requested: Requested | None = None
            if not self.calls:
                text, requested = self._filter.push(text)
            if requested is not None:
                id = f"call_{secrets.token_hex(12)}"
                self.calls.append(answers.tool_call(requested, id))
            elif isinstance(event, Finished) and not self.calls:
                text += self._filter.flush()
            yield replace(event, text=text)


def _ends(replies: Sequence[_ChatReply], chat: ChatPrompt) -> list[Finished]:
    """How the replies ended; those to one prompt read it once. A call ends a reply early."""
    size = len(chat.prompt.ids)
    ends = [
        reply.end or Finished("stop", prompt_tokens=size, reply_tokens=len(reply.tokens))
        for reply in replies
    ]
    return [ends[0], *(replace(end, prompt_tokens=0) for end in ends[1:])]


def _raise_error(end: Finished) -> None:
    """Raise BadRequestError for an end that is an error, ModelFailedError if that is nobody's."""
    if end.reason == "error":
        raise ModelFailedError(FAILED) if end.message == FAILED else BadRequestError(end.message)


def _nothing(ids: Sequence[int]) -> Finished:
    """The end of a reply of no tokens."""
    return Finished("length", prompt_tokens=len(ids))


def _wants_usage(body: bodies.Writing) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _vector(vector: "NDArray[np.float32]", body: bodies.EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
