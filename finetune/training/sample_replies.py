"""Replies to fixed prompts while a model learns.

Keep: they are made by the chat's own code from the weights as they are, and leave nothing behind
that training would see.

Greedy replies to the prompts of rows: what a run shows while it learns, what eval counts.

Keep: a prompt is the row's own tokens up to its last response, so a reply is asked for exactly
where the row was trained; and a generation that failed is told as such, never taken for a reply.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import LanguageModel, Request, Sampling, Tokenizer, whole_replies
from chatapp.prompting.chat_template import Template
from finetune.config.objectives import GrpoSettings, Objectives
from finetune.config.sections import ConfigError
from finetune.config.sections import Samples as SampleSettings
from finetune.data.encoding import Encoded, Span, last_response
from finetune.data.packing import Rows
from finetune.data.prompts import Asked
from finetune.objectives.grpo import Grpo, PromptRows
from finetune.objectives.rewards import DrawnReply
from finetune.objectives.rows import PairRows
from finetune.training.display import one_line
from finetune.training.run_setup import RunSetup


@dataclass(frozen=True, slots=True)
class Question:
    """The prompt of a row's last response. ids: its tokens. text: what the user wrote."""

    ids: list[int]
    text: str
    reference: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said. error: why the generation broke off, or nothing. reward: None where
    nothing gives one."""

    text: str
    error: str = ""
    reward: float | None = None

    def __str__(self) -> str:
        text = self.text if self.reward is None else f"[{self.reward:.3g}] {self.text}"
        return f"{text} (the reply failed: {self.error})".strip() if self.error else text


def questions(
    examples: Sequence[Encoded], tokenizer: Tokenizer, context: int, skip: int = 0
) -> Iterator[Question]:
    """The questions of rows, in their order; of each row the last.

    A plain text asks nothing and is left out, as is a prompt that fills the window.
    skip: tokens at the start of a row that the model puts there itself.
    """
    for example in examples:
        ids, spans = example.ids[skip:], example.spans[skip:]
        response = last_response(spans)
        first = response.start
        if 0 < first < context:
            yield Question(
                ids[:first].tolist(),
                tokenizer.decode(ids[:first][spans[:first] == Span.PROMPT].tolist()).strip(),
                tokenizer.decode(ids[response].tolist()).strip(),
            )


def stops(template: Template, objective: Objectives) -> tuple[str, ...]:
    """What ends a reply: the template's texts, and those that the replies were learnt with."""
    own = objective.stop if isinstance(objective, GrpoSettings) else ()
    return (*template.stop, *own)


def greedy_replies(
    model: LanguageModel, stop: Sequence[str], prompts: Iterable[Sequence[int]], max_tokens: int
) -> Iterator[Reply]:
    """To each prompt the most probable next token again and again, until the reply ends.

    stop: see `stops`.
    """
    greedy = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = (Request(ids, greedy, stop) for ids in prompts)
    for text, finished in whole_replies(model.generate_many(requests)):
        yield whole_reply([replace(finished, text=text)])


def whole_reply(events: Iterable[Event]) -> Reply:
    """The reply that a generation makes, without the space around it."""
    texts, error = [], ""
    for event in events:
        texts.append(event.text)
        if isinstance(event, Finished) and event.reason == "error":
            error = event.message or "no reason was given"
    return Reply("".join(texts).strip(), error)


Samples = list[tuple[str, Reply]]
"""Prompts, each with the reply to it."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """asked: the row it comes from, where rows are prompts."""

    text: str
    ids: Sequence[int]
    asked: Asked | None = None


def sampler(setup: RunSetup) -> Callable[[], Samples] | None:
    """What makes the sample replies of a run; None without prompts.

    Raises ConfigError for a prompt that does not fit.
    """
    template, settings = setup.template, setup.config.samples
    if template is None or not setup.objective.replies:
        return None
    model = TransformersModel(
        setup.model, setup.tokenizer, name=setup.config.model, start=setup.start
    )
    prompts = _own_prompts(settings, template, model)
    prompts = prompts or _prompts_of_rows(setup, model)

    stop = stops(template, setup.config.objective)

    def take() -> Samples:
        setup.model.eval()
        model.forget()
        asked = (prompt.ids for prompt in prompts)
        replies = greedy_replies(model, stop, asked, settings.max_tokens)
        samples = [
            (prompt.text, _rewarded(reply, prompt, setup))
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        model.forget()
        return samples

    return take if prompts else None


def _own_prompts(
    settings: SampleSettings, template: Template, model: TransformersModel
) -> list[_Prompt]:
    """Those that the configuration names. Raises ConfigError."""
    prompts = []
    for text in settings.prompts:
        try:
            written = writer_for(model, template).write(
                None, [Exchange(text)], max_tokens=settings.max_tokens
            )
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append(_Prompt(text, written.ids))
    return prompts


def _prompts_of_rows(setup: RunSetup, model: TransformersModel) -> list[_Prompt]:
    """Those of the first held-out rows."""
    wanted = setup.config.samples.held_out
    rows = next(iter(setup.data.held_out.values()), None)
    if isinstance(rows, PromptRows):
        return [_Prompt(each.text, each.ids, each) for each in rows.asked[:wanted]]
    if isinstance(rows, PairRows):
        rows = rows.first
    if not isinstance(rows, Rows):
        return []
    asked = questions(rows.examples, setup.tokenizer, model.context, len(setup.start))
    return [_Prompt(each.text, each.ids) for each in islice(asked, wanted)]


def _rewarded(reply: Reply, prompt: _Prompt, setup: RunSetup) -> Reply:
    """The reply with its reward, where there is one to give."""
    if not isinstance(setup.objective, Grpo) or prompt.asked is None or reply.error:
        return reply
    ids = setup.tokenizer.encode(reply.text, begins=False)
    drawn = DrawnReply(ids, reply.text)
    return replace(reply, reward=setup.objective.rewards.of(prompt.asked, drawn))
