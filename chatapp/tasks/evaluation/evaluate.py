"""Evaluates prompt files on test items in many settings: shots × selection × order × scoring ×
seeds.

Invariant: every answer is a row of its own (see `answers`), written as soon as it and those before
it are complete, so an interrupted evaluation continues where it stopped, even with additional
settings.
"""

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from chatapp.common.extras import require
from chatapp.common.userfiles import Progress
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.resolving import model_identity
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.template import PLAIN
from chatapp.rows.examples import PromptError
from chatapp.rows.reading import RowsError
from chatapp.tasks.answering import Answer, Answerer
from chatapp.tasks.evaluation.inputs import Item
from chatapp.tasks.evaluation.journal import (
    FORMAT,
    NONE,
    Cell,
    Journal,
    JournalRow,
    cell_of,
    log_likelihoods,
    prompt_identity,
    read_answers,
)
from chatapp.tasks.files.promptfile import CHOICE_SCORINGS, PromptFile, selector_for
from chatapp.tasks.selection.methods import Fixed, Selector, method_of, vote
from chatapp.tasks.selection.select import Select
from chatapp.tasks.settings import SETTINGS, Scoring, Style, Switch

AS_CHOSEN = "as chosen"
"""The order of unranked demonstrations, if none is requested."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt file with its test items. source: of the items, for errors."""

    name: str
    prompt: PromptFile
    items: Sequence[Item]
    source: str = "test items"


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings to vary; an empty tuple leaves one to the prompt file.

    select: methods, with an encoder as in "knn:minilm". seeds: how many, from `seed` on, for
    settings with random draws; others run once.
    """

    shots: tuple[int, ...] = ()
    select: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    scoring: tuple[Scoring, ...] = ()
    style: tuple[Style, ...] = ()
    instruction: tuple[Switch, ...] = ()
    seeds: int = 1
    seed: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Sequence[str]], seeds: int, seed: int) -> "Grid":
        """A grid from texts by the names of `SETTINGS`. Raises PromptError for a wrong one."""
        for name in values:
            if name not in SETTINGS:
                there = f"; there are {', '.join(SETTINGS)}"
                raise PromptError(f"{name}: there is no such setting{there}")
        for selection in values.get("select", ()):
            method_of(selection)
        read: dict[str, Any] = {
            name: tuple(setting.read(name, text) for text in values.get(name, ()))
            for name, setting in SETTINGS.items()
        }
        return cls(scoring=read.pop("score"), seeds=seeds, seed=seed, **read)


def subset(items: Sequence[Item], limit: int | None, seed: int) -> list[Item]:
    """At most `limit` of the items, drawn by the seed, in their own order."""
    if limit is None or limit >= len(items):
        return list(items)
    drawn = random.Random(f"subset {seed}").sample(range(len(items)), limit)
    return [items[index] for index in sorted(drawn)]


def plan(task: Task, grid: Grid) -> list[Cell]:
    """Every run of a task. Raises PromptError for a setting that does not suit the task, and
    MissingPackage.
    """
    prompt = task.prompt
    if "bleu" in prompt.metrics:
        require("sacrebleu")
    if prompt.text is not None:
        raise PromptError(f"{prompt.path}: is a text to complete and has no answers to measure")
    if prompt.documents is not None:
        raise prompt.error("documents", "searches documents, which an evaluation does not do")
    own = prompt.select.method + (f":{prompt.select.encoder}" if prompt.select.encoder else "")
    # A prompt without an instruction has nothing to switch off.
    switches: Sequence[Switch] = (prompt.instruction and grid.instruction) or ("on",)
    cells: dict[Cell, None] = {}
    for shots in grid.shots or (min(prompt.select.k, len(prompt.pool)),):
        if shots > len(prompt.pool):
            raise PromptError(
                f"{prompt.path}: {shots} shots were requested; its pool has {len(prompt.pool)}"
            )
        for select, order in product(grid.select or (own,), grid.order or (None,)):
            settings = [(NONE, NONE)] if not shots else [(select, _order(prompt, select, order))]
            for selection, printed in settings:
                scorings, styles = grid.scoring or (prompt.scoring,), grid.style or (prompt.style,)
                layouts = _layouts(prompt, selection, scorings)
                for style, switch, layout in product(styles, switches, layouts):
                    setting = (task.name, shots, selection, printed, layout, grid.seed)
                    ways = (NONE,) if layout == "vote" else (style, switch)
                    cell = Cell(*setting, *ways)
                    made = prompt_of(task, cell)
                    # Whether another seed can give other answers.
                    is_written = not (made.labels or made.choices)
                    is_drawn = is_written and made.generate.get("temperature", 0.0) > 0
                    is_shuffled = made.select.selector.draws or cell.order == "shuffled"
                    is_drawn = is_drawn or (is_shuffled and cell.shots > 0)
                    for seed in range(grid.seeds if is_drawn else 1):
                        cells[replace(cell, seed=grid.seed + seed)] = None
    if not cells:
        raise PromptError(f"{prompt.path}: --score does not apply to it: {', '.join(grid.scoring)}")
    return list(cells)


def prompt_of(task: Task, cell: Cell) -> PromptFile:
    """The task's prompt file with the settings of a cell. Raises PromptError."""
    keeps_order = cell.order in (NONE, AS_CHOSEN)
    return task.prompt.changed(
        shots=cell.shots,
        select=Fixed.name if cell.selection == NONE else cell.selection,
        order=None if keeps_order else cell.order,
        score=cell.layout if cell.layout in ("calibrated", "channel") else "direct",
        seed=cell.seed,
        style="text" if cell.style == NONE else cell.style,
        instruction=cell.instruction,
    )


def _order(prompt: PromptFile, select: str, order: str | None) -> str:
    method = method_of(select)
    if method.votes:
        return NONE
    order = order or prompt.select.order
    return order or ("nearest-last" if method.ranks else AS_CHOSEN)


def _layouts(prompt: PromptFile, selection: str, scorings: Sequence[Scoring]) -> list[str]:
    if selection != NONE and method_of(selection).votes:
        return ["vote"]
    if prompt.choices:
        return ["choices"] if {*scorings} & {*CHOICE_SCORINGS} else []
    if not prompt.labels:
        return ["text"]
    # Calibrated scoring includes the requests of direct scoring.
    layouts = ["calibrated"] if "calibrated" in scorings else ["direct"] * ("direct" in scorings)
    return layouts + ["channel"] * ("channel" in scorings)


class Selectors:
    """Selectors for cells, each index built once."""

    def __init__(self, task: Task, model: LanguageModel, progress: Progress | None) -> None:
        self._task = task
        self._model = model
        self._progress = progress
        self._built: dict[str, Selector | None] = {}

    def of(self, prompt: PromptFile) -> Selector | None:
        """The selector of a prompt file whose settings differ from the task's."""
        select = prompt.select
        method = select.selector
        key = select.model_copy(
            update={
                "k": 0,
                "order": None,
                # Only random draws depend on the seed; the baseline chooses the voters.
                "seed": select.seed if method.draws else 0,
                "method": method.baseline if method.votes else method.name,
            }
        ).model_dump_json()
        if key not in self._built:
            self._built[key] = selector_for(prompt, self._model, self._progress)
        return self._built[key]

    def voted(self, cell: Cell) -> list[str] | None:
        """The majority of the k nearest for each item, without a language model.

        Nearest by the baseline of the selection method and its encoder. None without demonstrations
        or labels, because generated answers are seldom equal.
        """
        prompt = prompt_of(self._task, cell)
        if not (cell.shots and prompt.labels):
            return None
        baseline = {"method": prompt.select.selector.baseline}
        prompt = replace(prompt, select=prompt.select.model_copy(update=baseline))
        selector = self.of(prompt)
        assert selector is not None  # there are shots, so there is a pool
        chosen = (selector.select(item.input, cell.shots) for item in self._task.items)
        return [vote(prompt.pool, voters) for voters in chosen]


def evaluate(
    model: LanguageModel,
    cells: Sequence[tuple[Task, Cell]],
    selectors: Mapping[str, Selectors],
    *,
    template: ChatTemplate = PLAIN,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> list[JournalRow]:
    """The rows of every cell, including those of an earlier start.

    selectors: by the task's name. template: renders turns. Raises PromptError when the journal is
    of another evaluation, and, before the first request, for an item that does not fit the window.
    """
    tasks = {task.name: task for task, _ in cells}
    _check_fit(model, template, cells)
    done = _earlier(journal, _head(model, tasks.values())) if journal else {}
    rows: list[JournalRow] = []
    total = sum(len(task.items) for task, _ in cells)
    for task, cell in cells:
        known = done.get(cell, {})
        rows += known.values()
        if progress:
            progress(len(rows), total)
        missing = [number for number in range(len(task.items)) if number not in known]
        if not missing:
            continue
        prompt = prompt_of(task, cell)
        selector = selectors[task.name].of(prompt)
        answerer = Answerer(model, prompt, selector, template=template)
        questions = (answerer.prepare(task.items[number]) for number in missing)
        numbers = iter(missing)
        for answers in answerer.answers(questions):
            new = [_row(task, cell, next(numbers), answer) for answer in answers]
            if cell.style == "turns":
                new = [row | {"label_tokens": answerer.label_tokens} for row in new]
            if journal:
                journal.append(new)
            rows += new
            if progress:
                progress(len(rows), total)
    return rows


def _check_fit(
    model: LanguageModel, template: ChatTemplate, cells: Iterable[tuple[Task, Cell]]
) -> None:
    """Raise PromptError for an item that does not fit even without demonstrations."""
    bare = {
        (task.name, cell.layout, cell.style): (task, cell)
        for task, cell in cells
        if cell.layout != "vote"
    }
    for task, cell in bare.values():
        answerer = Answerer(model, prompt_of(task, cell), None, template=template)
        for item in task.items:
            try:
                answerer.prepare(item)
            except RowsError as error:
                raise PromptError(f"{task.source}, line {item.line}: {error}") from None


def _row(task: Task, cell: Cell, number: int, answer: Answer) -> JournalRow:
    item = task.items[number]
    if answer.finished and answer.finished.reason == "error":
        raise PromptError(f"{task.source}, line {item.line}: {answer.finished.message}")
    likelihoods = log_likelihoods(answer)
    return {
        **asdict(cell),
        "item": number,
        "line": item.line,
        "input": item.input,
        "gold": item.output,
        "examples": [example.index for example in answer.question.examples],
        "dropped": len(answer.question.dropped),
        "log_likelihoods": likelihoods,
        "output": answer.output if likelihoods is None else None,
        "tokens": answer.prompt_tokens,
        "seconds": answer.seconds,
    }


def _head(model: LanguageModel, tasks: Iterable[Task]) -> JournalRow:
    return {
        "format": FORMAT,
        "model": model_identity(model),
        "tasks": {
            task.name: {
                "prompt": prompt_identity(_bare(task.prompt)),
                "items": _items_identity(task.items),
                "label_tokens": Answerer(model, _bare(task.prompt), None).label_tokens,
            }
            for task in tasks
        },
    }


def _bare(prompt: PromptFile) -> PromptFile:
    """A prompt file without the settings that an evaluation varies."""
    return replace(prompt, select=Select(), scoring="direct", style="text")


def _items_identity(items: Sequence[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        for text in (item.input, item.output, *item.values.values(), *item.choices, *item.answers):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:12]


def _earlier(journal: Journal, head: JournalRow) -> dict[Cell, dict[int, JournalRow]]:
    """The answers of an earlier start; writes the head when this is the first."""
    if next(journal.rows(), None) is None:
        journal.append([head])
        return {}
    earlier, rows = read_answers(journal.path)
    for part, what in (("model", "another model"), ("tasks", "other prompts or test items")):
        if earlier[part] != head[part]:
            raise PromptError(
                f"{journal.path}: holds the answers of an evaluation of {what}; "
                "choose another folder to keep it"
            )
    done: dict[Cell, dict[int, JournalRow]] = {}
    for row in rows:
        done.setdefault(cell_of(row), {})[row["item"]] = row
    return done
