"""Items of public data sets, from the formats in which they are published.

A prompt file names its format (`format = "copa"`); then its pool and its test items are read as the
data set's own files, or as its rows on the hub. Each record becomes the fields that a prompt file
of the library uses.

    copa, boolq, wic    JSON Lines of SuperGLUE (boolq also its first release, with `answer`)
    story_cloze         CSV of the Story Cloze Test
    race                one JSON object per file, with several questions on its article
    hellaswag, arc      JSON Lines
    piqa                JSON Lines, the labels in NAME-labels.lst beside NAME.jsonl or in `label`
    triviaqa            JSON with the questions under `Data`
    webquestions        JSON list with `utterance` and `targetValue`
    squad, gsm8k, mmlu  rows on the hub
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import quoted, shown

Record = Mapping[Any, Any]
Items = Iterable[dict[str, Any]]


class FormatFault(ValueError):
    """A record without what its format has, in words."""


def _get(record: Record, *names: str) -> Any:
    """The value under the first of these names. Raises FormatFault."""
    for name in names:
        if name in record:
            return record[name]
    raise FormatFault(f"no field {quoted(names[0])}, which this format has")


def _text(record: Record, *names: str) -> str:
    value = _get(record, *names)
    if not isinstance(value, str):
        raise FormatFault(f"{names[0]!r} is {shown(value)}, expected a string")
    return value.strip()


def _texts(record: Record, name: str) -> list[str]:
    value = _get(record, name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise FormatFault(f"{name!r} is {shown(value)}, expected a list of strings")
    return [text.strip() for text in value]


def _chosen(choices: list[str], label: object, first: int = 0) -> dict[str, Any]:
    """Choices, and the one with this number. first: the number of the first choice."""
    text = str(label)
    number = int(text) - first if text.isascii() and text.isdigit() else -1
    if not 0 <= number < len(choices):
        raise FormatFault(f"{shown(label)} is not the number of one of {len(choices)} choices")
    return {"choices": choices, "answer": choices[number]}


def _yes_no(record: Record, *names: str) -> str:
    value = _get(record, *names)
    if not isinstance(value, int) or value not in (0, 1):
        raise FormatFault(f"{names[0]!r} is {shown(value)}, expected true or false")
    return "yes" if value else "no"


def _copa(record: Record) -> Items:
    question = _text(record, "question")
    if question not in ("cause", "effect"):
        raise FormatFault(f"'question' is {quoted(question)}, expected 'cause' or 'effect'")
    premise = _text(record, "premise").removesuffix(".")
    choices = [_text(record, name) for name in ("choice1", "choice2")]
    lowered = [choice[:1].lower() + choice[1:] for choice in choices]
    context = f"{premise} {'because' if question == 'cause' else 'therefore'}"
    yield {"context": context} | _chosen(lowered, _get(record, "label"))


def _story_cloze(record: Record) -> Items:
    story = " ".join(_text(record, f"InputSentence{number}") for number in range(1, 5))
    endings = [_text(record, f"RandomFifthSentenceQuiz{number}") for number in (1, 2)]
    yield {"context": story} | _chosen(endings, _get(record, "AnswerRightEnding"), first=1)


def _race(record: Record) -> Items:
    if isinstance(record.get("text"), str):  # a file of its own
        try:
            record = dict(parse_json(record["text"]))
        except (ValueError, TypeError) as error:
            raise FormatFault(f"is not a JSON object: {error}") from None
    article = _text(record, "article")
    names = ("questions", "options", "answers")
    rows = (
        [[_get(record, name)] for name in ("question", "options", "answer")]
        if "answer" in record
        else [_get(record, name) for name in names]
    )
    if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise FormatFault("'questions', 'options' and 'answers' are not lists of equal length")
    for question, options, answer in zip(*rows, strict=True):
        fields = {"question": question, "options": options}
        number = "ABCD".find(answer) if isinstance(answer, str) and answer else -1
        chosen = _chosen(_texts(fields, "options"), number)
        yield {"article": article, "question": _text(fields, "question")} | chosen


def _hellaswag(record: Record) -> Items:
    """The markup of WikiHow is cleaned as lm-evaluation-harness does."""

    def clean(text: str) -> str:
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ")

    second = _text(record, "ctx_b")
    context = f"{_text(record, 'ctx_a')} {second[:1].upper()}{second[1:].lower()}"
    context = clean(f"{_text(record, 'activity_label')}: {context}")
    endings = [clean(ending) for ending in _texts(record, "endings")]
    yield {"context": context} | _chosen(endings, _get(record, "label"))


def _piqa(record: Record) -> Items:
    choices = [_text(record, name) for name in ("sol1", "sol2")]
    yield {"goal": _text(record, "goal")} | _chosen(choices, _get(record, "label"))


def _arc(record: Record) -> Items:
    question = _get(record, "question")
    if isinstance(question, str):  # on the hub
        question = {"stem": question, "choices": _pairs(record.get("choices"))}
    if not isinstance(question, Mapping) or not isinstance(question.get("choices"), list):
        raise FormatFault("'question' is not an object with 'stem' and 'choices'")
    options = [option for option in question["choices"] if isinstance(option, Mapping)]
    if not options:
        raise FormatFault("'question' is not an object with 'stem' and 'choices'")
    labels = [_text(option, "label") for option in options]
    key = _text(record, "answerKey")
    if key not in labels:
        raise FormatFault(f"'answerKey' is {quoted(key)}, which is not the label of a choice")
    choices = [_text(option, "text") for option in options]
    yield {"question": _text(question, "stem")} | _chosen(choices, labels.index(key))


def _pairs(choices: object) -> list[dict[str, str]]:
    if not isinstance(choices, Mapping):
        return []
    both = zip(_texts(choices, "text"), _texts(choices, "label"), strict=False)
    return [{"text": text, "label": label} for text, label in both]


def _triviaqa(record: Record) -> Items:
    if isinstance(record.get("Data"), list):  # a file of its own
        for item in record["Data"]:
            yield from _triviaqa(item if isinstance(item, Mapping) else {})
        return
    answer = _get(record, "Answer", "answer")
    if not isinstance(answer, Mapping):
        raise FormatFault(f"'Answer' is {shown(answer)}, expected an object")
    first = _text(answer, "Value", "value")
    aliases = next((name for name in ("Aliases", "aliases") if name in answer), "")
    answers = list(dict.fromkeys([first, *(_texts(answer, aliases) if aliases else [])]))
    yield {"question": _text(record, "Question", "question"), "answers": answers}


def _squad(record: Record) -> Items:
    answers = _get(record, "answers")
    if not isinstance(answers, Mapping):
        raise FormatFault(f"'answers' is {shown(answers)}, expected an object")
    fields = {name: _text(record, name) for name in ("context", "question")}
    yield fields | {"answers": list(dict.fromkeys(_texts(answers, "text"))) or ["unanswerable"]}


def _gsm8k(record: Record) -> Items:
    """The worked answer without the marks of the calculator; its last line is the number."""
    solution = re.sub(r"<<[^<]*?>>", "", _text(record, "answer"))
    if "####" not in solution:
        raise FormatFault("'answer' has no final number after ####")
    yield {"question": _text(record, "question"), "solution": solution}


def _mmlu(record: Record) -> Items:
    choices = _texts(record, "choices")
    letters = list("ABCDEFGH"[: len(choices)])
    listed = [f"{letter}. {choice}" for letter, choice in zip(letters, choices, strict=False)]
    fields = {"question": _text(record, "question"), "options": "\n".join(listed)}
    yield fields | _chosen(letters, _get(record, "answer"))


_DESCRIPTION = re.compile(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()]*))\)')


def _webquestions(record: Record) -> Items:
    target = _text(record, "targetValue")
    answers = [re.sub(r"\\(.)", r"\1", a or b) for a, b in _DESCRIPTION.findall(target)]
    if not answers:
        raise FormatFault("'targetValue' holds no description")
    yield {"question": _text(record, "utterance"), "answers": answers}


def _boolq(record: Record) -> Items:
    question = _text(record, "question").removesuffix("?")
    answer = _yes_no(record, "label", "answer")
    yield {"passage": _text(record, "passage"), "question": question, "answer": answer}


def _wic(record: Record) -> Items:
    names = ("word", "sentence1", "sentence2")
    fields = {name: _text(record, name) for name in names}
    yield fields | {"answer": _yes_no(record, "label")}


FORMATS: dict[str, Callable[[Record], Items]] = {
    "copa": _copa,
    "story_cloze": _story_cloze,
    "race": _race,
    "hellaswag": _hellaswag,
    "piqa": _piqa,
    "arc": _arc,
    "triviaqa": _triviaqa,
    "webquestions": _webquestions,
    "boolq": _boolq,
    "wic": _wic,
    "squad": _squad,
    "gsm8k": _gsm8k,
    "mmlu": _mmlu,
}
"""The items of a record, by the name of the format. They raise FormatFault."""
