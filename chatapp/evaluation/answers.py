"""The raw answers of an evaluation: what `eval --report DIR` keeps in DIR/answers.jsonl.

The first line is the head: {"format": 1, "model": identity, "tasks": {name: {"prompt":
identity, "items": identity, "label_tokens": {label: number of tokens}}}}. Every other line is
the answer to one item in one setting:

    task, shots, selection, order, seed     the setting
    layout          how it was asked: direct, calibrated (direct with content-free inputs),
                    channel, text (generated) or vote (no model)
    style           text, turns (of a chat), or none for a vote; text where it is missing
    label_tokens    number of tokens by label, where turns have others than the head says
    item            the number of the item among those evaluated; line: in its file
    input, gold     the item
    examples        the demonstrations as indices into the pool, nearest first
    dropped         how many did not fit the window
    log_likelihoods by label, in nats: see `scoring.Likelihoods`; null for text and vote
    output          the text generated or voted for; null where labels were scored
    tokens, seconds the prompt's length, and the time the answer took

Keep: every figure of a report is arithmetic on these lines, so that accuracy under another
decision rule needs no model: `accuracies(path, rule)`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from chatapp.evaluation.journal import JournalRow, read_rows
from chatapp.fewshot.scoring import Likelihoods, best, probabilities
from chatapp.prompting.examples import PromptError
from chatapp.prompting.promptfile import Scoring

FORMAT = 1

Rule = Callable[[Likelihoods, dict[str, int]], str]
"""From likelihoods, and the number of tokens of each label, to an answer."""

NONE = "none"
"""The selection and the order of a prompt without demonstrations, and the style of a vote."""

Setting = tuple[str, int, str, str, str, str]
"""Task, shots, selection, order, layout and style."""


def setting_of(row: JournalRow) -> Setting:
    setting = row["task"], row["shots"], row["selection"], row["order"], row["layout"]
    return *setting, style_of(row)


def style_of(row: JournalRow) -> str:
    """How a row was laid out; rows of before there was a choice do not say."""
    return str(row.get("style", NONE if row["layout"] == "vote" else "text"))


def likelihoods_of(row: JournalRow) -> Likelihoods:
    """The likelihoods of a row of labels."""
    by_kind = row["log_likelihoods"]
    return Likelihoods(by_kind["direct"], tuple(by_kind["content_free"]), by_kind["channel"])


def decided(row: JournalRow, scoring: str) -> str:
    """The answer of a row; `scoring` decides between labels where there are any."""
    if row["log_likelihoods"] is None:
        return str(row["output"])
    return best(probabilities(likelihoods_of(row), cast(Scoring, scoring)))


def per_token(likelihoods: Likelihoods, tokens: dict[str, int]) -> str:
    """A rule that is none of the program's own: the likeliest label by its mean token."""
    return best({label: value / tokens[label] for label, value in likelihoods.direct.items()})


def accuracies(path: Path, rule: Rule) -> dict[Setting, float]:
    """The accuracy over items and seeds of every setting with scored labels, under a rule.

    The rule is only asked about settings that hold `direct` likelihoods.
    Raises PromptError when the file is not one of answers.
    """
    head, rows = read_answers(path)
    right: dict[Setting, list[bool]] = {}
    for row in rows:
        if row["layout"] in ("direct", "calibrated"):
            tokens = row.get("label_tokens") or head["tasks"][row["task"]]["label_tokens"]
            answer = rule(likelihoods_of(row), tokens)
            right.setdefault(setting_of(row), []).append(answer == row["gold"])
    return {setting: fmean(rights) for setting, rights in right.items()}


def read_answers(path: Path) -> tuple[dict[str, Any], Iterator[JournalRow]]:
    """The head and the answers in a file. Raises PromptError."""
    rows = read_rows(path)
    head = next(rows, {})
    if head.get("format") != FORMAT:
        raise PromptError(f"{path}: does not hold the answers of an evaluation")
    return head, rows
