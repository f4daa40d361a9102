"""A model on a server that speaks OpenAI's chat protocol.

It takes messages, and the server renders them in its model's own template: Ollama, LM Studio, vLLM,
llama.cpp's server, llama-cpp-python's and hosted services do.

Invariant: a text that must continue unchanged uses the completions protocol or fails.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.backends.remote.constraints import ending_with_constraint, response_format
from chatapp.engine.backends.remote.http import NO_PATH, Body
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import Request
from chatapp.engine.stopping import StopFilter

_AROUND = 4
"""Approximate number of tokens of a template around a message."""


class RemoteChatModel(RemoteModel):
    """A `RemoteModel` that takes messages; it completes texts if the server can do that, too."""

    takes_messages = True
    _completes = True

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`. Without `top`, log-probabilities are not requested.

        A text ends as an error if the server supports only chats.
        """
        if request.messages:
            return self._reply(request)
        if not self._completes or self.server.protocol == "chat":
            return iter([Finished("error", message=str(self._no_completions()))])
        return super().generate(request)

    def _reply(self, request: Request) -> Iterator[Event]:
        """The reply to messages."""
        sent = [_writable(message) for message in request.messages]
        count = sum(_AROUND + len(self._text.encode(message["content"])) for message in sent)
        calls = [message["tool_calls"] for message in sent if "tool_calls" in message]
        count += sum(len(self._text.encode(json.dumps(part))) for part in (*request.tools, *calls))
        prompt = "\n".join(message["content"] for message in sent)
        request = ending_with_constraint(self.name, request)
        reply = self._open_reply(lambda: prompt, count, request, StopFilter(()))
        body = self._options(request.sampling, reply.most) | {"messages": sent}
        body |= response_format(request.constraint)
        if request.tools:
            body["tools"] = _writable(request.tools)
        if request.top:
            body |= {"logprobs": True, "top_logprobs": request.top}
        return self._run("chat/completions", body, reply, request)

    def _simpler(self, body: Body, status: int, text: str) -> Body | None:
        if "prompt" in body and status in NO_PATH:
            self._completes = False
            raise self._no_completions()
        return super()._simpler(body, status, text)

    def _no_completions(self) -> ModelError:
        return ModelError(
            f"{self.server.url}: this server offers chats only; continuing a text needs a "
            "server with OpenAI's completions API"
        )


def _writable(value: Any) -> Any:
    """Copy a JSON value with every text encodable as UTF-8."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Mapping):
        return {_writable(name): _writable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(part) for part in value]
    return value
