"""Held-out figures that the loss does not give: the one by which a run selects its best weights,
and those of its tasks.

Invariant: answers come from the same code as in `finetune eval` and `finetune predict`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import Template
from chatapp.tasks.evaluation.evaluate import Grid, Selectors, evaluate, plan, subset
from chatapp.tasks.evaluation.evaluate import Task as Evaluated
from chatapp.tasks.evaluation.inputs import read_test
from chatapp.tasks.evaluation.language_modelling import lambada, read_passages
from chatapp.tasks.evaluation.metrics import exact_match
from chatapp.tasks.evaluation.report import results
from chatapp.tasks.files.promptfile import load_prompt
from finetune.config.sections import ConfigError
from finetune.config.tables import Task
from finetune.data.batches import TrainingRows
from finetune.data.preparation import HELD_OUT
from finetune.training.run_setup import RunSetup
from finetune.training.sample_replies import greedy_replies

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
        setup.model.eval()
        model.forget()
        measured = measure(model, template)
        model.forget()
        return measured

    return figures


def _exact_match(setup: RunSetup, rows: TrainingRows) -> Figures:
    model = setup.speaker()
    asks = setup.objective.questions(rows, setup.tokenizer, model.context, len(setup.start))
    questions = list(islice(asks, REPLIES))
    if not questions:
        raise ConfigError("train.metric_for_best_model is exact_match, but no held-out row asks")
    longest = setup.config.samples.max_tokens

    def figures() -> dict[str, float]:
        setup.model.eval()
        model.forget()
        prompts = [question.ids for question in questions]
        replies = [reply.text for reply in greedy_replies(model, setup.stops, prompts, longest)]
        model.forget()
        return {"exact_match": exact_match(replies, [question.reference for question in questions])}

    return figures


Measure = Callable[[LanguageModel, Template], float]


def read_tasks(
    tasks: Sequence[Task], *, has_held_out: bool
) -> Callable[[LanguageModel, Template], dict[str, float]]:
    """Measures a model by tasks, whose files are read at once: name -> figure, from 0 to 1.

    Of a prompt file the figure is its first metric, for the rows of `test`; without one, it is the
    fraction of passages whose last word is predicted. Raises ConfigError and PromptError.
    """
    if tasks and not has_held_out:
        raise ConfigError(
            "tasks are measured together with held-out rows, and there are none; set data.held_out"
        )
    measures = {task.name: _measure(task) for task in tasks}

    def figures(model: LanguageModel, template: Template) -> dict[str, float]:
        return {name: measure(model, template) for name, measure in measures.items()}

    return figures


def _measure(task: Task) -> Measure:
    if not task.prompt:
        passages = subset(read_passages(Path(task.test)), task.limit, 0)
        return partial(_last_words, [passage.input for passage in passages])
    prompt = load_prompt(Path(task.prompt))
    rows = subset(read_test(Path(task.test), prompt.labels, prompt.columns), task.limit, 0)
    return partial(_prompt_file, Evaluated(task.name, prompt, rows, task.test))


def _last_words(passages: Sequence[str], model: LanguageModel, template: Template) -> float:
    figures = lambada(model, passages).figures
    return figures["last_word"].accuracy if figures else 0.0


def _prompt_file(task: Evaluated, model: LanguageModel, template: Template) -> float:
    selectors = Selectors(task, model, None)
    cells = [(task, cell) for cell in plan(task, Grid())]
    rows = evaluate(model, cells, {task.name: selectors}, template=template)
    return results([task], rows, (), {task.name: selectors.voted})[0].mean
