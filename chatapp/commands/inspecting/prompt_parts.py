"""What in a prompt mattered, for `chatapp run --parts` and `chatapp inspect --parts`.

Invariant: nothing of torch is imported before a model is loaded, nor rich before it draws.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatapp.commands.console import progress
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.prompt_parts import PromptParts
    from chatapp.tasks.answering import Answer, Answering


def explain_answer(answerer: "Answering", answer: "Answer") -> "PromptParts":
    """What in its prompt made an answer: the label against the second most likely one, or the first
    token of a generated text against its runner-up.

    Raises UserError for answers that no single prompt was scored for.
    """
    from chatapp.lab.prompt_parts import attribute_prompt, parts_of_segments
    from chatapp.tasks.answering import Answerer

    likelihoods = answer.likelihoods
    is_direct = likelihoods is None or not likelihoods.channel
    if not isinstance(answerer, Answerer) or not answer.question.segments or not is_direct:
        raise UserError(
            "--parts explains labels that are scored directly and generated texts, not votes, "
            "heads or channel scoring"
        )
    labels: list[list[int]] = []
    if likelihoods is not None:
        direct = likelihoods.direct
        others = (label for label in direct if label != answer.output)
        second = max(others, key=direct.__getitem__, default=None)
        chosen = [answer.output] if second is None else [answer.output, second]
        options = answerer.option_ids(answer.question.item)
        labels = [options[label] for label in chosen]
    with progress("Hiding parts of the prompt") as report:
        return attribute_prompt(
            answerer.model,
            answerer.prompt_ids(answer.question),
            parts_of_segments(answer.question.segments, answerer.model.tokenizer),
            *labels,
            by_token=False,
            progress=report,
        )


def explain_text(
    model: "LanguageModel",
    ids: Sequence[int],
    answer: str | None = None,
    against: str | None = None,
    following: int | None = None,
) -> "PromptParts":
    """What in a text made what comes next, and not something else.

    answer, against: the two as text, each of one or more tokens; by default the next token, or the
    most likely one, and the runner-up. Raises UserError.
    """
    from chatapp.lab.experiments import MEAN
    from chatapp.lab.prompt_parts import attribute_prompt, parts_of_text

    if against == MEAN:
        raise UserError("--parts compares two answers; --against mean is for the other questions")
    if "" in (answer, against):
        raise UserError("--answer and --against need a text of at least one token")
    compared = [
        [] if text is None else model.tokenizer.encode(text, begins=False)
        for text in (answer, against)
    ]
    if answer is None and following is not None:
        compared[0] = [following]
    spans = parts_of_text(model.tokenizer.decode(ids), ids, model.tokenizer)
    with progress("Hiding tokens") as report:
        return attribute_prompt(model, ids, spans, *compared, progress=report)


def show_parts(parts: "PromptParts") -> None:
    """Print on standard error which part was used most, and the effect of each."""
    from rich.console import Console

    from chatapp.lab.figures.console import drawn

    console = Console(stderr=True, highlight=False)
    for part in drawn([parts], console.width):
        console.print(part)
