"""A question answered by a `chatapp api` that runs, in a fraction of the time to load its model.

Invariant: the answer is the one that the same model gives here. Nothing of what reads models,
templates and prompts is imported, because that takes longer than the answer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chatapp.commands.answers import print_answer
from chatapp.commands.console import complain

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.dialogue.events import Options
    from chatapp.engine.events import Event, Token


@dataclass(frozen=True, slots=True)
class ServedQuestion:
    """A single question. template: the requested one, or "". think: None for the template's own."""

    question: str
    system: str | None
    template: str
    think: bool | None

    @property
    def body(self) -> dict[str, Any]:
        """As a request for a chat."""
        messages = [{"role": "user", "content": self.question}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        switch = {} if self.think is None else {"enable_thinking": self.think}
        return {"messages": messages, "chat_template_kwargs": switch}


def ask_served(question: ServedQuestion, settings: "Settings", *, as_json: bool) -> bool:
    """Print the answer of a server that has the model and the template; False if there is none.

    Raises typer.Exit, UserError for a question that cannot be answered.
    """
    from chatapp.common.paths import background_path

    if not background_path().exists():
        return False
    from chatapp.dialogue.events import Options
    from chatapp.engine.models.running import find, reply_events

    match = find(settings.model, settings.precision, settings.device)
    if match is None or match[1].asked_template != question.template:
        return False
    server, model = match
    if model.remark:
        complain(model.remark)

    def answer(options: "Options") -> "Iterator[Event]":
        rest = options.sampling, options.cancel, tokens_in
        return reply_events(server, "chat/completions", question.body, *rest)

    choices = settings.choices(model.sampling)
    named = settings.model, choices, model.template
    print_answer(answer, Options(choices.sampling), *named, as_json=as_json)
    return True


def tokens_in(choice: dict[str, Any]) -> "Iterator[Token]":
    """The part of a reply or of a thought in a chunk of a stream."""
    from chatapp.engine.events import Token

    delta = choice["delta"]
    text, thought = delta.get("content") or "", delta.get("reasoning_content")
    if text or thought is not None:
        yield Token(-1, text, text, math.nan, thought=thought)
