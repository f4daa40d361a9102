"""What in a prompt mattered, for `chatapp run --parts`.

Invariant: nothing of torch is imported before a model is loaded, nor rich before it draws.
"""

from typing import TYPE_CHECKING

from chatapp.commands.console import progress
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.lab.views.prompt_part_view import PromptParts
    from chatapp.tasks.answering import Answer, Answering


def explain_answer(answerer: "Answering", answer: "Answer") -> "PromptParts":
    """What in its prompt made an answer: the label against the second most likely one, or the first
    token of a generated text against its runner-up.

    Raises UserError for answers that no single prompt was scored for.
    """
    from chatapp.lab.prompt_parts import parts_of_segments
    from chatapp.lab.views.prompt_part_view import attribute_prompt
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


def show_parts(parts: "PromptParts") -> None:
    """Print on standard error which part was used most, and the effect of each."""
    from rich.console import Console

    from chatapp.lab.drawing.console import drawn

    console = Console(stderr=True, highlight=False)
    for part in drawn([parts], console.width):
        console.print(part)
