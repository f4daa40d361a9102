"""The rewards of replies, by the checks of a configuration, including a user's function, and the
user's permission to run it.

Invariants: a reply's reward depends only on its prompt, its text and its length, never on other
replies. A user's function runs in another process with a minimal environment. Whatever it does, the
result here is a number or one sentence, and the process ends with this one at the latest, with all
that it has started.
"""

import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chatapp.common.foreign import one_line, parse_json, printable
from chatapp.common.limited_process import LimitPassedError, LineProcess, Program, Supervision
from chatapp.common.paths import trusted_folders_path
from chatapp.common.userfiles import UserError, quoted, read_text
from chatapp.dialogue.reply_scores import ReplyScorer
from chatapp.tasks.metrics import exact_match
from finetune.config.objectives import (
    Check,
    ExactMatch,
    Format,
    Function,
    GrpoSettings,
    Length,
    Model,
    NumericMatch,
    Regex,
    WithheldFunction,
)
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.prompts import EncodedPrompt

STARTING = 60.0
"""Seconds in which a file must load, with all its imports."""

_LONGEST_LINE = 10_000
"""Characters of a function's output that are read at once."""

_WORKER = Path(__file__).parent / "reward_worker.py"


class RewardError(UserError):
    """A reply got no reward: the check, the reply, and the reason."""


class RewardFunction:
    """The function `place`, file.py:function. timeout: time limit of a call in seconds.

    Raises ConfigError when there is no such function.
    """

    def __init__(self, place: str, timeout: float) -> None:
        self.place, self.timeout = place, timeout
        self._worker: LineProcess | None = None
        self._start()

    def __call__(self, prompt: str, reply: str, reference: str) -> float:
        """The function's reward of a reply. Raises RewardError."""
        worker = self._worker or self._start()
        request = {"prompt": prompt, "reply": reply, "reference": reference}
        answer = self._exchange(worker, request, self.timeout)
        if "value" in answer:
            return float(answer["value"])
        reason = one_line(str(answer["error"]))
        raise RewardError(
            f"{self.place} {reason}, for the reply {quoted(reply)} to {quoted(prompt)}"
        )

    def _start(self) -> LineProcess:
        file, _, name = self.place.rpartition(":")
        supervision = Supervision(
            Program((sys.executable, "-P", str(_WORKER), file, name), Path.cwd())
        )
        pipe = subprocess.PIPE
        process = supervision.start(stdin=pipe, stdout=pipe, stderr=pipe)
        self._worker = worker = LineProcess(process, partial(supervision.wait, process))
        weakref.finalize(self, worker.end)
        threading.Thread(target=self._pass_on, args=(process,), daemon=True).start()
        answer = self._exchange(worker, None, STARTING)
        if "ready" not in answer:
            self.close()
            reason = one_line(str(answer["error"]))
            raise ConfigError(f"objective.rewards: {self.place} cannot be loaded: {reason}")
        return worker

    def _exchange(
        self, worker: LineProcess, request: dict[str, str] | None, seconds: float
    ) -> dict[str, Any]:
        """The next answer of the process, or an error."""
        try:
            if request is not None:
                worker.send(request)
            answer = worker.next(seconds)
            if answer.keys() & {"ready", "value", "error"}:
                return answer
            error = "wrote between the answers of its process"
        except LimitPassedError as passed:
            late = passed.limit == "time"
            error = f"took longer than {seconds:g} seconds" if late else "ended its process"
        self.close()
        return {"error": error}

    @staticmethod
    def _pass_on(process: "subprocess.Popen[bytes]") -> None:
        """Show the function's output, without what a terminal would obey."""
        assert process.stderr is not None
        while line := process.stderr.readline(_LONGEST_LINE):
            sys.stderr.write(printable(line.decode("utf-8", "replace")))

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class DrawnReply:
    """A reply. ids: its tokens, including the one that ended it. text: without the space around it,
    and the stop string.
    """

    ids: list[int]
    text: str


Give = Callable[[EncodedPrompt, DrawnReply], float]


@dataclass(frozen=True, slots=True)
class _Judge:
    """A check that is ready: its name, its weight, and its function."""

    name: str
    weight: float
    give: Give


class Rewards:
    """The rewards of replies. Raises ConfigError and ModelError for an invalid check.

    functions: of the user. withheld: whether they do not run, and give 0.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        self._own: list[RewardFunction] = []
        self._judges = [_Judge(check.kind, check.weight, self._made(check)) for check in checks]
        self.needs_reference = any(isinstance(check, ExactMatch | NumericMatch) for check in checks)
        self.functions = [check.function for check in checks if isinstance(check, Function)]
        self.withheld = any(isinstance(check, WithheldFunction) for check in checks)

    @property
    def names(self) -> list[str]:
        """The names of the checks, in their order."""
        return [judge.name for judge in self._judges]

    def scores(self, prompt: EncodedPrompt, reply: DrawnReply) -> list[float]:
        """The value of each check for a reply, before its weight. Raises RewardError."""
        return [judge.give(prompt, reply) for judge in self._judges]

    def of(self, prompt: EncodedPrompt, reply: DrawnReply) -> float:
        """The reward: the weighted sum of the checks. Raises RewardError."""
        return sum(
            judge.weight * score
            for judge, score in zip(self._judges, self.scores(prompt, reply), strict=True)
        )

    def close(self) -> None:
        """End the processes of the user's functions; the next call starts others."""
        for function in self._own:
            function.close()

    def check_references(self, prompts: Sequence[EncodedPrompt]) -> None:
        """Raises ConfigError for a prompt without the reply that a check compares with."""
        if not self.needs_reference:
            return
        for prompt in prompts:
            if not prompt.reference:
                raise ConfigError(
                    "objective.rewards: exact_match and numeric_match compare with the row's own "
                    f"reply, which the prompt {quoted(prompt.text)} has not"
                )

    def _made(self, check: Check) -> Give:
        match check:
            case ExactMatch():
                return lambda prompt, reply: exact_match([reply.text], [prompt.reference])
            case NumericMatch():
                return _numbers_match
            case Regex():
                pattern = re.compile(check.pattern)
                return lambda prompt, reply: float(pattern.search(reply.text) is not None)
            case Length():
                return lambda prompt, reply: _within(len(reply.ids), check.least, check.most)
            case Format():
                has_form = _FORMS[check.form]
                return lambda prompt, reply: float(has_form(reply.text))
            case Model():
                return _by_model(ReplyScorer.load(check.run))
            case WithheldFunction():
                return lambda prompt, reply: 0.0
            case Function():
                function = RewardFunction(check.function, check.timeout)
                self._own.append(function)
                return lambda prompt, reply: function(prompt.text, reply.text, prompt.reference)


def _numbers_match(prompt: EncodedPrompt, reply: DrawnReply) -> float:
    expected = _last_number(prompt.reference)
    return float(expected is not None and expected == _last_number(reply.text))


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def _within(tokens: int, least: int, most: int) -> float:
    if tokens < least:
        return tokens / least
    return max(0.0, min(1.0, (2 * most - tokens) / most))


def _is_json(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict | list)
    except ValueError:
        return False


_FORMS: dict[str, Callable[[str], bool]] = {
    "number": lambda text: _NUMBER.fullmatch(text) is not None,
    "json": _is_json,
    "line": lambda text: bool(text) and len(text.splitlines()) == 1,
}


def _by_model(scorer: ReplyScorer) -> Give:
    def give(prompt: EncodedPrompt, reply: DrawnReply) -> float:
        try:
            # Templates leave out an empty reply, and there would be nothing to score.
            return scorer.score(prompt.messages, reply.text or ".")
        except ValueError as error:
            raise RewardError(f"{error}, for a reply to {quoted(prompt.text)}") from None

    return give


def withhold_code(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with every reward function replaced by one that does not run."""
    settings = config.objective
    if not _functions(config):
        return config
    assert isinstance(settings, GrpoSettings)
    rewards = [
        WithheldFunction(**check.model_dump()) if isinstance(check, Function) else check
        for check in settings.rewards
    ]
    return config.model_copy(update={"objective": settings.model_copy(update={"rewards": rewards})})


def require_permission(config: FinetuneConfig) -> None:
    """Ask the user whether the code of a configuration may run, unless that is known.

    Raises ConfigError when it may not, or when there is no terminal to ask on.
    """
    trusted = _trusted_folders()
    for place in _functions(config):
        file = Path(place.rpartition(":")[0]).absolute()
        if any(file.resolve().is_relative_to(folder) for folder in trusted):
            continue
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ConfigError(
                f"objective.rewards: {file} is code that would run as you, and there is no "
                f"terminal to ask on; {trusted_folders_path()} lists the folders whose code may "
                "run, one a line"
            )
        question = f"This configuration runs the code in {file} as you. Allow it? [y/N] "
        print(printable(question), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError(f"objective.rewards: {file} may not run")


def _functions(config: FinetuneConfig) -> list[str]:
    """The reward functions, each as file.py:function."""
    checks = config.objective.rewards if isinstance(config.objective, GrpoSettings) else []
    return list(dict.fromkeys(check.function for check in checks if isinstance(check, Function)))


def _trusted_folders() -> list[Path]:
    path = trusted_folders_path()
    lines = read_text(path, ConfigError).splitlines() if path.exists() else []
    folders = [Path(line.strip()).expanduser() for line in lines if line.strip()]
    return [folder.resolve() for folder in folders if folder.is_absolute()]
