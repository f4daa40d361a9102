"""Answers and measures prompt files with a model: with the template of its turns and the passages
of their documents.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from chatapp.common.userfiles import Progress, no_progress
from chatapp.dialogue.documents.sources import fitting, texts_in_prompt
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.backends.head import HeadModel
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.template import PLAIN
from chatapp.tasks.answering import Answerer, HeadAnswerer, LookUp, head_of
from chatapp.tasks.files.promptfile import PromptFile, selector_for

if TYPE_CHECKING:
    from chatapp.tasks.evaluation.evaluate import Grid, Task
    from chatapp.tasks.evaluation.journal import Journal
    from chatapp.tasks.evaluation.report import Result

Shown = Callable[[str], AbstractContextManager[Progress]]
"""Shows how far work with a title is, while the context lasts."""


def quiet(title: str) -> AbstractContextManager[Progress]:
    """Nobody is waiting."""
    return nullcontext(no_progress)


def template_for(prompts: Iterable[PromptFile], model: LanguageModel) -> ChatTemplate:
    """The template that renders turns with a model, if one of the prompts has turns.

    Raises UserError for an unusable template of the model.
    """
    if all(prompt.style == "text" for prompt in prompts):
        return PLAIN
    return choose_template(model, "")


def answerer_for(
    prompt: PromptFile,
    model: LanguageModel,
    sampling: Sampling | None = None,
    shown: Shown = quiet,
    reading: Shown = quiet,
) -> Answerer:
    """Answers inputs as a prompt file says. Raises UserError.

    sampling: of generated answers; None for the prompt file's. shown: the progress of reading the
    pool. reading: that of reading documents, for each input.
    """
    with shown("Reading the pool") as progress:
        selector = selector_for(prompt, model, progress)
    return Answerer(
        model,
        prompt,
        selector,
        sampling=sampling,
        template=template_for([prompt], model),
        look_up=_look_up_for(prompt, model, reading),
    )


def _look_up_for(prompt: PromptFile, model: LanguageModel, reading: Shown) -> LookUp | None:
    """Finds the passages for a prompt file; None if it uses no documents."""
    if prompt.documents is None:
        return None
    from chatapp.dialogue.documents.search import Documents

    documents = Documents(prompt.documents, model)

    def look_up(text: str, room: int, count: Callable[[str], int]) -> tuple[str, ...]:
        with reading("Reading documents") as progress:
            passages = documents.search(text, progress)
        return texts_in_prompt(fitting(passages, room, count))

    return look_up


def measure_tasks(
    model: LanguageModel,
    tasks: "Sequence[Task]",
    grid: "Grid",
    journal: "Journal | None" = None,
    shown: Shown = quiet,
) -> "list[Result]":
    """The results of a model for each task and setting. Raises UserError.

    journal: receives each answer, and has those of an earlier start.
    """
    from chatapp.tasks.evaluation.evaluate import Selectors, evaluate, plan, prompt_of
    from chatapp.tasks.evaluation.report import results

    cells = [(task, cell) for task in tasks for cell in plan(task, grid)]
    with shown("Reading the pools") as progress:
        selectors = {task.name: Selectors(task, model, progress) for task in tasks}
        for task, cell in cells:
            selectors[task.name].of(prompt_of(task, cell))
    template = template_for([prompt_of(task, cell) for task, cell in cells], model)
    with shown("Evaluating") as progress:
        rows = evaluate(
            model, cells, selectors, template=template, journal=journal, progress=progress
        )
    votes = {name: selector.voted for name, selector in selectors.items()}
    return results(tasks, rows, grid.scoring, votes, _by_head(tasks, head_of(model), shown))


def _by_head(tasks: "Sequence[Task]", head: HeadModel | None, shown: Shown) -> dict[str, list[str]]:
    """The answers of a model's head to the items of each task that has its labels."""
    answered = {}
    for task in tasks:
        if head is None or set(task.prompt.labels) != set(head.spec.labels):
            continue
        answerer = HeadAnswerer(head, task.prompt)
        with shown(f"Running the head, {task.name}") as progress:
            outputs = []
            for number, item in enumerate(task.items, 1):
                (answer,) = answerer.answer([answerer.prepare(item.input)])
                outputs.append(answer.output)
                progress(number, len(task.items))
            answered[task.name] = outputs
    return answered
