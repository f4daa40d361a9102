"""The rewards of replies, by the checks of a configuration.

Keep: a reply's reward hangs on its prompt, its text and its length alone, never on other replies.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chatapp.dialogue.best_of import ReplyScorer
from chatapp.evaluation.metrics import exact_match
from chatapp.userfiles import quoted
from finetune.config import ConfigError
from finetune.data.prompts import Asked
from finetune.objectives.reward_function import RewardError, RewardFunction
from finetune.reward_settings import (
    Check,
    ExactMatch,
    Format,
    Function,
    Length,
    Model,
    NumericMatch,
    Regex,
)

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class DrawnReply:
    """A reply. ids: its tokens as they were drawn, the one that ended it included. text: without
    the space around it and what stopped it."""

    ids: list[int]
    text: str


Give = Callable[[Asked, DrawnReply], float]


@dataclass(frozen=True, slots=True)
class _Judge:
    """A check that is ready: its name, its weight, and what it gives a reply."""

    name: str
    weight: float
    give: Give


class Rewards:
    """What replies are worth. Raises ConfigError and ModelError for a check that cannot be made.

    functions: of the user's own, which run.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        self._judges = [_Judge(check.kind, check.weight, _made(check)) for check in checks]
        self.needs_reference = any(isinstance(each, ExactMatch | NumericMatch) for each in checks)
        self.functions = [each.function for each in checks if isinstance(each, Function)]

    @property
    def names(self) -> list[str]:
        """Of the checks, in their order."""
        return [judge.name for judge in self._judges]

    def each(self, asked: Asked, reply: DrawnReply) -> list[float]:
        """What each check gives a reply, before its weight. Raises RewardError."""
        return [judge.give(asked, reply) for judge in self._judges]

    def of(self, asked: Asked, reply: DrawnReply) -> float:
        """The reward: what the checks give by their weights, added up. Raises RewardError."""
        return sum(
            judge.weight * given
            for judge, given in zip(self._judges, self.each(asked, reply), strict=True)
        )

    def check_references(self, asked: Sequence[Asked]) -> None:
        """Raises ConfigError for a prompt without the reply that a check compares with."""
        if not self.needs_reference:
            return
        for each in asked:
            if not each.reference:
                raise ConfigError(
                    "objective.rewards: exact_match and numeric_match compare with the row's own "
                    f"reply, which the prompt {quoted(each.text)} has not"
                )


def _made(check: Check) -> Give:
    match check:
        case ExactMatch():
            return lambda asked, reply: exact_match([reply.text], [asked.reference])
        case NumericMatch():
            return lambda asked, reply: float(_numbers_match(asked.reference, reply.text))
        case Regex():
            pattern = re.compile(check.pattern)
            return lambda asked, reply: float(pattern.search(reply.text) is not None)
        case Length():
            return lambda asked, reply: _within(len(reply.ids), check.least, check.most)
        case Format():
            has_form = _FORMS[check.form]
            return lambda asked, reply: float(has_form(reply.text))
        case Model():
            return _by_model(ReplyScorer.load(check.run))
        case Function():
            function = RewardFunction(check.function, check.timeout)
            return lambda asked, reply: function(asked.text, reply.text, asked.reference)


def _numbers_match(reference: str, text: str) -> bool:
    wanted, found = _last_number(reference), _last_number(text)
    return wanted is not None and wanted == found


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def _within(tokens: int, least: int, most: int) -> float:
    if tokens < least:
        return tokens / least
    return max(0.0, min(1.0, (2 * most - tokens) / most))


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


_FORMS: dict[str, Callable[[str], bool]] = {
    "number": lambda text: _NUMBER.fullmatch(text) is not None,
    "json": _is_json,
    "line": lambda text: bool(text) and len(text.splitlines()) == 1,
}


def _by_model(scorer: ReplyScorer) -> Give:
    def give(asked: Asked, reply: DrawnReply) -> float:
        try:
            # Templates leave an empty reply out, and nothing would be left to score.
            return scorer.score(asked.messages, reply.text or ".")
        except ValueError as error:
            raise RewardError(f"{error}, for a reply to {quoted(asked.text)}") from None

    return give
