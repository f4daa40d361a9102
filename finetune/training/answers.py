"""Greedy replies to the prompts of rows: samples of a run, replies for eval, and the held-out
figures that the loss does not give: the one that selects the best weights, those of tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from chatapp.common.foreign import one_line
from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import write_prompt
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.backends.transformers_model import NetworkModel
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.tasks.evaluation.evaluate import Grid, Selectors, Task, evaluate, plan, subset
from chatapp.tasks.evaluation.inputs import read_test
from chatapp.tasks.evaluation.language_modelling import lambada, read_passages
from chatapp.tasks.evaluation.report import results
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.metrics import exact_match
from finetune.config.sections import ConfigError, TaskSource
from finetune.config.sections import Samples as SampleSettings
from finetune.data.batches import TrainingRows
from finetune.data.preparation import HELD_OUT
from finetune.objectives.objective import RowPrompt
from finetune.training.setup import RunSetup


@dataclass(frozen=True, slots=True)
class SampledReply:
    """A model's reply. error: why the generation failed, or "". reward: None without rewards."""

    text: str
    error: str = ""
    reward: float | None = None

    def __str__(self) -> str:
        text = self.text if self.reward is None else f"[{self.reward:.3g}] {self.text}"
        return f"{text} (the reply failed: {self.error})".strip() if self.error else text


def greedy_replies(
    model: LanguageModel, stop: Sequence[str], prompts: Iterable[Sequence[int]], max_tokens: int
) -> Iterator[SampledReply]:
    """The greedy reply to each prompt, without the space around it.

    stop: texts that end a reply.
    """
    greedy = Sampling(temperature=0.0, max_tokens=max_tokens)
    requests = (Request(ids, greedy, stop) for ids in prompts)
    for text, finished in whole_replies(model.generate_many(requests)):
        error = ""
        if finished.reason == "error":
            error = finished.message or "no reason was given"
        yield SampledReply(text.strip(), error)


@contextmanager
def _speaking(setup: RunSetup, model: NetworkModel) -> Iterator[None]:
    """The model speaks with its current weights, and keeps nothing of them."""
    setup.model.eval()
    model.forget()
    yield
    model.forget()


Samples = list[tuple[str, SampledReply]]
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
    rows = next(iter(setup.data.held_out.values()), None)
    if rows is not None and not prompts:
        prompts = list(islice(_questions(setup, rows, model), settings.held_out))

    def take() -> Samples:
        with _speaking(setup, model):
            ids = (prompt.ids for prompt in prompts)
            replies = list(greedy_replies(model, setup.stops, ids, settings.max_tokens))
        rewards = (
            None if reply.error else setup.objective.reward(prompt, reply.text, setup.tokenizer)
            for prompt, reply in zip(prompts, replies, strict=True)
        )
        return [
            (prompt.text, replace(reply, reward=reward))
            for prompt, reply, reward in zip(prompts, replies, rewards, strict=True)
        ]

    return take if prompts else None


def _own_prompts(
    settings: SampleSettings, template: ChatTemplate, model: LanguageModel
) -> list[RowPrompt]:
    """The prompts in the configuration. Raises ConfigError."""
    prompts = []
    for text in settings.prompts:
        try:
            options = Options(Sampling(max_tokens=settings.max_tokens))
            written = write_prompt(writer_for(model, template), [Exchange(text)], options)
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append(RowPrompt(written.ids, text))
    return prompts


def _questions(setup: RunSetup, rows: TrainingRows, model: NetworkModel) -> Iterator[RowPrompt]:
    return setup.objective.questions(rows, setup.tokenizer, model.context, len(setup.start))


Figures = Callable[[], dict[str, float]]

REPLIES = 100
"""The most held-out rows that get replies."""


def best_figure(setup: RunSetup) -> Figures | None:
    """Computes train.metric_for_best_model; None if the objective's own metrics include it.

    Raises ConfigError for an unknown metric.
    """
    metric, known = setup.config.train.metric_for_best_model, setup.objective.best_metrics
    tasks = [task.name for task in setup.config.tasks]
    if metric in tasks:
        return None
    if metric not in known:
        raise ConfigError(
            f"train.metric_for_best_model is {metric}, which this run does not have; expected "
            f"{', '.join((*known, *tasks))}"
        )
    held_out = setup.data.held_out
    if metric in ("loss", "accuracy") or not held_out:
        return None
    rows = held_out.get(HELD_OUT) or next(iter(held_out.values()))
    if metric == "exact_match":
        return _exact_match(setup, rows)

    def figures() -> dict[str, float]:
        return {metric: setup.objective.answer_figures(setup.model, rows, setup.text)[metric]}

    return figures


def task_figures(setup: RunSetup) -> Figures | None:
    """The figures of the run's tasks; None without any. Raises ConfigError and PromptError."""
    tasks = setup.config.tasks
    if not tasks:
        return None
    if setup.template is None or not setup.objective.replies:
        raise ConfigError("tasks are for models that reply; this run makes none")
    measure = read_tasks(tasks, has_held_out=bool(setup.data.held_out))
    model, template = setup.speaker(), setup.template

    def figures() -> dict[str, float]:
        with _speaking(setup, model):
            return measure(model, template)

    return figures


def _exact_match(setup: RunSetup, rows: TrainingRows) -> Figures:
    model = setup.speaker()
    questions = list(islice(_questions(setup, rows, model), REPLIES))
    if not questions:
        raise ConfigError("train.metric_for_best_model is exact_match, but no held-out row asks")
    longest = setup.config.samples.max_tokens
    prompts = [question.ids for question in questions]
    references = [question.reference for question in questions]

    def figures() -> dict[str, float]:
        with _speaking(setup, model):
            replies = [reply.text for reply in greedy_replies(model, setup.stops, prompts, longest)]
        return {"exact_match": exact_match(replies, references)}

    return figures


Measure = Callable[[LanguageModel, ChatTemplate], float]


def read_tasks(
    tasks: Sequence[TaskSource], *, has_held_out: bool
) -> Callable[[LanguageModel, ChatTemplate], dict[str, float]]:
    """Measures a model by tasks, whose files are read at once: name -> figure, from 0 to 1.

    Of a prompt file the figure is its first metric, for the rows of `test`; without one, it is the
    fraction of passages whose last word is predicted. Raises ConfigError and PromptError.
    """
    if tasks and not has_held_out:
        raise ConfigError(
            "tasks are measured together with held-out rows, and there are none; set data.held_out"
        )
    measures = {task.name: _measure(task) for task in tasks}

    def figures(model: LanguageModel, template: ChatTemplate) -> dict[str, float]:
        return {name: measure(model, template) for name, measure in measures.items()}

    return figures


def _measure(task: TaskSource) -> Measure:
    """Reads the files of a task, and measures a model by it."""
    if not task.prompt:
        passages = subset(read_passages(Path(task.test)), task.limit, 0)
        texts = [passage.input for passage in passages]

        def last_words(model: LanguageModel, template: ChatTemplate) -> float:
            figures = lambada(model, texts).figures
            return figures["last_word"].accuracy if figures else 0.0

        return last_words
    prompt = load_prompt(Path(task.prompt))
    rows = subset(read_test(Path(task.test), prompt.columns), task.limit, 0)
    evaluated = Task(task.name, prompt, rows, task.test)

    def first_metric(model: LanguageModel, template: ChatTemplate) -> float:
        selectors = Selectors(evaluated, model, None)
        cells = [(evaluated, cell) for cell in plan(evaluated, Grid())]
        rows = evaluate(model, cells, {task.name: selectors}, template=template)
        return results([evaluated], rows, (), {task.name: selectors.voted})[0].mean

    return first_metric
