"""A `LanguageModel` on a server that speaks OpenAI's protocol of completions, chats, or both.

`connect` finds the server's models, their windows and the protocol, before any text of the user is
sent, so no message is sent twice. Windows are never guessed from names.

Invariants: text that has arrived is kept, whatever happens to the connection. A text that must
continue unchanged uses the completions protocol, or fails.
"""

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.parameters import PARAMETERS
from chatapp.common.paths import SERVERS
from chatapp.engine.backends.remote.http import (
    NO_PATH,
    Begin,
    Body,
    Client,
    ManyAtOnce,
    Server,
    at_once,
    nonsense,
)
from chatapp.engine.backends.remote.protocol import (
    RemoteTokenizer,
    ServedReply,
    score_continuation,
    token_count,
)
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.decoder.interventions import check_changeable
from chatapp.engine.errors import ModelError
from chatapp.engine.events import THINKING, Event, Finished
from chatapp.engine.model import Request, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.engine.files.model_files import ModelFiles


_EXTENSIONS = frozenset(
    field
    for parameter in PARAMETERS.values()
    if parameter.is_extension
    for field in parameter.request_fields
)
"""Not in the protocol, but sent so that servers do not use their own defaults."""

_OPTIONAL = (
    _EXTENSIONS,
    frozenset({"logprobs", "top_logprobs"}),
    frozenset({"seed"}),
    frozenset({"stream_options"}),
)
"""Optional parts of a request. If a server refuses one field of a group, it would refuse the
others.
"""

_BAD_REQUEST = (400, 422, 500)
"""Statuses with which servers refuse a field: llama-cpp-python gives 500 for log-probabilities."""

_MOST_STOPS = 4
"""The protocol's limit of stop strings; this program checks the rest."""

_AROUND = 4
"""Approximate number of tokens of a template around a message."""


class RemoteModel(ManyAtOnce):
    """A `LanguageModel` on a server.

    client: requests to the server and its model. takes_messages: whether it replies to chats; it
    completes texts if the server can do that, too. remark: what the user should know, in whole
    sentences; often empty.
    """

    files: "ModelFiles | None" = None
    start: Sequence[int] = ()
    precision = ""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        context: int,
        takes_messages: bool = False,
        remark: str = "",
    ) -> None:
        self.name = name
        self.context = context
        self.takes_messages = takes_messages
        self.remark = remark
        self.server = client.server
        self.tokenizer = RemoteTokenizer(client)
        self._client = client
        self._completes = not takes_messages or self.server.protocol != "chat"
        self._refused: set[str] = set()
        self._mentioned: set[str] = set()
        self._mentioning = threading.Lock()

    @property
    def estimates_tokens(self) -> bool:
        """Whether counts of prompt tokens are estimates: the server cuts no texts, or renders chats
        itself.
        """
        return self.takes_messages or not self.tokenizer.is_served

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`. Without `top`, log-probabilities are not requested.

        A text ends as an error if the server supports only chats. Raises InterventionError because
        a server's model cannot be changed.
        """
        check_changeable(self.name, request.interventions, is_changeable=False)
        constraint = request.constraint
        if constraint is not None and not constraint.is_optional:  # the reply ends where that does
            if constraint.kind != "schema":
                raise ConstraintError(
                    f"{self.name}: servers take a JSON schema, but no {constraint.kind}; that "
                    "needs a model on this machine"
                )
            sampling = replace(request.sampling, max_repeats=0)
            request = replace(request, stop=(), sampling=sampling)
        if request.messages:
            return self._reply(request)
        if not self._completes:
            return iter([Finished("error", message=str(self._no_completions()))])
        return self._complete(request)

    def _complete(self, request: Request) -> Iterator[Event]:
        """The continuation of a text."""
        if not request.ids:
            raise ValueError("there are no tokens to continue; expected at least one")
        ids = [*request.ids, *request.forced]
        reply = self._begun(request, lambda: self.tokenizer.decode(ids), len(ids))
        body: Body = {"stop": list(request.stop[:_MOST_STOPS])} if request.stop else {}
        if request.top:
            body["logprobs"] = request.top
        # The server's own tokens are sent as numbers, anything else as text.
        is_known = all(map(self.tokenizer.knows, ids))
        body["prompt"] = ids if is_known else without_surrogates(self.tokenizer.decode(ids))
        return self._run("completions", body, reply, request)

    def _reply(self, request: Request) -> Iterator[Event]:
        """The reply to messages."""
        sent = [_writable(message) for message in request.messages]
        calls = [message["tool_calls"] for message in sent if "tool_calls" in message]
        texts = [message["content"] for message in sent]
        texts += [json.dumps(part) for part in (*request.tools, *calls)]
        count = _AROUND * len(sent) + sum(len(self.tokenizer.encode(text)) for text in texts)
        reply = self._begun(replace(request, stop=()), lambda: "\n".join(texts[: len(sent)]), count)
        body: Body = {"messages": sent}
        if request.tools:
            body["tools"] = _writable(request.tools)
        if request.top:
            body |= {"logprobs": True, "top_logprobs": request.top}
        return self._run("chat/completions", body, reply, request)

    def _begun(self, request: Request, prompt: Callable[[], str], count: int) -> ServedReply:
        self.check_room(count, about="about ")
        room = self.context - count
        return ServedReply(request, self.server, self.tokenizer, room, prompt, count)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """See `LanguageModel.score` and `score_continuation`. Raises ModelError."""
        self.check_pairs(pairs)
        return list(dict(sorted(at_once(map(self._scoring, pairs), self.concurrency))).values())

    def _scoring(self, pair: tuple[Sequence[int], Sequence[int]]) -> Begin[list[float]]:
        return lambda given_up: iter([score_continuation(self._client, self.tokenizer, *pair)])

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """Raises ModelError: the protocol gives no hidden states."""
        raise ModelError(
            f"{self.name}: a server does not show a model's hidden states; they need a model on "
            "this machine"
        )

    def _run(self, path: str, body: Body, reply: ServedReply, request: Request) -> Iterator[Event]:
        """Send a request and yield the events of the reply."""
        yield from reply.begin()
        if reply.reason is not None:  # one of the forced tokens ends it
            yield reply.finished("")
            return
        body |= self._options(request.sampling, reply.most) | _response_format(request.constraint)
        body = {name: part for name, part in body.items() if name not in self._refused}
        cancel = request.cancel or threading.Event()
        text = ""
        with closing(self._client.events(path, body, reply.read, cancel, self._simpler)) as events:
            for event in reply.events(events):
                text += event.text
                if isinstance(event, Finished):
                    event = _checked(event, text, request.constraint)
                    remark = event.message or self._options_in_words(request.sampling)
                    event = replace(event, message=remark)
                yield event

    def _options(self, sampling: Sampling, most: int) -> Body:
        """The body of a request for `most` tokens, without its prompt."""
        body: Body = {
            "model": self.server.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        options = replace(sampling, max_tokens=most)
        for name, parameter in PARAMETERS.items():
            value = getattr(options, name)
            if value is not None:
                body |= dict.fromkeys(parameter.request_fields, value)
        return body

    def _simpler(self, body: Body, status: int, text: str) -> Body | None:
        """The same request without an optional part that the server's refusal names, or None."""
        if "prompt" in body and self.takes_messages and status in NO_PATH:
            self._completes = False
            raise self._no_completions()
        if status not in _BAD_REQUEST:
            return None
        refused: set[str] = set()
        for group in _OPTIONAL:
            if any(name in body and re.search(rf"\b{name}\b", text) for name in group):
                refused |= group
        self._refused |= refused
        return {name: body[name] for name in body if name not in refused} if refused else None

    def _no_completions(self) -> ModelError:
        return ModelError(
            f"{self.server.url}: this server offers chats only; continuing a text needs a "
            "server with OpenAI's completions API"
        )

    def _options_in_words(self, sampling: Sampling) -> str:
        """The options that the server may have ignored, each named once per model."""
        unheeded: list[str] = []
        uncertain: list[str] = []
        with self._mentioning:
            for name, parameter in PARAMETERS.items():
                can_be_sent = not self._refused.issuperset(parameter.request_fields)
                is_certain = can_be_sent and not parameter.is_extension
                is_usual = getattr(sampling, name) == parameter.default
                is_needless = is_certain or is_usual or parameter.is_heeded_here
                if not (is_needless or name in self._mentioned):
                    (uncertain if can_be_sent else unheeded).append(name)
            self._mentioned.update(unheeded, uncertain)
        sentences = []
        if unheeded:
            sentences.append(f"The server does not support {' and '.join(unheeded)}.")
        if uncertain:
            sentences.append(
                f"Not every server follows {' and '.join(uncertain)}, which OpenAI's API "
                "does not define."
            )
        return " ".join(sentences)


def _response_format(constraint: Constraint | None) -> Body:
    """The field of OpenAI's protocol for a schema."""
    if constraint is None or constraint.is_optional:
        return {}
    schema = {"name": "answer", "schema": parse_json(constraint.source), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _checked(finished: Finished, text: str, constraint: Constraint | None) -> Finished:
    """The end of a reply, with whether it fits: not every server heeds the schema."""
    if constraint is None or constraint.is_optional:
        return finished
    why_not = misfit(text.rpartition(THINKING[1])[2].strip(), constraint.source)
    if finished.reason != "stop":
        why_not = why_not or f"it ended with {finished.reason!r}"
    message = f"the reply does not fit its schema: {why_not}" if why_not else ""
    return replace(finished, valid=not why_not, message=finished.message or message)


def _writable(value: Any) -> Any:
    """A copy of a JSON value with every text encodable as UTF-8."""
    return parse_json(without_surrogates(json.dumps(value, ensure_ascii=False)))


def served_models(client: Client) -> dict[str, int]:
    """The models on a server, in its order, and their windows in tokens; 0 if unknown. Raises
    ModelError.
    """
    rows = client.get("models").get("data")
    if not isinstance(rows, list):
        raise nonsense(client.server, "its list of models is not a list")
    return {
        row["id"]: _context(row)
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    }


def _context_of_llama_cpp(client: Client) -> int:
    """The window that llama.cpp's own server reports at its own path; 0 for other servers."""
    try:
        settings = client.get("/props").get("default_generation_settings")
    except ModelError:
        return 0
    return token_count(settings.get("n_ctx")) if isinstance(settings, dict) else 0


def _context(row: dict[str, Any]) -> int:
    """The window in an entry of the list, by the keys of vLLM and llama-cpp-python; 0 if absent."""
    meta = row.get("meta")
    in_meta = meta.get("n_ctx") if isinstance(meta, dict) else 0
    return token_count(row.get("max_model_len")) or token_count(in_meta)


_ASSUMED_CONTEXT = 2048
"""The window if neither the server nor the settings give one: even old and small models have it."""


def connect(server: Server, *, name: str) -> RemoteModel:
    """Connect to a model on a server. Raises ModelError.

    name: the user's name for it.
    """
    remarks = []
    if server.key and server.url.startswith("http://") and not server.is_here:
        remarks.append(
            f"The key is sent to {urlsplit(server.url).hostname} unencrypted; use https."
        )
    client = Client(server)
    models = served_models(client)
    model = _chosen(server, models)
    context = server.context or models[model] or _context_of_llama_cpp(client)
    if not context:
        context = _ASSUMED_CONTEXT
        remarks.append(
            f"The server does not report its context window; {context:,} tokens are "
            f"assumed unless {SERVERS} says otherwise."
        )
    client.server = replace(server, model=model, context=context)
    return RemoteModel(
        client,
        name=name if "#" in name else f"{name}#{model}",
        context=context,
        takes_messages=_converses(client),
        remark=" ".join(remarks),
    )


def _chosen(server: Server, models: Collection[str]) -> str:
    """The model that the server address selects. Raises ModelError."""
    names = ", ".join(models)
    if not models:
        raise ModelError(f"{server.url}: the server has no model")
    if server.model and server.model not in models:
        raise ModelError(f"{server.url}: there is no model {server.model!r}; it has {names}")
    if not server.model and len(models) > 1:
        raise ModelError(
            f"{server.url}: the server has several models; put one of them after a #: {names}"
        )
    return server.model or names


def _converses(client: Client) -> bool:
    """Whether to use the chat protocol. Raises ModelError where that is the only choice but absent.

    The probe is a request that no server can fulfil, a reply to a number: llama-cpp-python replies
    to an empty one, at length.
    """
    server = client.server
    if server.protocol != "auto":
        return server.protocol == "chat"
    body = {"model": server.model, "max_tokens": 1}
    if client.has_path("chat/completions", body | {"messages": 0}):
        return True
    if not client.has_path("completions", body | {"prompt": 0}):
        raise ModelError(
            f"{server.url}: the server offers neither chat nor completions of OpenAI's API"
        )
    return False
