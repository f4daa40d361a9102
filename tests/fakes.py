"""Fakes that the tests of every package share: a scripted model and its tokenizer.

Invariant: `ScriptedModel` keeps every promise of the `LanguageModel` protocol (events,
reasons, cancelling, reuse of a common prefix), so that code tested with it meets nothing new
in a real model but better replies.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.files.model_files import ModelFiles, TokenizerFiles
from chatapp.engine.model import ContextOverflow, Generate, Request, Sampling, one_after_another
from chatapp.prompting.template import ShippedTemplate

_WORD = re.compile(r" ?[^\s]+|\s")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _WordStream:
    def __init__(self, tokenizer: "WordTokenizer") -> None:
        self._tokenizer = tokenizer

    def push(self, id: int) -> str:
        return self._tokenizer.piece(id)

    def flush(self) -> str:
        return ""


class WordTokenizer:
    """One token a word with the space before it, numbered in the order of appearance.

    Any text round-trips (but for lone surrogates, which become U+FFFD), and the tokens of
    two texts are the tokens of their concatenation when the second does not go on a word.
    """

    end_id, names_end = 0, True

    def __init__(self, special: Sequence[str] = ()) -> None:
        """special: names of special tokens; they are encoded by their id alone."""
        self._pieces = ["<|endoftext|>", *special]
        self.special = {name: id for id, name in enumerate(self._pieces)}
        self._ids: dict[str, int] = {}
        self.encoded = 0
        """How many texts were encoded: for tests of what is remembered."""

    @property
    def size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        self.encoded += 1
        return [self.token(word) for word in _WORD.findall(_SURROGATE.sub("\ufffd", text))]

    def token(self, piece: str) -> int:
        """The id of a piece of text, whether or not `encode` would ever produce it."""
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def piece(self, id: int) -> str:
        return self._pieces[id]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[id] for id in ids)

    def stream(self) -> _WordStream:
        return _WordStream(self)


def files_in(folder: Path) -> ModelFiles:
    """The files of a model in a folder, which need not hold a config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    template = folder / TEMPLATE_FILE
    tokenizer = TokenizerFiles(folder, config)
    return ModelFiles(folder, config, None, tokenizer, template if template.is_file() else None)


class ScriptedModel:
    """A `LanguageModel` that says what the test wants.

    replies: what to say, in turn, the last one for ever after; or a function of the prompt.
        A reply is given exactly as written: a template's lead (" Hello") is up to the test.
        An Exception among them ends that generation as `error` with its text.
    delay: seconds before each token. context: the window in tokens.
    by_character: generate one token a character, which `encode` never would.
    reason: why a reply that was said to its end has ended.
    prompts, samplings: what each call was given. finished: what each call ended with.
    folder: of its files. special: names of special tokens.
    gate: while set to an Event that is not set, no token leaves; `cancel` still works.

    Stop strings are not looked at. Cancelling takes effect at once, also inside a delay.
    """

    def __init__(
        self,
        replies: Sequence[str | Exception] | Callable[[str], str],
        *,
        delay: float = 0.0,
        context: int = 1024,
        by_character: bool = False,
        reason: FinishReason = "stop",
        name: str = "scripted",
        folder: Path | None = None,
        special: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.files = None if folder is None else files_in(folder)
        self.context = context
        self.precision = "float32"
        self.takes_messages = False
        self.tokenizer = WordTokenizer(special)
        self.start: list[int] = []
        self.delay = delay
        self.gate: threading.Event | None = None
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []
        self.stops: list[tuple[str, ...]] = []
        self.finished: list[Finished] = []
        self._replies = replies
        self._by_character = by_character
        self._reason: FinishReason = reason
        self._cached: list[int] = []

    def generate(self, request: Request) -> Iterator[Event]:
        ids = [*request.ids, *request.forced]
        if not ids:
            raise ValueError("the prompt is empty")
        if len(ids) >= self.context:
            raise ContextOverflow(f"{len(ids)} tokens do not fit a window of {self.context}")
        started = time.perf_counter()
        stream = self.tokenizer.stream()
        for place, id in enumerate(request.forced):
            if id == self.tokenizer.end_id:
                size = len(request.ids)
                yield Finished("stop", stream.flush(), prompt_tokens=size, reply_tokens=place)
                return
            yield Token(id, stream.push(id), self.tokenizer.piece(id), math.nan)
        prompt = self.tokenizer.decode(ids)
        reply = self._reply(prompt)
        self.prompts.append(prompt)
        self.samplings.append(request.sampling)
        self.stops.append(tuple(request.stop))
        reused = self._reuse(ids)
        sequence = self._cached = ids

        def finished(reason: FinishReason, count: int, first: float, error: str = "") -> Finished:
            end = Finished(
                reason,
                prompt_tokens=len(request.ids),
                reused_tokens=reused,
                reply_tokens=len(request.forced) + count,
                time_to_first_token=first,
                seconds=time.perf_counter() - started,
                message=error,
            )
            self.finished.append(end)
            return end

        if isinstance(reply, Exception):
            yield finished("error", 0, 0.0, str(reply))
            return
        pieces = list(reply) if self._by_character else _WORD.findall(reply)
        first = 0.0
        for count, piece in enumerate(pieces):
            if not self._wait(request.cancel):
                yield finished("cancelled", count, first)
                return
            if count >= request.sampling.max_tokens:
                yield finished("length", count, first)
                return
            if len(sequence) >= self.context:
                yield finished("context", count, first)
                return
            first = first or time.perf_counter() - started
            id = self.tokenizer.token(piece)
            sequence.append(id)
            others = tuple(Alternative(id, piece, -0.5) for _ in range(request.top))
            yield Token(id, piece, piece, -0.5, others)
        yield finished(self._reason, len(pieces), first)

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """One after another."""
        return one_after_another(self, requests)

    def together(self, count: int) -> Generate:
        """Each by itself."""
        return self.generate

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Minus one nat for every token."""
        for context, continuation in pairs:
            if len(context) + len(continuation) > self.context:
                raise ContextOverflow("a pair is longer than the window")
        return [[-1.0] * len(continuation) for _, continuation in pairs]

    def embed(self, ids: Sequence[int], layer: int = -1) -> NDArray[np.float32]:
        """How often each of 64 groups of tokens occurs."""
        counts = np.zeros(64, dtype=np.float32)
        for id in ids:
            counts[id % 64] += 1
        return counts / max(1, len(ids))

    def _reply(self, prompt: str) -> str | Exception:
        if callable(self._replies):
            return self._replies(prompt)
        return self._replies[min(len(self.prompts), len(self._replies) - 1)]

    def _reuse(self, ids: Sequence[int]) -> int:
        """Tokens shared with the last call; the last of a prompt is always computed anew."""
        shared = 0
        for old, new in zip(self._cached, ids[:-1], strict=False):
            if old != new:
                break
            shared += 1
        return shared

    def _wait(self, cancel: threading.Event | None) -> bool:
        """Let the delay pass and the gate open; False as soon as `cancel` is set."""
        if cancel is None:
            if self.gate is not None:
                self.gate.wait()
            time.sleep(self.delay)
            return True
        while self.gate is not None and not self.gate.is_set():
            if cancel.wait(0.002):
                return False
        return not (cancel.wait(self.delay) if self.delay else cancel.is_set())


def reworded(template: ShippedTemplate, **texts: Any) -> ShippedTemplate:
    """A template with some of its texts changed."""
    return ShippedTemplate.of(replace(template.wording, **texts))
