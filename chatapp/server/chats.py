"""Replies to chats, in the form of OpenAI's chat completions.

Invariant: a whole answer is the sum of the pieces that a stream would send. Thoughts, the white
space around a reply, and calls of tools are no part of its text.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from chatapp.common.parameters import Choices
from chatapp.dialogue.reply import reply_events
from chatapp.dialogue.tool_calls import call_marks
from chatapp.dialogue.writers.prompt import trimmed
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import LanguageModel, Request
from chatapp.prompting.calls import CallFilter
from chatapp.prompting.chat_template import Template
from chatapp.prompting.messages import Requested
from chatapp.server import answers
from chatapp.server.answers import Document
from chatapp.server.bodies import ChatBody
from chatapp.server.prompts import ChatPrompt, chat_prompt, constraint_of, requests_for
from chatapp.server.scores import ScoredToken, ShownTokens, drawn
from chatapp.server.worker import Worker, raise_error


@dataclass(slots=True)
class ChatPiece:
    """A part of the reply at a place. end: how it ended, in the last part."""

    place: int
    text: str = ""
    tokens: list[ScoredToken] = field(default_factory=list)
    calls: list[Document] = field(default_factory=list)
    end: Finished | None = None

    @property
    def reason(self) -> str | None:
        """Why the reply ended, in the words of the protocol; None while it goes on."""
        return answers.finish_reason(self.end, self.calls)

    def add(self, other: "ChatPiece") -> None:
        """Append the next part."""
        self.text += other.text
        self.tokens += other.tokens
        self.calls += other.calls
        self.end = other.end or self.end


class ChatReplies:
    """The replies to a chat. Raises BadRequestError, MessageTooLong when it is made."""

    def __init__(
        self, model: LanguageModel, template: Template, choices: Choices, body: ChatBody
    ) -> None:
        self._model, self._body = model, body
        most = body.max_completion_tokens or body.max_tokens or choices.sampling.max_tokens
        self._chat = chat_prompt(model, template, body, most)
        prompt = self._chat.prompt
        self._requests = requests_for(
            body,
            choices,
            most,
            Request(
                prompt.ids,
                choices.sampling,
                (*self._chat.writer.stop, *body.stops),
                top=(body.top_logprobs or 0) if body.logprobs else 0,
                messages=prompt.messages_sent if prompt.messages else (),
                tools=prompt.tools if prompt.messages else (),
                constraint=constraint_of(model, body, self._chat),
            ),
        )
        self._ends: list[Finished] = []

    async def whole(self, worker: Worker) -> Document:
        """The answer's own fields."""
        joined = [ChatPiece(place) for place in range(len(self._requests))]
        async with aclosing(self.pieces(worker)) as pieces:
            async for piece in pieces:
                joined[piece.place].add(piece)
        return {"choices": [self._choice(piece) for piece in joined]} | self.usage

    async def chunks(self, worker: Worker) -> AsyncGenerator[Document]:
        """The own fields of each chunk; the first of each reply has the role."""
        begun: set[int] = set()
        async with aclosing(self.pieces(worker)) as pieces:
            async for piece in pieces:
                deltas: list[tuple[Document, Document | None]] = []
                if piece.place not in begun:
                    begun.add(piece.place)
                    deltas.append(({"role": "assistant", "content": ""}, None))
                if piece.text or (piece.tokens and self._body.logprobs):
                    deltas.append(({"content": piece.text}, self._logprobs(piece)))
                if piece.calls:
                    calls = [{"index": index} | call for index, call in enumerate(piece.calls)]
                    deltas.append(({"tool_calls": calls}, None))
                for delta, logprobs in deltas:
                    yield _delta(piece.place, delta, logprobs)
                if piece.end is not None:
                    yield _delta(piece.place, {}, None, piece.reason)

    @property
    def usage(self) -> Document:
        """The numbers of tokens at the end."""
        return {"usage": answers.usage(self._ends)}

    async def pieces(self, worker: Worker) -> AsyncGenerator[ChatPiece]:
        """What the replies consist of. Raises BadRequestError for one that fails."""
        replies = [_Reply(self._model, self._chat, request) for request in self._requests]
        going_on = len(replies)
        async with aclosing(worker.generate(self._requests)) as events:
            async for place, event in events:
                reply = replies[place]
                if reply.has_ended:
                    continue
                piece = reply.take(event, place)
                if piece.end is not None:
                    going_on -= 1
                    end = replace(piece.end, prompt_tokens=0) if place else piece.end
                    self._ends.append(end)  # several replies to one prompt read it once
                yield piece
                if not going_on:
                    return

    def _choice(self, piece: ChatPiece) -> Document:
        content = piece.text if piece.text or not piece.calls else None
        message: Document = {"role": "assistant", "content": content, "refusal": None}
        if piece.calls:
            message["tool_calls"] = piece.calls
        logprobs = self._logprobs(piece)
        return answers.choice(piece.place, {"message": message}, logprobs, piece.reason)

    def _logprobs(self, piece: ChatPiece) -> Document | None:
        return answers.chat_logprobs(self._model, piece.tokens) if self._body.logprobs else None


def _delta(
    place: int, delta: Document, logprobs: Document | None, reason: str | None = None
) -> Document:
    return {"choices": [answers.choice(place, {"delta": delta}, logprobs, reason)]}


class _Reply:
    """A reply to a chat while it is written. has_ended: whether nothing more of it is wanted."""

    def __init__(self, model: LanguageModel, chat: ChatPrompt, request: Request) -> None:
        self.has_ended = False
        self._prompt_tokens = len(chat.prompt.ids)
        self._tokens = 0
        self._calls: list[Document] = []
        self._filter = CallFilter(chat.calls, chat.tools) if chat.tools else None
        self._marks = call_marks(model, chat.calls)
        self._shown = ShownTokens(model)
        self._arrived: deque[Event] = deque()
        # Each step of these generators takes one event and gives one.
        events = reply_events(
            model, chat.prompt, request, lambda _: iter(self._arrived.popleft, None)
        )
        self._visible = trimmed(self._without_calls(events))

    def take(self, event: Event, place: int) -> ChatPiece:
        """What an event adds to the reply, as a piece at a place.

        Raises BadRequestError for one that reports an error.
        """
        if isinstance(event, Finished):
            raise_error(event)
        self._arrived.append(event)
        visible = next(self._visible)
        is_last = isinstance(event, Finished) or bool(self._calls)
        token = None
        if isinstance(event, Token) and visible.thought is None and not self._calls:
            token = drawn(event)
        tokens = self._shown.push(token, visible.text, is_last=is_last)
        piece = ChatPiece(place, visible.text, tokens, calls=self._calls)
        if isinstance(event, Finished):
            piece.end = event
        else:
            self._tokens += 1
            if self._calls:  # a call ends the reply early
                size = self._prompt_tokens
                piece.end = Finished("stop", prompt_tokens=size, reply_tokens=self._tokens)
        self.has_ended = piece.end is not None
        return piece

    def _without_calls(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events up to the first call, which is taken out of the text."""
        for event in events:
            if self._filter is None:
                yield event
                continue
            text = event.text
            if isinstance(event, Token) and event.thought is None:
                mark = self._marks.get(event.id, "")
                text = text.removesuffix(mark) + mark
            requested: Requested | None
            text, requested = self._filter.push(text)
            if requested is not None:
                self._calls.append(answers.tool_call(requested))
            elif isinstance(event, Finished):
                text += self._filter.flush()
            yield replace(event, text=text)
