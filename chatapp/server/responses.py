"""OpenAI's protocol of responses: what it asks as a chat, and a chat's reply in its form.

Invariant: nothing is stored, so a request that continues an earlier response is refused.
Source of the forms: OpenAI's API reference, and what its Python library accepts in strict mode.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from chatapp.server import bodies
from chatapp.server.answers import Document, new_id
from chatapp.server.chats import ChatPiece, ChatReplies
from chatapp.server.prompts import BadRequestError
from chatapp.server.worker import Worker

_ROLES = ("system", "developer", "user", "assistant")


class ResponseTool(bodies.FunctionDefinition):
    """A tool that the response may call, as a function's definition."""

    type: Literal["function"]


class ResponseBody(bodies.Body):
    """A chat to be responded to."""

    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: bodies.Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    text: dict[str, Any] | None = None

    def as_chat(self) -> bodies.ChatBody:
        """The same request as one for a chat. Raises BadRequestError."""
        if self.previous_response_id is not None:
            raise BadRequestError(
                "no responses are stored here; send the whole chat as input",
                "previous_response_id",
            )
        items = (
            [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        )
        messages: list[Document] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for number, item in enumerate(items):
            messages += _messages(item, number)
        fields: Document = {
            "messages": messages,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": [
                {"type": "function", "function": tool.model_dump()} for tool in self.tools or ()
            ],
            "tool_choice": self._tool_choice,
            "response_format": self._format,
        }
        try:
            return bodies.ChatBody.model_validate(fields)
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            place = str(first["loc"][0])
            param = {"messages": "input", "response_format": "text.format"}.get(place, place)
            raise BadRequestError(f"{param}: {first['msg']}", param) from None

    @property
    def _tool_choice(self) -> Any:
        """As a chat has it, whose functions are named one level below."""
        if isinstance(self.tool_choice, dict):
            return {"type": "function", "function": {"name": self.tool_choice.get("name")}}
        return self.tool_choice

    @property
    def _format(self) -> Document | None:
        """As a chat has it, whose schema is one level below."""
        form = (self.text or {}).get("format")
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            return form
        return {"type": "json_schema", "json_schema": form}


def _messages(item: Document, number: int) -> list[Document]:
    """An item of the input as messages of a chat. Raises BadRequestError."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") in _ROLES:
        return [{"role": item["role"], "content": item.get("content")}]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
        call = {"id": item.get("call_id"), "function": function}
        return [{"role": "assistant", "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "content": item.get("output")}]
    if kind == "reasoning":  # no model here reads the thoughts of an earlier reply
        return []
    raise BadRequestError(
        f"input.{number} is of type {str(kind)[:100]!r}, which cannot be read", "input"
    )


class Response:
    """A reply to a chat as a response: its events while it is written, and the whole."""

    def __init__(self, body: ResponseBody, model: str, replies: ChatReplies) -> None:
        """model: its name here."""
        self._body, self._model, self._replies = body, model, replies
        self._id, self._created, self._number = new_id("resp_"), time.time(), 0
        self._output: list[Document] = []
        self._usage: Document | None = None
        self._status = "in_progress"
        self._details: Document | None = None

    async def events(self, worker: Worker) -> AsyncGenerator[Document]:
        """The events of the response. Raises BadRequestError for one that fails."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self.document())
        message: Document | None = None
        text, calls = "", list[Document]()
        async with aclosing(self._replies.pieces(worker)) as pieces:
            async for piece in pieces:
                if message is None and (piece.text or (piece.end and not piece.calls)):
                    message = _message()
                    for event in self._begin(message):
                        yield event
                if piece.text and message is not None:
                    text += piece.text
                    yield self._of_text(message, "delta", delta=piece.text, logprobs=[])
                if piece.end is not None:
                    calls = piece.calls
                    self._end(piece)
        if message is not None:
            for event in self._finish(message, text):
                yield event
        for call in calls:
            for event in self._call(call):
                yield event
        self._set_usage()
        yield self._event(f"response.{self._status}", response=self.document())

    def document(self) -> Document:
        """The response so far."""
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": None,
            "incomplete_details": self._details,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": list(self._output),
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [
                {"strict": False} | tool.model_dump(exclude_none=True) for tool in body.tools or ()
            ],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": self._usage,
        }

    def _event(self, kind: str, **fields: Any) -> Document:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1} | fields

    def _of_text(self, message: Document, what: str, **fields: Any) -> Document:
        """An event on the text of the message."""
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        return self._event(f"response.output_text.{what}", **place, **fields)

    def _begin(self, message: Document) -> Iterator[Document]:
        yield self._event("response.output_item.added", output_index=0, item=message)
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        yield self._event("response.content_part.added", **place, part=_part(""))

    def _finish(self, message: Document, text: str) -> Iterator[Document]:
        part, place = _part(text), {"item_id": message["id"], "output_index": 0, "content_index": 0}
        whole = message | {"status": self._status, "content": [part]}
        self._output.append(whole)
        yield self._of_text(message, "done", text=text, logprobs=[])
        yield self._event("response.content_part.done", **place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=whole)

    def _call(self, call: Document) -> Iterator[Document]:
        """The events of a call of a tool."""
        index, function = len(self._output), call["function"]
        item = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            **function,
        }
        self._output.append(item)
        opened = item | {"status": "in_progress", "arguments": ""}
        place = {"item_id": item["id"], "output_index": index}
        arguments = function["arguments"]
        of_arguments = "response.function_call_arguments"
        yield self._event("response.output_item.added", output_index=index, item=opened)
        yield self._event(f"{of_arguments}.delta", **place, delta=arguments)
        yield self._event(
            f"{of_arguments}.done", **place, name=function["name"], arguments=arguments
        )
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, piece: ChatPiece) -> None:
        """Record how the reply ended."""
        self._status = "completed"
        if piece.reason == "length":
            self._status, self._details = "incomplete", {"reason": "max_output_tokens"}

    def _set_usage(self) -> None:
        usage = self._replies.usage["usage"]
        self._usage = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def _message() -> Document:
    """The item of a reply's text, while it is empty."""
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }


def _part(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
