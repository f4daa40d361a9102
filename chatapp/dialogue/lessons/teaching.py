"""Models that a lesson makes: `finetune train`, run as in a terminal, in a folder of its own; and
whether each step of a lesson still shows what its text says.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from chatapp.common.userfiles import UserError
from chatapp.dialogue.lessons.lesson import Bounds, Expect, Lesson, Step

if TYPE_CHECKING:
    from chatapp.dialogue.lessons.outcome import StepOutcome
    from chatapp.engine.model import LanguageModel


Say = Callable[[str], None]


def _silent(line: str) -> None:
    """Says nothing."""


class Workshop:
    """The models that a lesson teaches, while it is open."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._folder: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the training that runs, and delete the models."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def has_made(self, name: str) -> bool:
        """Whether a model needs no training any more."""
        made = self._folder is not None and (Path(self._folder.name) / name).is_dir()
        return name not in self._lesson.teach or made

    def folder(self, name: str, say: Say = _silent) -> str:
        """The folder of a model that the lesson teaches, taught now if it is not yet; the name of
        any other model. Takes seconds to a minute. Raises UserError.

        say: gets each line of the training.
        """
        config = self._lesson.teach.get(name)
        if config is None:
            return name
        with self._lock:
            if self._is_closed:
                raise UserError("the lesson has ended")
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="chatapp-lesson-")
            place = Path(self._folder.name)
            if not (place / name).is_dir():
                self._train(Path(config), place, name, say)
            return str(place / name)

    def _train(self, config: Path, place: Path, name: str, say: Say) -> None:
        """Train into a draft folder, so that an interrupted training leaves no model."""
        draft = place / "draft"
        self._process = subprocess.Popen(
            # -P: no module in the lesson's folder can replace one of ours.
            [sys.executable, "-P", "-m", "finetune", "train", config.name, f"output={draft}"],
            cwd=config.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
        )
        last = ""
        with self._process as process:
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip() or last
                say(last)
        if process.returncode:
            raise UserError(f"the model {name} could not be taught: {last}")
        draft.rename(place / name)


Load = Callable[[str], "LanguageModel"]
"""Loads a model by its name or folder."""

_SHOWN = 80
"""Characters of a reply in a sentence."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A step after its check. number: from 1. problems: sentences; none if all is as expected."""

    number: int
    step: Step
    problems: tuple[str, ...]


def check_lesson(lesson: Lesson, load: Load) -> Iterator[Checked]:
    """Run each step without a screen. Raises UserError for a model that cannot be loaded."""
    loaded: tuple[str, LanguageModel] | None = None
    with Workshop(lesson) as workshop:
        for number, step in enumerate(lesson.steps, 1):
            problems: list[str] = []
            if step.input:
                name = workshop.folder(lesson.model_of(step))
                if loaded is None or loaded[0] != name:
                    loaded = name, load(name)
                problems = _problems(lesson, step, loaded[1])
            yield Checked(number, step, tuple(problems))


def _problems(lesson: Lesson, step: Step, model: "LanguageModel") -> list[str]:
    from chatapp.dialogue.lessons.outcome import StepOutcome

    try:
        outcome = StepOutcome(lesson, step, model)
        if step.token is not None:
            _ = outcome.position
        return list(failures(step.expect, outcome))
    except (UserError, ValueError, IndexError) as error:  # a token, part or layer that is not there
        return [str(error)]


def failures(expect: Expect, outcome: "StepOutcome") -> Iterator[str]:
    """What is not as expected, in sentences. Raises UserError, ValueError and IndexError for a
    token, a part or a layer that is not there.
    """
    reply = outcome.reply
    shown = repr(reply if len(reply) <= _SHOWN else f"{reply[:_SHOWN]}…")
    yield from (f"the reply lacks {text!r}: {shown}" for text in expect.reply if text not in reply)
    yield from (f"the reply has {text!r}: {shown}" for text in expect.lacks if text in reply)
    if expect.tokens and expect.tokens != list(outcome.texts):
        yield f"the tokens are {list(outcome.texts)}, expected {expect.tokens}"
    yield from _outside("tokens of the text", len(outcome.ids), expect.count)
    yield from _outside("examples in the prompt", outcome.examples, expect.examples)
    if expect.likeliest is not None:
        likeliest = outcome.next.cut.before.candidates[0].text
        if likeliest != expect.likeliest:
            yield f"the likeliest token is {likeliest!r}, expected {expect.likeliest!r}"
    for token, bounds in expect.probability.items():
        yield from _outside(f"the probability of {token!r}", outcome.probability(token), bounds)
    if expect.entropy is not None:
        bits = outcome.next.cut.before.entropy
        yield from _outside("bits of entropy", 0.0 if bits is None else bits, expect.entropy)
    if expect.left is not None:
        yield from _outside("tokens left", outcome.next.cut.kept, expect.left)
    for token, bounds in expect.attends.items():
        yield from _outside(f"the weight on {token!r}", outcome.weight(token), bounds)
    for layer, token in expect.layers.items():
        if (likeliest := outcome.likeliest(layer)) != token:
            yield f"the likeliest token after layer {layer} is {likeliest!r}, expected {token!r}"
    if expect.slower is not None:
        yield from _outside("times as long without the cache", outcome.slower, expect.slower)
    for head, bounds in expect.induction.items():
        yield from _outside(f"the induction score of {head}", outcome.induction(head), bounds)
    for part, bounds in expect.share.items():
        if part not in outcome.shares:
            raise UserError(f"there is no part {part!r}")
        yield from _outside(f"the share of {part}", outcome.shares[part], bounds)


def _outside(what: str, value: float, bounds: Bounds | None) -> Iterator[str]:
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        yield f"{what}: {value:.4g}, expected {bounds[0]:g} to {bounds[1]:g}"
