"""What the server does for this program's own commands, which do not load its models then.

Invariant: only somebody with the token of the file in the user's folder gets an answer, whatever
key the server has for other programs. Events go out as the model gives them.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from chatapp.dialogue.turn import ReplyFilter, Trimmer
from chatapp.dialogue.writers.choosing import choose_template, mismatch, with_thinking, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.backends.background import request_of, written
from chatapp.engine.model import Request, Sampling
from chatapp.server.bodies import Body
from chatapp.server.prompts import BadRequestError
from chatapp.server.service import Document, Service


class ProofBody(BaseModel):
    """A number of the client, to be answered with what only the token's owner knows."""

    nonce: str


class AskBody(Body):
    """A question as `chatapp ask` has it. template: "" for the model's own."""

    question: str
    system: str | None
    template: str
    think: bool | None
    sampling: dict[str, Any]


class GenerateBody(Body):
    """A `Request` of this program; its fields are read by `request_of`."""

    model_config = ConfigDict(extra="allow")


class ScoreBody(Body):
    """Contexts and continuations."""

    pairs: list[Annotated[list[list[int]], Field(min_length=2, max_length=2)]]


async def answer_question(service: Service, body: AskBody) -> AsyncGenerator[Document]:
    """The name of the template and a remark on it, then the events of the reply.

    Raises UserError, ValueError for a question that cannot be answered.
    """
    model = service.model

    def prepare() -> tuple[Document, ReplyFilter, Request]:
        template = choose_template(model, body.template)
        if body.think is not None:
            template = with_thinking(model, template, body.think)
        sampling = Sampling(**body.sampling)
        writer = writer_for(model, template)
        if not body.question.strip():
            raise BadRequestError("the question is empty")
        exchanges = [Exchange(body.question)]
        prompt = writer.write(body.system, exchanges, max_tokens=sampling.max_tokens)
        header = {"template": template.name, "remark": mismatch(model, template)}
        split = ReplyFilter(model, prompt, writer.calls, ())
        return header, split, Request(prompt.ids, sampling, writer.stop)

    header, split, request = await asyncio.to_thread(prepare)
    trimmer = Trimmer()

    async def events() -> AsyncGenerator[Document]:
        yield header
        async with aclosing(service.worker.generate([request])) as drawn:
            async for _, event in drawn:
                visible, _ = split.push(event)
                yield written(replace(visible, text=trimmer.push(visible.text)))

    return events()


async def generate(service: Service, body: GenerateBody) -> AsyncGenerator[Document]:
    """The events of a request. Raises BadRequestError for one that is none."""
    try:
        request = request_of(body.model_extra or {})
    except (KeyError, TypeError):
        raise BadRequestError("the request comes from another version of the program") from None

    async def events() -> AsyncGenerator[Document]:
        async with aclosing(service.worker.generate([request])) as drawn:
            async for _, event in drawn:
                yield written(event)

    return events()


async def score(service: Service, body: ScoreBody) -> Document:
    """The scores of `LanguageModel.score`."""
    pairs = [(context, continuation) for context, continuation in body.pairs]
    return {"scores": await service.worker.call(lambda: service.model.score(pairs))}
