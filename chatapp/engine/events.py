"""What generation yields: any number of `Token`s, then exactly one `Finished`.

Keep: the reply is the concatenation of every event's `text`, whatever the tokens were, and what
was thought before it that of every `thought`.
"""

from dataclasses import dataclass
from typing import Literal

THINKING = ("<think>", "</think>")
"""Between these stands, in a server's reply, what its server tells apart as thought before it."""

CALLING = ("<tool_call>", "</tool_call>")
"""Between these stands, in a server's reply, each call of a tool that its server tells apart."""

FinishReason = Literal["stop", "length", "context", "repetition", "cancelled", "error"]

REPEATED = "it began to repeat itself"
"""What a reply that ended for `repetition` is marked with."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token the model could have chosen, with its natural-log probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    text: the text that became visible with this token. It may be empty, while a
        multi-byte character or a possible stop string is still incomplete or what was said
        comes again, and it may hold what earlier tokens had kept back.
    piece: the token's own text, for display; bytes that are no character show as `<C3>`.
    logprob: natural log of its probability under the model's plain softmax, before
        temperature, penalties and cuts; nan where a server does not tell.
    alternatives: the most probable tokens, when they were asked for, best first.
    thought: text of a thought, as `text` is of the reply; None for a token of the reply. Models
        give all they draw as text; who knows their marks takes it apart (`dialogue.reply`).
    """

    id: int
    text: str
    piece: str
    logprob: float
    alternatives: tuple[Alternative, ...] = ()
    thought: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a generation.

    reason: `stop` (a stop string or the end-of-text token), `length` (max_tokens),
        `context` (the window is full), `repetition` (it repeated itself and was cut back),
        `cancelled`, or `error` (see message).
    text, thought: what was held back that turned out to be no stop string and no repetition.
    prompt_tokens: tokens of the prompt; reused_tokens of them came from the cache.
    reply_tokens: tokens generated, those cut off counted, a final end-of-text token not.
    time_to_first_token, seconds: from the call on, in seconds.
    end_id: the token that ended it and is no part of the text; None where none did.
    message: what went wrong, or else what there is to know of how the reply came about.
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

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first over the time they took."""
        decoding = self.seconds - self.time_to_first_token
        if self.reply_tokens < 2 or decoding <= 0:
            return 0.0
        return (self.reply_tokens - 1) / decoding


Event = Token | Finished
