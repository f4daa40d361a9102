"""The `LanguageModel` protocol: the abilities of every model of this program.

Invariant: no import of torch, so that screens and commands can use these types before torch is
loaded.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from chatapp.common.parameters import Sampling as Sampling  # part of the protocol: a Request has it
from chatapp.common.userfiles import UserError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.events import Event, Finished

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.engine.files.model_files import ModelFiles


class TextStream(Protocol):
    """Tokens to text, one token at a time, never splitting a character."""

    def push(self, id: int) -> str:
        """The text that is complete once token `id` is added."""
        ...

    def flush(self) -> str:
        """The rest at the end, without the bytes of an unfinished character."""
        ...


NO_TOKEN = -1
"""In forced tokens: the end of a reply, of a model whose tokenizer names no token for it."""


class Tokenizer(Protocol):
    """Text to token ids and back. No text of a user ever becomes a special token."""

    end_id: int
    """The end-of-text token; without one, what separates texts instead: see `names_end`."""
    names_end: bool
    """Whether it has an end-of-text token; otherwise `end_id` ends no reply without constraint."""
    size: int
    """Number of token ids."""
    special: Mapping[str, int]
    """The special tokens by name; empty if unknown."""

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The tokens of a text.

        begins: whether it begins a sequence or follows a special token. Only there, SentencePiece
        puts a space before it.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str: ...
    def stream(self) -> TextStream: ...


class ContextOverflow(UserError, ValueError):
    """The prompt alone is longer than the model's window."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a model is to generate.

    ids: the prompt's tokens, at least one.
    sampling: how the reply's tokens are drawn.
    stop: strings that end the reply and are not part of it; the name of a special token stands
        for that token.
    cancel: setting it ends the generation within one token.
    top: how many alternatives each drawn token comes with.
    forced: the reply's first tokens. They come as if they had been drawn, with nan as their
        log-probability, and do not count towards `sampling.max_tokens`; nothing is drawn after
        one that ends a reply.
    messages: a chat that a model which takes messages replies to, instead of continuing `ids`:
        {"role", "content"} in each; roles are what its server knows. After a call of a tool, with
        "tool_calls" and "tool_call_id" as in OpenAI's protocol. Such a reply is not cut at `stop`,
        and cannot be forced.
    tools: those that this reply may call, as in that protocol; a call stands between `CALLING`'s
        marks in the reply.
    interventions: what is changed inside the model; only its own decoder takes any.
    constraint: what the reply may look like. Then it ends where that ends: strings of `stop` that
        name no special token, and repetition, do not end it.
    checked: whether the end says if the reply fits a schema; to check that can take seconds.
    bias: added to the logits of these ids; servers of other programs never see it.
    """

    ids: Sequence[int]
    sampling: Sampling
    stop: Sequence[str] = ()
    cancel: threading.Event | None = None
    top: int = 0
    forced: Sequence[int] = ()
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    interventions: Interventions = UNCHANGED
    constraint: Constraint | None = None
    checked: bool = True
    bias: Mapping[int, float] = field(default_factory=dict)


Generate = Callable[[Request], Iterator[Event]]
"""`LanguageModel.generate` of a model, or of several sequences `together`."""


class LanguageModel(Protocol):
    """A causal language model with its tokenizer."""

    name: str
    """The user's name for it: of a known model, a folder, a hub id, a server and its model."""
    files: "ModelFiles | None"
    """Its source files; None for a model that is not on this machine."""
    start: Sequence[int]
    """Special tokens that it puts before each sequence by itself; often none."""
    context: int
    """Longest sequence in tokens, prompt and reply together."""
    takes_messages: bool
    """Whether it can reply to `Request.messages`, because its server renders them."""

    @property
    def precision(self) -> str:
        """The number format of its matrix products, such as "float32"; "" if a server does not
        report it.
        """
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(self, request: Request) -> Iterator[Event]:
        """Yield `Token`s and one `Finished`. The same request and seed give the same text.

        Raises ContextOverflow when the prompt leaves no room for a single token, ValueError when it
        is empty, ConstraintError when the model cannot follow the constraint.
        """
        ...

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """Continue several sequences, in parallel if the model can.

        requests: taken one by one, each as soon as there is room for it. Yields events with the
        number of their request, from 0; the events of each request are in order, and equal to those
        of `generate`. A request that `generate` would refuse ends as `error` with the reason as its
        message, and the others continue.
        """
        ...

    def together(self, count: int) -> Generate:
        """A `generate` for up to `count` sequences whose tokens are drawn in turn.

        Each sequence gives what it would give alone; none is recomputed because of another, and if
        the model can, one pass serves all.
        """
        ...

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Log-probabilities of each continuation's tokens given its context.

        pairs: (context ids, continuation ids), neither empty. Returns one list per pair, as long as
        its continuation, in nats. Raises ContextOverflow when a pair together exceeds `context`.
        """
        ...

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """The mean hidden state of `ids`: (hidden size,).

        layer: 0 is the embeddings, n the output of block n, and the last one, also -1, that of the
        final norm: the numbering of transformers' `hidden_states`. Raises ContextOverflow when
        `ids` exceed `context`, ValueError for another layer.
        """
        ...


def one_after_another(
    model: LanguageModel, requests: Iterable[Request]
) -> Iterator[tuple[int, Event]]:
    """`LanguageModel.generate_many` by `generate`, one request after another."""
    for number, request in enumerate(requests):
        try:
            for event in model.generate(request):
                yield number, event
        except ValueError as error:  # ContextOverflow is one
            yield number, Finished("error", message=str(error))


def whole_replies(events: Iterable[tuple[int, Event]]) -> Iterator[tuple[str, Finished]]:
    """The text and the end of each of several replies, in the order of their requests.

    A reply is yielded as soon as it and all before it have ended.
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


@runtime_checkable
class PieceTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also show a single token.

    text_size: one more than the largest id that text can become.
    """

    text_size: int

    def piece(self, id: int) -> str: ...
