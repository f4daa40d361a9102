"""A `ChatModel` on a server that speaks OpenAI's chat protocol.

Messages go in, and the server writes them in its model's own template. Ollama, LM Studio, vLLM,
llama.cpp's server, llama-cpp-python's and hosted services do that.

Keep: a text that is to go on as it stands goes through the protocol of completions or nowhere.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.backends.remote.http import NO_PATH, Body, at_once
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import Sampling
from chatapp.engine.stopping import StopFilter

_AROUND = 4
"""About how many tokens a template puts around a message."""


class RemoteChatModel(RemoteModel):
    """A `ChatModel` on a server; what it completes as text, where the server has that too."""

    _completes = True

    def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """See `ChatModel.converse`. Without `top`, log-probabilities are not asked for."""
        sent = [_writable(message) for message in messages]
        if not sent:
            raise ValueError("there are no messages to reply to; expected at least one")
        count = sum(_AROUND + len(self._text.encode(message["content"])) for message in sent)
        calls = [message["tool_calls"] for message in sent if "tool_calls" in message]
        count += sum(len(self._text.encode(json.dumps(part))) for part in (*tools, *calls))
        prompt = "\n".join(message["content"] for message in sent)
        reply = self._open_reply(prompt, count, sampling, StopFilter(()))
        body = self._options(sampling, reply.most) | {"messages": sent}
        if tools:
            body["tools"] = _writable(tools)
        if top:
            body |= {"logprobs": True, "top_logprobs": top}
        return self._run("chat/completions", body, reply, sampling, cancel)

    def converse_many(
        self, chats: Iterable[Sequence[Mapping[str, str]]], sampling: Sampling
    ) -> Iterator[tuple[int, Event]]:
        """See `ChatModel.converse_many`. Several at once, as `at_once` says."""

        def begin(
            messages: Sequence[Mapping[str, str]], given_up: threading.Event
        ) -> Iterator[Event]:
            return self.converse(messages, sampling, cancel=given_up)

        return at_once(partial(begin, messages) for messages in chats)

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """See `LanguageModel.generate`. Ends as an error where the server has chats alone."""
        if not self._completes or self.server.protocol == "chat":
            return iter([Finished("error", message=str(self._no_completions()))])
        return super().generate(ids, sampling, stop=stop, cancel=cancel, top=top)

    def _simpler(self, body: Body, status: int, text: str) -> Body | None:
        if "prompt" in body and status in NO_PATH:
            self._completes = False
            raise self._no_completions()
        return super()._simpler(body, status, text)

    def _no_completions(self) -> ModelError:
        return ModelError(
            f"{self.server.url}: this server is used for chats alone; to go on with a text as it "
            "stands takes one that has OpenAI's protocol of completions too"
        )


def _writable(value: Any) -> Any:
    """A value of JSON that can be written as UTF-8."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Mapping):
        return {_writable(name): _writable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(part) for part in value]
    return value
