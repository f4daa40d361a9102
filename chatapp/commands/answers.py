"""What `ask` and `complete` change inside the model, and their answer on standard output: streamed,
as JSON, the best of many, or that of a `chatapp api` that runs.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import FAILED, INTERRUPTED, complain, status, write, write_json
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.parameters import Choices
    from chatapp.common.settings import Settings
    from chatapp.dialogue.documents.sources import Source
    from chatapp.dialogue.events import Options, TurnEvent
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.events import Event, Finished, Token
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.prompting.messages import Call, Message

AblateOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Switch parts of the model off, such as 3.5,4.mlp: head 5 of layer 3, the MLP of "
        "layer 4.",
    ),
]


SteerOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=STRENGTH",
        help="Add a direction of `steer make` to the reply, as in calm=0.1; may be repeated.",
    ),
]


def changes_of(
    model: "LanguageModel", ablate: str | None, steer: "Sequence[str] | None" = None
) -> "Interventions":
    """The parts of --ablate, switched off, and the directions of --steer. Raises UserError for a
    model without such parts."""
    from chatapp.engine.decoder.interventions import UNCHANGED

    if ablate is None and not steer:
        return UNCHANGED
    from chatapp.lab.steering import changes_of as changes

    return changes(model, ablate, steer or ())


def print_answer(
    answer: "Callable[[Options], Iterator[TurnEvent]]",
    options: "Options",
    model: str,
    choices: "Choices",
    template: str | None,
    *,
    as_json: bool,
    sources: "Sequence[Source]" = (),
) -> None:
    """Print an answer while it arrives, or as JSON at its end. Raises typer.Exit."""
    from chatapp.common.parameters import seeded
    from chatapp.engine.events import Finished

    sampling, changes = seeded(options.sampling), options.changes.words
    cancel = threading.Event()
    collected = _Collected(Finished("error"))
    with _interruptible(cancel):
        for event in answer(replace(options, sampling=sampling, cancel=cancel)):
            collected.add(event)
            if not as_json:
                write(event.text)
    if collected.is_thinking:
        status("")
    if as_json:
        document = _document(collected.reply, collected.finished, model, template, sampling.seed)
        document |= {
            "thoughts": collected.thoughts.strip(),
            "thought_tokens": collected.thought_tokens,
        }
        if sources:
            document["sources"] = [asdict(source) for source in sources]
        if collected.calls:
            document["calls"] = list(map(asdict, collected.calls))
        if changes:
            document["changes"] = changes
        if collected.finished.valid is not None:
            document["tokens"] = list(map(_token, collected.tokens))
        write_json(document | collected.finished.fit | {"sampling": choices.document(sampling)})
    elif not collected.reply.endswith("\n"):
        write("\n")
    # Not before: remarks would appear inside the streamed answer.
    _print_remarks(collected, sources, "" if as_json else changes)
    _end(collected.finished)


def _print_remarks(collected: "_Collected", sources: "Sequence[Source]", changes: str) -> None:
    """Print how an answer came about, on standard error."""
    for call in collected.calls:
        complain(_call_in_words(call))
    for source in sources:
        if source.number:
            complain(f"given [{source.number}] {source.file}, {source.place}")
    if changes:
        complain(f"the answer is of the model {changes}")
    if collected.thought_tokens:
        complain(f"thought for {collected.thought_tokens} tokens")


@dataclass(slots=True)
class _Collected:
    """The answer so far; a terminal shows that the model thinks."""

    finished: "Finished"
    reply: str = ""
    thoughts: str = ""
    thought_tokens: int = 0
    calls: "list[Call]" = field(default_factory=list)
    tokens: "list[Token]" = field(default_factory=list)
    is_thinking: bool = False

    def add(self, event: "TurnEvent") -> None:
        """Take the next event."""
        from chatapp.dialogue.events import Called
        from chatapp.engine.events import Finished, Token

        if isinstance(event, Called):
            self.calls.append(event.call)
        if (event.thought is not None and not event.text) != self.is_thinking:
            self.is_thinking = not self.is_thinking
            status("Thinking …" if self.is_thinking else "")
        self.reply += event.text
        self.thoughts += event.thought or ""
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.thought_tokens += event.thought is not None
        if isinstance(event, Token):
            self.tokens.append(event)


def _token(token: "Token") -> dict[str, Any]:
    """A token of an answer under a constraint; its alternatives are the model's own."""
    return {
        "text": token.piece,
        "probability": finite(math.exp(token.logprob)),
        "forced": token.forced,
        "forbidden": token.forbidden,
        "alternatives": [
            {"text": other.text, "probability": math.exp(other.logprob)}
            for other in token.alternatives
        ],
    }


def _call_in_words(call: "Call") -> str:
    """A call and the first line of its result."""
    from chatapp.dialogue.tools.tool import call_in_words

    first, *more = call.result.splitlines() or [""]
    return f"{call_in_words(call.name, call.arguments)}: {first}{' …' if more else ''}"


def print_best(
    language_model: "LanguageModel",
    answer: "Callable[[Options], Iterator[TurnEvent]]",
    options: "Options",
    model: str,
    choices: "Choices",
    template: str,
    reward: str,
    question: "Sequence[Message]",
    count: int,
    *,
    as_json: bool,
) -> None:
    """Print the answer with the highest score of a reward model. Raises typer.Exit."""
    from chatapp.common.parameters import seeded
    from chatapp.dialogue.reply_scores import ReplyScorer, best_of

    sampling = seeded(options.sampling)
    if count > 1 and sampling.temperature == 0:
        raise UserError(
            "--best-of: at temperature 0 every answer is the same; choose --temperature 0.7 or so"
        )
    scorer = ReplyScorer.load(reward)
    cancel = threading.Event()

    def answers(samplings: "Sequence[Sampling]") -> "list[Iterator[TurnEvent]]":
        """Several answers, to be drawn in turn."""
        generate = language_model.together(len(samplings))
        drawn = replace(options, cancel=cancel, generate=generate)
        return [answer(replace(drawn, sampling=sampling)) for sampling in samplings]

    def show(done: int) -> None:
        status(f"{done:,} of {count:,} answers …")

    with _interruptible(cancel):
        try:
            replies = best_of(answers, scorer, question, count, sampling, show)
        except ValueError as error:
            raise UserError(str(error)) from None
        finally:
            status("")
    best = replies[0]
    scores = [reply.score for reply in replies]
    if as_json:
        document = _document(best.text, best.finished, model, template, sampling.seed)
        thoughts = {"thoughts": best.thoughts.strip()}
        rewards = {"reward_model": reward, "rewards": [finite(score) for score in scores]}
        write_json(document | thoughts | rewards | {"sampling": choices.document(sampling)})
    else:
        write(best.text if best.text.endswith("\n") else f"{best.text}\n")
    if len(scores) > 1:
        complain(f"scores: {', '.join(f'{score:.2f}' for score in scores)}")
    _end(best.finished)


def finite(score: float) -> float | None:
    """A score for JSON; None for a reply that could not be scored."""
    return score if math.isfinite(score) else None


def _end(finished: "Finished") -> None:
    """Report an abnormal end of an answer. Raises typer.Exit."""
    from chatapp.engine.events import REPEATED

    if finished.message:
        complain(finished.message)
    if finished.reason == "repetition":
        complain(REPEATED)
    if finished.reason == "error" or (finished.valid is False and finished.reason != "cancelled"):
        raise typer.Exit(FAILED)
    if finished.reason == "cancelled":
        raise typer.Exit(INTERRUPTED)


def _document(
    reply: str, finished: "Finished", model: str, template: str | None, seed: int | None
) -> dict[str, Any]:
    """Times are in seconds."""
    return {
        "reply": reply,
        "finish_reason": finished.reason,
        "model": model,
        "template": template,
        "seed": seed,
        "prompt_tokens": finished.prompt_tokens,
        "reused_tokens": finished.reused_tokens,
        "reply_tokens": finished.reply_tokens,
        "time_to_first_token": finished.time_to_first_token,
        "tokens_per_second": finished.tokens_per_second,
    }


@contextmanager
def _interruptible(cancel: threading.Event) -> Iterator[None]:
    """Let the first Ctrl+C end the answer, and a second one the program."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
    """Print the answer of a `chatapp api` that runs and has the model and the template; False if
    there is none. Nothing of what reads models, templates and prompts is imported, because that
    takes longer than the answer.

    Raises typer.Exit, UserError for a question that cannot be answered.
    """
    from chatapp.common.paths import background_path

    if not background_path().exists():
        return False
    from chatapp.dialogue.events import Options
    from chatapp.engine.backends.remote.http import Client
    from chatapp.engine.models.running import find, reply_events

    match = find(settings.model, settings.precision, settings.device)
    if match is None or match[1].asked_template != question.template:
        return False
    client, model = Client(match[0]), match[1]
    if model.remark:
        complain(model.remark)

    def answer(options: "Options") -> "Iterator[Event]":
        rest = options.sampling, options.cancel, tokens_in
        return reply_events(client, "chat/completions", question.body, *rest)

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
