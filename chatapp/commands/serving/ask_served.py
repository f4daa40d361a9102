"""A question answered by a `chatapp api` that runs, in a fraction of the time to load its model.

Invariant: the answer is the one that the same model gives here. Nothing of what reads models,
templates and prompts is imported, because that takes longer than the answer.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from chatapp.commands.answers import print_answer
from chatapp.commands.console import complain

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.dialogue.events import Options
    from chatapp.engine.events import Event


@dataclass(frozen=True, slots=True)
class ServedQuestion:
    """A single question. template: the requested one, or "". think: None for the template's own."""

    question: str
    system: str | None
    template: str
    think: bool | None


def ask_served(question: ServedQuestion, settings: "Settings", *, as_json: bool) -> bool:
    """Print the answer of a server that has the model; False if there is none.

    Raises typer.Exit, UserError for a question that cannot be answered.
    """
    from chatapp.engine.models import background

    match = background.find(settings.model, settings.precision, settings.device)
    if match is None:
        return False
    address, model = match
    heading: dict[str, str] = {}

    def answer(options: "Options") -> "Iterator[Event]":
        from chatapp.engine.backends.background import ASK, events_of

        body = {"model": model.name, "sampling": asdict(options.sampling)} | asdict(question)
        documents = address.request(ASK, body, options.cancel)
        heading.update(next(documents, {}))
        if heading.get("remark"):
            complain(heading["remark"])
        return events_of(documents, options.cancel)

    from chatapp.dialogue.events import Options

    choices = settings.choices(model.sampling)
    named = settings.model, choices, lambda: heading.get("template", "")
    print_answer(answer, Options(choices.sampling), *named, as_json=as_json)
    return True
