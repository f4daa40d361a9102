"""Greedy replies to the prompts of rows: samples of a run, and replies for eval.

Invariant: the chat's own code generates them, from the current weights, and leaves nothing behind
that affects training. A prompt is the row's own tokens up to its last response, so a reply begins
exactly where the trained one does; a failed generation is reported as one, never taken for a reply.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from chatapp.dialogue.events import Options, TurnEvent
from chatapp.dialogue.turn import write_prompt
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.prompting.chat_template import Template
from finetune.config.sections import ConfigError
from finetune.config.sections import Samples as SampleSettings
from finetune.objectives.objective import Question
from finetune.training.display import one_line
from finetune.training.run_setup import RunSetup


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply. error: why the generation failed, or "". reward: None without rewards."""

    text: str
    error: str = ""
    reward: float | None = None

    def __str__(self) -> str:
        text = self.text if self.reward is None else f"[{self.reward:.3g}] {self.text}"
        return f"{text} (the reply failed: {self.error})".strip() if self.error else text


def greedy_replies(
    model: LanguageModel, stop: Sequence[str], prompts: Iterable[Sequence[int]], max_tokens: int
) -> Iterator[Reply]:
    """The greedy reply to each prompt.

    stop: texts that end a reply.
    """
    greedy = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = (Request(ids, greedy, stop) for ids in prompts)
    for text, finished in whole_replies(model.generate_many(requests)):
        yield whole_reply([replace(finished, text=text)])


def whole_reply(events: Iterable[TurnEvent]) -> Reply:
    """The complete reply of a generation, without the space around it."""
    texts, error = [], ""
    for event in events:
        texts.append(event.text)
        if isinstance(event, Finished) and event.reason == "error":
            error = event.message or "no reason was given"
    return Reply("".join(texts).strip(), error)


Samples = list[tuple[str, Reply]]
"""Prompts, each with the reply to it."""


def sampler(setup: RunSetup) -> Callable[[], Samples] | None:
    """Makes the sample replies of a run; None without prompts.

    Raises ConfigError for a prompt that does not fit.
    """
    settings = setup.config.samples
    if setup.template is None or not setup.objective.replies:
        return None
    model = setup.speaker()
    prompts = _own_prompts(settings, setup.template, model)
    prompts = prompts or _prompts_of_rows(setup, model)

    def take() -> Samples:
        setup.model.eval()
        model.forget()
        ids = (prompt.ids for prompt in prompts)
        replies = greedy_replies(model, setup.stops, ids, settings.max_tokens)
        samples = [
            (prompt.text, _rewarded(reply, prompt, setup))
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        model.forget()
        return samples

    return take if prompts else None


def _own_prompts(
    settings: SampleSettings, template: Template, model: LanguageModel
) -> list[Question]:
    """The prompts in the configuration. Raises ConfigError."""
    prompts = []
    for text in settings.prompts:
        try:
            options = Options(Sampling(max_tokens=settings.max_tokens))
            written = write_prompt(writer_for(model, template), [Exchange(text)], options)
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append(Question(written.ids, text))
    return prompts


def _prompts_of_rows(setup: RunSetup, model: LanguageModel) -> list[Question]:
    """The prompts of the first held-out rows."""
    rows = next(iter(setup.data.held_out.values()), None)
    if rows is None:
        return []
    questions = setup.objective.questions(rows, setup.tokenizer, model.context, len(setup.start))
    return list(islice(questions, setup.config.samples.held_out))


def _rewarded(reply: Reply, prompt: Question, setup: RunSetup) -> Reply:
    """The reply with its reward, if any."""
    if reply.error:
        return reply
    return replace(reply, reward=setup.objective.reward(prompt, reply.text, setup.tokenizer))
