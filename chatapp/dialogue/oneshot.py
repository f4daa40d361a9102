"""One question, one answer, nothing stored: for `chatapp ask` and `complete`.

Invariant: an answer here equals the same model's answer to the first message of a chat;
`dialogue.prompt` renders and trims both.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from chatapp.common.progress import Progress
from chatapp.dialogue.documents.sources import Source, texts_in_prompt
from chatapp.dialogue.events import Called, ReplyEvent
from chatapp.dialogue.rendering import Grounding
from chatapp.dialogue.reply import ALTERNATIVES, reply_events
from chatapp.dialogue.tool_calls import Toolbox, events_with_calls
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange, Prompt, trimmed, with_constraint
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Event
from chatapp.engine.model import ContextOverflow, Generate, LanguageModel, Request, Sampling
from chatapp.prompting.chat_template import Template
from chatapp.tasks.files.documents import DocumentSet


def ask(
    model: LanguageModel,
    template: Template,
    text: str,
    *,
    system: str | None = None,
    sources: Sequence[Source] = (),
    sampling: Sampling,
    cancel: threading.Event | None = None,
    generate: Generate | None = None,
    constraint: Constraint | None = None,
) -> Iterator[Event]:
    """The reply to a single message.

    constraint: what it may look like; the model reads it in its instructions. system: instructions
    instead of the template's. sources: from `find_sources`. generate: instead
    of the model's own. Raises ValueError when `text` is empty, MessageTooLong when it does not fit
    the window.
    """
    if not text.strip():
        raise ValueError("the question is empty")
    writer = writer_for(model, template)
    exchange = Exchange(text, passages=texts_in_prompt(sources))
    system = with_constraint(system, template, constraint)
    prompt = writer.write(system, [exchange], max_tokens=sampling.max_tokens)
    top = 0 if constraint is None else ALTERNATIVES
    request = Request(prompt.ids, sampling, writer.stop, cancel, top, constraint=constraint)
    yield from trimmed(reply_events(model, prompt, request, generate))


def ask_with_tools(
    model: LanguageModel,
    template: Template,
    text: str,
    toolbox: Toolbox,
    *,
    system: str | None = None,
    sources: Sequence[Source] = (),
    sampling: Sampling,
    cancel: threading.Event | None = None,
    generate: Generate | None = None,
) -> Iterator[ReplyEvent]:
    """Like `ask`. toolbox: the tools that the model may call."""
    if not text.strip():
        raise ValueError("the question is empty")
    writer = writer_for(model, template)
    writer.use_tools([tool.to_dict() for tool in toolbox.tools.values()])
    exchange = Exchange(text, passages=texts_in_prompt(sources))

    def write() -> Prompt:
        """The prompt for the reply, or for its continuation."""
        return writer.write(system, [exchange], max_tokens=sampling.max_tokens)

    prompt = write()
    request = Request(prompt.ids, sampling, writer.stop, cancel)
    events = events_with_calls(
        model,
        prompt,
        request,
        generate,
        toolbox=toolbox,
        pattern=writer.calls,
        go_on=write,
        question=text,
    )
    with closing(events):
        for event in trimmed(events):
            reply, calls = exchange.reply or "", exchange.calls
            if isinstance(event, Called):
                calls = (*calls, replace(event.call, at=len(reply)))
            exchange = replace(exchange, reply=reply + event.text, calls=calls)
            yield event


def find_sources(
    model: LanguageModel,
    template: Template,
    text: str,
    documents: DocumentSet,
    *,
    system: str | None = None,
    sampling: Sampling,
    progress: Progress | None = None,
) -> tuple[Source, ...]:
    """The passages of documents for a question; see `Grounding.sources`."""
    writer = writer_for(model, template)
    return Grounding(model).sources(
        documents, writer, system, text, max_tokens=sampling.max_tokens, progress=progress
    )


def complete(
    model: LanguageModel,
    text: str,
    *,
    sampling: Sampling,
    cancel: threading.Event | None = None,
    generate: Generate | None = None,
) -> Iterator[Event]:
    """The model's continuation of `text`, which is passed unchanged.

    Spaces at its end are left out, because a word includes the space before it. Raises ValueError
    when `text` is empty, ContextOverflow when it fills the window.
    """
    if not text.strip():
        raise ValueError("the text to continue is empty")
    ids = model.tokenizer.encode(text.rstrip(" "))
    if len(ids) >= model.context:
        raise ContextOverflow(
            f"the text is {len(ids)} tokens long; at most {model.context - 1} fit the model's "
            f"window of {model.context} tokens"
        )
    yield from (generate or model.generate)(Request(ids, sampling, cancel=cancel))
