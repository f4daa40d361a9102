"""The plugin for `llm`, the command of that name: our models as its models.

`llm` finds it by the entry point of this package, at each of its starts; so nothing that computes
is imported here before a reply is wanted.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import TextPart
from pydantic import create_model

from chatapp.common.parameters import PARAMETERS
from chatapp.common.userfiles import UserError
from chatapp.common.validation import key_of

if TYPE_CHECKING:
    from chatapp.dialogue.writers.prompt import Exchange
    from chatapp.open_model import OpenModel

_Options = create_model(  # type: ignore[call-overload]
    "Options",
    __base__=llm.Options,
    **{name: (parameter.kind | None, key_of(name)) for name, parameter in PARAMETERS.items()},
)


class Chatapp(llm.Model):  # type: ignore[misc]
    """A model by its name, loaded for the first reply."""

    can_stream = True
    supports_schema = True
    Options = _Options

    def __init__(self, name: str) -> None:
        self.model_id = name

    @cached_property
    def _opened(self) -> "OpenModel":
        from chatapp.open_model import load

        return load(self.model_id, precision="auto")

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The reply to a prompt, after the conversation's earlier ones. Raises llm.ModelError."""
        try:
            yield from self._reply(prompt, response)
        except (UserError, ValueError) as error:
            raise llm.ModelError(str(error)) from None

    def _reply(self, prompt: Any, response: Any) -> Iterator[str]:
        from chatapp.common.parameters import seeded
        from chatapp.dialogue.events import Options, PromptWritten
        from chatapp.dialogue.turn import Trimmer, turn
        from chatapp.dialogue.writers.choosing import choose_template, writer_for
        from chatapp.dialogue.writers.prompt import with_constraint
        from chatapp.engine.constraint.constraint import Constraint
        from chatapp.engine.events import Finished

        model = self._opened.model
        system, exchanges = _exchanges(prompt.messages)
        given = {name: value for name, value in prompt.options if value is not None}
        constraint = Constraint.of_schema(prompt.schema, spaced=True) if prompt.schema else None
        template = choose_template(model, "")
        options = Options(
            seeded(self._opened.choices(given).sampling),
            system=with_constraint(system, template, constraint),
            constraint=constraint,
        )
        trimmer = Trimmer()
        log = response.response_json = {"seed": options.sampling.seed}  # for `llm logs`
        for event in turn(model, writer_for(model, template), exchanges, options):
            if isinstance(event, PromptWritten) and event.prompt.dropped:
                lost = exchanges[: event.prompt.dropped]
                count = sum(1 + (exchange.reply is not None) for exchange in lost)
                log["left_out"] = count
                print(f"messages out of context: {count}", file=sys.stderr)
            if isinstance(event, Finished):
                response.set_usage(input=event.prompt_tokens, output=event.reply_tokens)
                log["reason"] = event.reason
                if event.reason == "error":
                    raise ValueError(event.message)
            yield trimmer.push(getattr(event, "text", ""))


def _exchanges(messages: Iterable[Any]) -> "tuple[str | None, list[Exchange]]":
    """The instructions and the turns of llm's messages, of whose parts the texts are read. Raises
    ValueError where no message of the user is last."""
    from chatapp.dialogue.writers.prompt import Exchange

    system: str | None = None
    exchanges: list[Exchange] = []
    for message in messages:
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        if message.role == "system":
            system = system or text
        elif message.role == "user":
            exchanges.append(Exchange(text))
        elif message.role == "assistant" and exchanges:
            exchanges[-1] = replace(exchanges[-1], reply=text)
    if not exchanges or exchanges[-1].reply is not None or not exchanges[-1].user.strip():
        raise ValueError("the prompt is empty")
    return system, exchanges


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_models(register: Any) -> None:
    """Register the models of this machine, those with a short name, and the servers with a name."""
    from chatapp.engine.models.known_models import known_models
    from chatapp.engine.models.resolving import local_models, named_servers

    try:
        servers = list(named_servers())
    except UserError:
        servers = []  # using one reports the fault of the file
    for name in dict.fromkeys([*local_models(), *known_models(), *servers]):
        register(Chatapp(name))
