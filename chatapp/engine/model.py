"""The `LanguageModel` protocol: what every model of this program can do.

Keep: free of torch, so that screens and commands can name these types before torch is loaded.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from chatapp.common.parameters import Sampling as Sampling  # the protocol's: a Request has it
from chatapp.common.userfiles import UserError
from chatapp.engine.events import Event, Finished

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TextStream(Protocol):
    """Tokens to text, one token at a time, never splitting a character."""

    def push(self, id: int) -> str:
        """The text that is complete once token `id` is added."""
        ...

    def flush(self) -> str:
        """What is left at the end; incomplete bytes show as U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. No text of a user ever becomes a special token."""

    end_id: int
    """The end-of-text token."""
    size: int
    """Number of token ids."""
    special: Mapping[str, int]
    """The special tokens by their names; none where they are out of reach."""

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The tokens of a text.

        begins: whether it begins a sequence or follows a special token. There SentencePiece
            puts a space before it, and nowhere else.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str: ...
    def stream(self) -> TextStream: ...


class ContextOverflow(UserError, ValueError):
    """The prompt alone is longer than the model's window."""


@dataclass(frozen=True, slots=True)
class Request:
    """What `LanguageModel.generate` is given, as one of many."""

    ids: Sequence[int]
    sampling: Sampling
    stop: Sequence[str] = ()
    cancel: threading.Event | None = None
    top: int = 0


class Generate(Protocol):
    """What `LanguageModel.generate` is to its caller."""

    def __call__(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]: ...


class LanguageModel(Protocol):
    """A causal language model with its tokenizer."""

    name: str
    """What the user called it: "bundled", a folder, a hub id, a server and its model."""
    folder: Path | None
    """Where its files lie; None for a model that is not on this machine."""
    start: Sequence[int]
    """Special tokens that it puts before each sequence by itself; often none."""
    context: int
    """Longest sequence in tokens, prompt and reply together."""

    @property
    def precision(self) -> str:
        """What its matrices are multiplied as, such as "float32"; "" where a server keeps it."""
        ...

    tokenizer: Tokenizer

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """Continue `ids`; yields `Token`s and one `Finished`.

        stop: strings that end the reply and are no part of it; the name of a special token
            stands for that token.
        The same ids, sampling and seed give the same text. Setting `cancel` ends the
        generation within one token. `top` asks for that many alternatives a token.
        Raises ContextOverflow when `ids` leave no room for a single token, ValueError
        when `ids` is empty.
        """
        ...

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """Continue several sequences, at once where the model can.

        requests: taken one by one, each as soon as there is room for it.
        Yields events, each with the number of its request, from 0: of each request in their
        order, and what `generate` would give of it alone. A request that `generate` would not
        take ends as `error` with the reason as its message, and the others go on.
        """
        ...

    def together(self, count: int) -> Generate:
        """A `generate` for sequences of which a token is drawn in turn, at most `count` of them.

        Each gives what it would give alone; none is computed anew for the sake of another, and
        where the model can, one pass serves all.
        """
        ...

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Log-probabilities of each continuation's tokens given its context.

        pairs: (context ids, continuation ids), neither empty. Returns one list a pair,
        as long as its continuation, in nats. Raises ContextOverflow when a pair together
        exceeds `context`.
        """
        ...

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """The mean hidden state of `ids`: (hidden size,).

        layer: 0 is the embeddings, n the output of block n, and the last one, also -1, that
            of the final norm: the numbering of transformers' `hidden_states`.
        Raises ContextOverflow when `ids` exceed `context`, ValueError for another layer.
        """
        ...


@runtime_checkable
class ChatModel(LanguageModel, Protocol):
    """A model that is given a chat as messages, because only its server knows its template."""

    def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """Reply to `messages`; yields `Token`s and one `Finished`, as `generate` does.

        messages: {"role", "content"} each, at least one; roles are what the server knows. After
            a call of a tool, with "tool_calls" and "tool_call_id" as in OpenAI's protocol.
        tools: those that may be called, as in that protocol; a call stands between `CALLING`'s
            marks in the reply.
        Raises ContextOverflow when they leave no room for a single token.
        """
        ...

    def converse_many(
        self, chats: Iterable[Sequence[Mapping[str, str]]], sampling: Sampling
    ) -> Iterator[tuple[int, Event]]:
        """Reply to the messages of several chats, as `generate_many` does to several requests."""
        ...


def one_after_another(
    model: LanguageModel, requests: Iterable[Request]
) -> Iterator[tuple[int, Event]]:
    """`LanguageModel.generate_many` by `generate`."""
    for number, request in enumerate(requests):
        try:
            for event in model.generate(
                request.ids,
                request.sampling,
                stop=request.stop,
                cancel=request.cancel,
                top=request.top,
            ):
                yield number, event
        except ValueError as error:  # ContextOverflow is one
            yield number, Finished("error", message=str(error))


def whole_replies(events: Iterable[tuple[int, Event]]) -> Iterator[tuple[str, Finished]]:
    """The text and the end of each reply of many, in the order of their requests.

    A reply comes as soon as it and all before it have ended.
    """
    texts: dict[int, list[str]] = {}
    ended: dict[int, Finished] = {}
    coming = 0
    for number, event in events:
        texts.setdefault(number, []).append(event.text)
        if isinstance(event, Finished):
            ended[number] = event
        while coming in ended:
            yield "".join(texts.pop(coming)), ended.pop(coming)
            coming += 1


class PieceTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also show a single token.

    text_size: one more than the largest id that text can become.
    """

    text_size: int

    def piece(self, id: int) -> str: ...
