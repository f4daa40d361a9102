"""Answers a file of inputs row by row, into a file that a restart continues.

Invariant: row n of the output belongs to row n of the inputs, including bad ones, so a continued
run loses none and repeats none.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from chatapp.prompting.examples import PromptError, Query, item_of
from chatapp.prompting.messages import text_of
from chatapp.tasks.answering import Answer, Answering, Question
from chatapp.tasks.evaluation.inputs import Inputs
from chatapp.tasks.evaluation.journal import Journal, JournalRow
from chatapp.tasks.files.layout import Demonstration

Item = TypeVar("Item")


def document(answer: Answer) -> dict[str, Any]:
    """An answer as plain data. Times are in seconds, likelihoods in nats."""
    finished = answer.finished
    return {
        "input": answer.question.input,
        "output": answer.output,
        "label_probabilities": answer.probabilities,
        "log_likelihoods": log_likelihoods(answer),
        "examples": [_demonstration(example) for example in answer.question.examples],
        "dropped": [_demonstration(example) for example in answer.question.dropped],
        "prompt": text_of(answer.question.segments),
        "finish_reason": finished.reason if finished else None,
        "prompt_tokens": answer.prompt_tokens,
        "reply_tokens": finished.reply_tokens if finished else 0,
        "time_to_first_token": finished.time_to_first_token if finished else None,
        "tokens_per_second": finished.tokens_per_second if finished else None,
        "seconds": answer.seconds,
    } | (finished.fit if finished else {})


def log_likelihoods(answer: Answer) -> dict[str, Any] | None:
    """The raw numbers behind an answer; None if it is no scored label."""
    likelihoods = answer.likelihoods
    if likelihoods is None:
        return None
    of_choices = {
        "tokens": dict(likelihoods.tokens),
        "unconditional": dict(likelihoods.unconditional),
    }
    return {
        "direct": dict(likelihoods.direct),
        "content_free": [dict(sums) for sums in likelihoods.content_free],
        "channel": dict(likelihoods.channel),
        **(of_choices if likelihoods.tokens else {}),
    }


def _demonstration(example: Demonstration) -> dict[str, Any]:
    return {"index": example.index, "similarity": example.similarity}


def answer_all(
    answerer: Answering,
    inputs: Inputs,
    *,
    source: str,
    identity: str,
    journal: Journal | None,
    report: Callable[[str], None],
) -> Iterator[list[JournalRow]]:
    """Answer every input; yield the new rows a few at a time, after they are written.

    A row is the `document` of an answer, with the `line` of its input and its `run`; a bad input
    has an `error` instead of an answer. source: of the inputs, for errors. identity: of prompt,
    model and options. report: called with the error of each bad row, also of those from an earlier
    start. Raises PromptError when the journal is of another run or of other inputs.
    """
    numbered = (({"line": line, "input": _text_of(query)}, query) for line, query in inputs)
    waiting = unanswered(numbered, journal, identity, report)
    for rows in _answered(answerer, waiting, source):
        for row in rows:
            row["run"] = identity
            if "error" in row:
                report(row["error"])
        if journal:
            journal.append(rows)
        yield rows


def unanswered(
    inputs: Iterable[tuple[JournalRow, Item]],
    journal: Journal | None,
    identity: str,
    report: Callable[[str], None],
) -> Iterator[tuple[JournalRow, Item]]:
    """The inputs without a row, each with the beginning of its row.

    inputs: each with the beginning of its row, its place and its text; existing rows must begin in
    the same way. identity, report: see `answer_all`. Raises PromptError.
    """
    done = journal.rows() if journal else iter(())
    for beginning, item in inputs:
        row = next(done, None)
        if row is None:
            yield beginning, item
            continue
        if row.get("run") != identity:
            raise PromptError(
                f"{_place(journal)}: was written with another prompt, model or option; "
                "choose another file to keep it"
            )
        if any(row.get(key) != value for key, value in beginning.items()):
            place = next(iter(beginning))
            raise PromptError(
                f"{_place(journal)}: its row for {place} {row.get(place)} does not match "
                "these inputs; choose another file to keep it"
            )
        if "error" in row:
            report(str(row["error"]))
    if next(done, None) is not None:
        raise PromptError(f"{_place(journal)}: has more rows than there are inputs")


def _text_of(query: Query | PromptError) -> str | None:
    return None if isinstance(query, PromptError) else item_of(query).input


def _place(journal: Journal | None) -> str:
    return str(journal.path) if journal else ""


def _answered(
    answerer: Answering, inputs: Iterable[tuple[JournalRow, Query | PromptError]], source: str
) -> Iterator[list[JournalRow]]:
    """The row of each input, in order, after its beginning."""
    taken: deque[JournalRow] = deque()

    def questions() -> Iterator[Question]:
        for row, query in inputs:
            taken.append(row)
            if isinstance(query, PromptError):
                row["error"] = str(query)
                continue
            try:
                yield answerer.prepare(query)
            except PromptError as error:
                row["error"] = f"{source}, line {row['line']}: {error}"

    for answers in answerer.answers(questions()):
        rows = []
        for answer in answers:
            while "error" in taken[0]:
                rows.append(taken.popleft())
            rows.append(taken.popleft())
            if answer.finished and answer.finished.reason == "error":
                rows[-1]["error"] = f"{source}, line {rows[-1]['line']}: {answer.finished.message}"
            else:
                rows[-1].update(document(answer))
        yield rows
    if taken:  # the last inputs were bad
        yield list(taken)
