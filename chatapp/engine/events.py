"""What generation yields: any number of `Token`s, then exactly one `Finished`."""

import math
from dataclasses import dataclass
from typing import Any, Literal

THINKING = ("<think>", "</think>")
"""Marks around the thought that a server separates from its reply."""

CALLING = ("<tool_call>", "</tool_call>")
"""Marks around each tool call that a server separates from its reply."""

FinishReason = Literal["stop", "length", "context", "repetition", "cancelled", "error"]

REPEATED = "it began to repeat itself"
"""The remark on a reply that ended for `repetition`."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model could have chosen, with its natural-log probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    text: the text that became visible with this token. It may be empty, while a
        multi-byte character or a possible stop string is still incomplete or the text
        comes again, and it may hold what earlier tokens had kept back.
    piece: the token's own text, for display; bytes that are not a character show as `<C3>`.
    logprob: natural log of its probability under the model's plain softmax, before
        temperature, penalties and cuts; nan where a server does not tell.
    alternatives: the most probable tokens, when they were asked for, best first.
    forced: whether the request's constraint left no other choice. forbidden: the probability that
        it removed at this step, of 1; `alternatives` are those of the model without it.
    thought: text of a thought, as `text` is of the reply; None for a token of the reply. Models
        give all they draw as text; who knows their marks takes it apart (`dialogue.turn`).
    """

    id: int
    text: str
    piece: str
    logprob: float
    alternatives: tuple[Alternative, ...] = ()
    thought: str | None = None
    forced: bool = False
    forbidden: float = 0.0

    @property
    def probability(self) -> float:
        """Under the model's plain softmax; nan where a server does not tell."""
        return math.exp(self.logprob)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation.

    reason: `stop` (a stop string or the end-of-text token), `length` (max_tokens), `context` (the
    window is full), `repetition` (it repeated itself and was cut back), `cancelled`, or `error`
    (see message). text, thought: the text held back that was no stop string and no repetition.
    prompt_tokens: tokens of the prompt; reused_tokens of them came from the cache. reply_tokens:
    tokens generated, including those cut off, without a final end-of-text token.
    time_to_first_token, seconds: since the call, in seconds. end_id: the token that ended it and is
    not part of the text, or None; end_logprob: its `Token.logprob`, None for one that was forced.
    valid: whether the whole reply fits the request's constraint; None without one. forced_tokens:
    those to which it left no choice. forbidden_mass: the mean probability removed at a
    step that the constraint decided, the end's among them.
    message: the error, or else a remark on how the reply was generated, or why it is not valid.
    """

    reason: FinishReason
    text: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    reply_tokens: int = 0
    time_to_first_token: float = 0.0
    seconds: float = 0.0
    message: str = ""
    thought: str | None = None
    end_id: int | None = None
    end_logprob: float | None = None
    valid: bool | None = None
    forced_tokens: int = 0
    forbidden_mass: float = 0.0

    @property
    def fit(self) -> dict[str, Any]:
        """What the constraint did, as JSON data; empty without one."""
        if self.valid is None:
            return {}
        names = ("valid", "forced_tokens", "forbidden_mass")
        return {name: getattr(self, name) for name in names}

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first over their time."""
        decoding = self.seconds - self.time_to_first_token
        if self.reply_tokens < 2 or decoding <= 0:
            return 0.0
        return (self.reply_tokens - 1) / decoding


Event = Token | Finished
