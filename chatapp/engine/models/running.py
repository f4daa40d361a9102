"""The `chatapp api` of this user that runs on this machine: its models, used in place of loading
them here, over the paths that every program uses.

It is known by a file that only its user can read, with the address, the key and the models. A
server that runs holds a lock; so one that has died is never taken for another program at its port.

Invariant: a model is used only if its name, its files and its precision are what would be loaded
here, and a reply is that of the same model here. What the protocol has no words for, such as hidden
states and changed parts, loads the model after all. No import of torch, and at the top none of the
modules that read a model's files.
"""

import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.parameters import Sampling, Values, seeded
from chatapp.common.paths import background_path
from chatapp.common.userfiles import UserError, hold, open_regular, parse_json_object, write_whole
from chatapp.engine.backends.remote.http import (
    SILENCE_SECONDS,
    ArrivingReply,
    Body,
    Client,
    ManyAtOnce,
    RefusedError,
    Server,
    json_object,
    reason_of,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Alternative, Event, Finished, Token
from chatapp.engine.model import LanguageModel, Request, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from filelock import FileLock
    from numpy.typing import NDArray

    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.engine.model import PieceTokenizer

Stamps = Mapping[str, tuple[int, int]]
"""Size and time of change of each file, by its path."""

_MOST = 2**20
"""Bytes of the file that are read."""

_CLAIM_SECONDS = 1.0
"""A command that looks whether a server runs holds the lock for a moment."""

_AT_ONCE = 8
"""Replies at a time, and prompts in a request for scores."""

_TOKEN = "token_id:"
"""What the protocol puts before a token's id where ids are wanted in place of texts."""

_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, UserError)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the server.

    place: its folder or file, if the name is a path. files: what it was loaded from. wanted: the
    precision and device that were requested for it. precision: the one that resulted. sampling: the
    values of the model's authors. asked_template: the requested one of its chats; template: the
    name of the one that resulted, and the remark on it.
    """

    name: str
    place: str
    files: Stamps
    wanted: tuple[str, str]
    precision: str
    context: int
    start: tuple[int, ...]
    sampling: Values
    asked_template: str = ""
    template: str = ""
    remark: str = ""

    def fits(self, name: str, precision: str, device: str) -> bool:
        """Whether this is the model that loading would give."""
        is_same = _place(name) == self.place if self.place else name == self.name
        return (
            is_same
            and precision in (self.wanted[0], self.precision)
            and device == self.wanted[1]
            and self.files == stamps(self.files)
        )


@dataclass(frozen=True, slots=True)
class OwnServer(Server):
    """The address of the running server. own_key: the one that its user gave it; often none."""

    own_key: str = field(default="", repr=False)

    def secret(self) -> str:
        """See `Server.secret`."""
        return self.own_key


@dataclass(frozen=True, slots=True)
class Running:
    """A running server."""

    pid: int
    server: OwnServer
    models: tuple[ServedModel, ...]


def describe(
    name: str, model: LanguageModel, wanted: tuple[str, str], sampling: Values
) -> ServedModel:
    """A loaded model for the file. wanted: the requested precision and device."""
    files = model.files
    parts = [] if files is None else [files, *filter(None, [files.base])]
    paths = [path for part in parts for path in _files_in(part.path)]
    return ServedModel(
        name,
        _place(name),
        stamps(map(str, paths)),
        wanted,
        model.precision,
        model.context,
        tuple(model.start),
        sampling,
    )


def claim(seconds: float = _CLAIM_SECONDS) -> "FileLock | None":
    """Become the server of this user while the lock is held; None if there is one already.

    A process that is killed releases it. seconds: to wait for it.
    """
    try:
        return hold(background_path().with_suffix(".lock"), seconds)
    except TimeoutError:
        return None


def note(running: Running) -> None:
    """Write the file, for this user only. Raises OSError."""
    write_whole(background_path(), json.dumps(asdict(running)), is_secret=True)


def forget(pid: int) -> None:
    """Remove the file, if it is that of this process."""
    with suppress(*_UNREADABLE):
        if _document()["pid"] == pid:
            background_path().unlink()


def running() -> Running | None:
    """The server that runs, if there is one."""
    try:
        document = _document()
        server = Running(
            document["pid"],
            OwnServer(**document["server"]),
            tuple(_model_of(row) for row in document["models"]),
        )
        lock = claim(0)
    except _UNREADABLE:
        return None
    if lock is None:
        return server
    lock.release()  # the server has died
    return None


def find(name: str, precision: str, device: str) -> tuple[OwnServer, ServedModel] | None:
    """The model on the server that runs, if it has it as it would be loaded here."""
    if not background_path().exists() or (server := running()) is None:
        return None
    for model in server.models:
        if model.fits(name, precision, device):
            return replace(server.server, model=model.name), model
    return None


def load_served(name: str, precision: str, device: str) -> "LanguageModel | None":
    """The model of the server that runs, as if it were loaded here; None if it has no such model.

    Raises ModelError.
    """
    if (match := find(name, precision, device)) is None:
        return None
    from chatapp.engine.models.loading import load_model

    load = partial(load_model, name, precision=precision, device=device)
    return RunningModel(*match, name, load)


def model_here(model: LanguageModel) -> LanguageModel:
    """A model in this process, whose inside can be seen and changed. Raises ModelError."""
    return model.here if isinstance(model, RunningModel) else model


class RunningModel(ManyAtOnce):
    """A `LanguageModel` on the running server that has the same files."""

    takes_messages = False
    concurrency = _AT_ONCE
    start: Sequence[int]
    files: "ModelFiles | None"

    def __init__(
        self, server: OwnServer, served: ServedModel, name: str, load: Callable[[], LanguageModel]
    ) -> None:
        """name: the model's, here. load: the model itself, into this process."""
        from chatapp.engine.models.resolving import find_local_model

        self.name, self.files = served.name, find_local_model(name)
        self.context, self.start = served.context, list(served.start)
        self._client, self._served, self._known_as, self._load = Client(server), served, name, load

    @property
    def precision(self) -> str:
        return self._served.precision

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokens

    @cached_property
    def _tokens(self) -> "PieceTokenizer":
        """The model's tokenizer, read at the first use."""
        from chatapp.engine.models.loading import read_tokenizer

        return read_tokenizer(self._known_as)

    @cached_property
    def here(self) -> LanguageModel:
        """The model in this process, loaded at the first use. Raises ModelError."""
        return self._load()

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`. What no protocol has loads the model: changed parts, forced
        tokens that it goes on after, and constraints on a part of the reply.
        """
        limits, is_ended = request.constraint, self._tokens.end_id in request.forced
        is_of_part = limits is not None and (limits.begun or limits.after or limits.is_optional)
        if request.interventions or is_of_part or (request.forced and not is_ended):
            return self.here.generate(request)
        if not request.ids:
            raise ValueError("there are no tokens to continue; expected at least one")
        self.check_room(len(request.ids) + len(request.forced))
        return self._forced(request) if is_ended else self._continue(request)

    def _forced(self, request: Request) -> Iterator[Event]:
        """A reply of which nothing is drawn."""
        tokens = self._tokens
        ids = request.forced[: list(request.forced).index(tokens.end_id)]
        stream = tokens.stream()
        for id in ids:
            yield Token(id, stream.push(id), tokens.piece(id), math.nan)
        count = len(request.ids)
        yield Finished("stop", stream.flush(), count, 0, len(ids), end_id=tokens.end_id)

    def _continue(self, request: Request) -> Iterator[Event]:
        """A reply by the server."""
        body = {"prompt": list(request.ids), "stop": list(request.stop), "logprobs": request.top}
        body["return_tokens_as_token_ids"] = True
        if (limits := request.constraint) is not None:
            form = {_KINDS[limits.kind]: limits.source, "spaced": limits.spaced}
            body["structured_outputs"] = form
        rest = request.sampling, request.cancel, self._tokens_in
        try:
            yield from reply_events(self._client, "completions", body, *rest)
        except RefusedError as refusal:
            yield Finished("error", message=str(refusal))

    def _tokens_in(self, choice: dict[str, Any]) -> Iterator[Token]:
        """The tokens in a chunk of a stream, with its text at the last one."""
        logprobs = choice["logprobs"]
        rows = list(zip(*(logprobs[name] for name in _LISTS), strict=True))
        limits = [logprobs.get(name, [0] * len(rows)) for name in ("forced", "forbidden")]
        for number, (name, logprob, top) in enumerate(rows):
            others = sorted((top or {}).items(), key=lambda pair: -pair[1])
            id = _id(name)
            yield Token(
                id,
                choice["text"] if number == len(rows) - 1 else "",
                self._tokens.piece(id),
                math.nan if logprob is None else logprob,
                tuple(
                    Alternative(_id(other), self._tokens.piece(_id(other)), value)
                    for other, value in others
                ),
                forced=bool(limits[0][number]),
                forbidden=limits[1][number],
            )

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """See `LanguageModel.score`."""
        self.check_pairs(pairs)
        scores: list[list[float]] = []
        for start in range(0, len(pairs), _AT_ONCE):
            prompts = [[*context, *rest] for context, rest in pairs[start : start + _AT_ONCE]]
            body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
            answer = self._client.post("completions", body, SILENCE_SECONDS)
            scores += [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
        return [row[len(context) :] for row, (context, _) in zip(scores, pairs, strict=True)]

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """See `LanguageModel.embed`; computed in this process."""
        return self.here.embed(ids, layer)


_LISTS = ("tokens", "token_logprobs", "top_logprobs")
_KINDS = {"schema": "json", "pattern": "regex", "grammar": "grammar"}
_FIT = ("valid", "forced_tokens", "forbidden_mass")


def _id(name: str) -> int:
    return int(name.removeprefix(_TOKEN))


def reply_events(
    client: Client,
    path: str,
    body: Body,
    sampling: Sampling,
    cancel: threading.Event | None,
    tokens_in: Callable[[dict[str, Any]], Iterable[Token]],
) -> Iterator[Event]:
    """The events of a reply by the running server; an error at the end where it breaks it off.

    body: the request without its sampling. tokens_in: the tokens in one of the `choices`. Raises
    RefusedError for a request that the server refuses.
    """
    values = {name: value for name, value in asdict(seeded(sampling)).items() if value is not None}
    options = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "model": client.server.model,
    }

    def read(data: str) -> dict[str, Any]:
        is_end = data == "[DONE]"
        return {"choices": []} if is_end else json_object(client.server, data, "one of its events")

    events = client.events(path, body | values | options, read, cancel or threading.Event())
    return _OwnReply(client.server, tokens_in).events(events)


class _OwnReply(ArrivingReply):
    """A reply of the running server, which stops it, and counts its tokens."""

    def __init__(
        self, server: Server, tokens_in: Callable[[dict[str, Any]], Iterable[Token]]
    ) -> None:
        self._server, self._tokens_in = server, tokens_in
        self._usage, self._end = dict[str, Any](), dict[str, Any]()
        self._last = list[Token]()

    def take(self, item: dict[str, Any]) -> Iterator[Token]:
        try:
            if "error" in item:
                raise ModelError(reason_of(self._server, item))
            self._usage = item.get("usage") or self._usage
            for choice in item["choices"]:
                if choice["finish_reason"] is None:
                    yield from self._tokens_in(choice)
                else:  # with the token that ended it, and the text that was held back
                    self._end, self._last = choice, list(self._tokens_in(choice))
                    self.reason = choice.get("stop_reason") or choice["finish_reason"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(str(error)) from None

    def failed(self, error: ModelError) -> str:
        if isinstance(error, RefusedError) and error.status != 200:
            raise RefusedError(error.reason or str(error)) from None
        return str(error)

    def finished(self, failure: str) -> Finished:
        message = "the running server has broken off the reply"
        message += f": {failure}" if failure else ""
        usage, end, last = self._usage, self._end, self._last[-1:]
        return Finished(
            self.reason or "error",
            end.get("text", ""),
            usage.get("prompt_tokens", 0),
            usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
            usage.get("completion_tokens", 0),
            message=end.get("misfit", "") if self.reason else message,
            end_id=last[0].id if last else None,
            end_logprob=last[0].logprob if last else None,
            **{name: end[name] for name in _FIT if name in end},
        )


def stamps(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The size and the time of change of files; those that are gone are left out."""
    result = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            result[path] = (status.st_size, status.st_mtime_ns)
    return result


def _document() -> dict[str, Any]:
    """What the file holds. Raises one of _UNREADABLE; only a regular file is opened."""
    with open_regular(background_path()) as file:
        return parse_json_object(file.read(_MOST).decode(), str(background_path()))


def _model_of(row: dict[str, object]) -> ServedModel:
    """Raises TypeError, KeyError, ValueError for other data."""
    served = ServedModel(**row)  # type: ignore[arg-type]
    files = {path: (size, time) for path, (size, time) in served.files.items()}
    wanted, start = tuple(served.wanted), tuple(served.start)
    return ServedModel(**(row | {"files": files, "wanted": wanted, "start": start}))  # type: ignore[arg-type]


def _place(name: str) -> str:
    """The absolute path of a name that is one; "" for any other name."""
    path = os.path.expanduser(name)
    return os.path.realpath(path) if os.path.exists(path) else ""


def _files_in(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]
