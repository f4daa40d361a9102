"""Texts continued, and their own tokens scored: the requests for completions.

Invariant: a whole answer is the sum of the pieces that a stream would send.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from chatapp.common.parameters import Choices
from chatapp.engine.events import Finished
from chatapp.engine.model import LanguageModel, Request
from chatapp.server import answers
from chatapp.server.answers import Document
from chatapp.server.bodies import CompletionBody
from chatapp.server.prompts import BadRequestError, ids_of, requests_for
from chatapp.server.scores import ScoredToken, drawn, ended
from chatapp.server.worker import MOST_WAITING, Worker, raise_error

_MOST_TOKENS = 16
"""A completion's length unless the request says, as in OpenAI's protocol."""


@dataclass(slots=True)
class _Piece:
    """A part of the completion at a place. end: how it ended, in the last part."""

    place: int
    text: str = ""
    tokens: list[ScoredToken] = field(default_factory=list)
    end: Finished | None = None

    def add(self, other: "_Piece") -> None:
        """Append the next part."""
        self.text += other.text
        self.tokens += other.tokens
        self.end = other.end or self.end


class Completion:
    """The answer to a request. Raises BadRequestError when it is made."""

    def __init__(self, model: LanguageModel, choices: Choices, body: CompletionBody) -> None:
        self._model, self._body = model, body
        self._prompts = ids_of(model, body.prompt, "prompt")
        self._count = body.n or 1
        self._requests = self._requests_of(choices)
        self._ends: list[Finished] = []

    async def whole(self, worker: Worker) -> Document:
        """The answer's own fields."""
        joined = [_Piece(place) for place in range(len(self._prompts) * self._count)]
        async with aclosing(self._pieces(worker)) as pieces:
            async for piece in pieces:
                joined[piece.place].add(piece)
        return {"choices": [self._choice(piece) for piece in joined]} | self.usage

    async def chunks(self, worker: Worker) -> AsyncGenerator[Document]:
        """The own fields of each chunk."""
        written: dict[int, int] = {}
        async with aclosing(self._pieces(worker)) as pieces:
            async for piece in pieces:
                offset = written.get(piece.place, 0)
                written[piece.place] = offset + len(piece.text)
                yield {"choices": [self._choice(piece, offset)]}

    @property
    def usage(self) -> Document:
        """The numbers of tokens at the end."""
        return {"usage": answers.usage(self._ends)}

    def _choice(self, piece: _Piece, offset: int = 0) -> Document:
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = answers.completion_logprobs(self._model, piece.tokens, offset)
        reason = answers.finish_reason(piece.end)
        return answers.choice(piece.place, {"text": piece.text}, logprobs, reason)

    def _requests_of(self, choices: Choices) -> list[Request]:
        """The requests for all completions; none for max_tokens 0."""
        body = self._body
        most = _MOST_TOKENS if body.max_tokens is None else body.max_tokens
        if most == 0:
            if not body.echo:
                raise BadRequestError("max_tokens is 0, which needs echo", "max_tokens")
            return []
        for ids in self._prompts:
            if len(ids) >= self._model.context:
                raise BadRequestError(
                    f"the prompt is {len(ids)} tokens long and leaves no room for a reply; the "
                    f"model's window has {self._model.context}",
                    "prompt",
                    "context_length_exceeded",
                )
        wanted = len(self._prompts) * self._count
        if wanted > MOST_WAITING:
            raise BadRequestError(
                f"{wanted} replies are wanted; at most {MOST_WAITING} can wait", "prompt"
            )
        top = body.logprobs or 0
        requests = [Request(ids, choices.sampling, body.stops, top=top) for ids in self._prompts]
        return [one for request in requests for one in requests_for(body, choices, most, request)]

    async def _pieces(self, worker: Worker) -> AsyncGenerator[_Piece]:
        """What the completions consist of, in the order in which it becomes known.

        Raises BadRequestError for one that fails.
        """
        if self._body.echo:
            for number, ids in enumerate(self._prompts):
                tokens = await self._scored(worker, ids)
                for which in range(self._count):
                    yield _Piece(number * self._count + which, self._text(number, ids), tokens)
        if not self._requests:
            for place in range(len(self._prompts) * self._count):
                size = len(self._prompts[place // self._count])
                yield _Piece(place, end=self._ended(place, Finished("length", prompt_tokens=size)))
            return
        async with aclosing(worker.generate(self._requests)) as events:
            async for place, event in events:
                if isinstance(event, Finished):
                    raise_error(event)
                    end = self._ended(place, event)
                    yield _Piece(place, event.text, ended(self._model, event), end)
                else:
                    yield _Piece(place, event.text, [drawn(event)])

    def _ended(self, place: int, end: Finished) -> Finished:
        """Record an end. Several replies to one prompt read it once."""
        end = replace(end, prompt_tokens=0) if place % self._count else end
        self._ends.append(end)
        return end

    async def _scored(self, worker: Worker, ids: Sequence[int]) -> list[ScoredToken]:
        """A prompt's own tokens, if they are wanted."""
        top = self._body.logprobs
        if top is None:
            return []
        return await worker.call(lambda: worker.scorer.score(ids, top))

    def _text(self, number: int, ids: Sequence[int]) -> str:
        """A prompt as text: the request's own, where it is one."""
        prompt = self._body.prompt
        if isinstance(prompt, str):
            return prompt
        own = prompt[number] if isinstance(prompt[0], str | list) else prompt
        return own if isinstance(own, str) else self._model.tokenizer.decode(ids)
