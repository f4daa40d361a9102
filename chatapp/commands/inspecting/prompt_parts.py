"""What in a prompt mattered, for `chatapp run --parts` and `chatapp inspect --parts`.

Invariant: nothing of torch is imported before a model is loaded, nor rich before it draws.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatapp.commands.console import progress
from chatapp.common.shading import bar, visible, weight_color
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chatapp.engine.model import LanguageModel
    from chatapp.fewshot.answering import Answer, Answering
    from chatapp.lab.prompt_parts import PromptParts

_BAR = 12


def explain_answer(answerer: "Answering", answer: "Answer") -> "PromptParts":
    """What in its prompt made an answer: the label against the second most likely one, or the first
    token of a generated text against its runner-up.

    Raises UserError for answers that no single prompt was scored for.
    """
    from chatapp.fewshot.answering import Answerer
    from chatapp.lab.prompt_parts import attribute_prompt, parts_of_segments

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
    """What in a text made a next token, and not another.

    answer, against: the two as text; by default the next token, or the most likely one, and the
    runner-up. Raises UserError.
    """
    from chatapp.lab.experiments import token_of
    from chatapp.lab.prompt_parts import attribute_prompt, parts_of_text

    named = [
        None if text is None else token_of(model.tokenizer, text, option)
        for text, option in ((answer, "--answer"), (against, "--against"))
    ]
    named[0] = following if named[0] is None else named[0]
    compared = [[] if id is None else [id] for id in named]
    spans = parts_of_text(model.tokenizer.decode(ids), ids, model.tokenizer)
    with progress("Hiding tokens") as report:
        return attribute_prompt(model, ids, spans, *compared, progress=report)


def show_parts(parts: "PromptParts") -> None:
    """Print on standard error which part was used most, and the effect of each."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    for part in draw_parts(parts, console.width):
        console.print(part)


def draw_parts(parts: "PromptParts", width: int) -> "list[RenderableType]":
    """Each part with both measures; the text, brighter where a token spoke for the answer."""
    from rich.text import Text

    from chatapp.commands.inspecting.drawing import draw_table, heading, shaded_text

    most = max((abs(part.occlusion) for part in parts.parts), default=0.0) or 1.0
    rows: list[list[Text | str]] = [
        [
            part.part,
            f"{part.gradient:+.2f}",
            f"{part.occlusion:+.2f}",
            Text(bar(max(0.0, part.occlusion) / most, _BAR if width >= 80 else 4), "green"),
            Text(visible(" ".join(part.text.split()))),
        ]
        for part in parts.parts
    ]
    correlation = parts.rank_correlation
    words = "undefined" if correlation is None else f"{correlation:+.2f}"
    values = parts.occlusion or parts.gradient
    largest = max(map(abs, values), default=0.0) or 1.0
    colors = [weight_color(max(0.0, value) / largest) for value in values]
    measure = "occlusion" if parts.occlusion else "gradient × input"
    of = "tokens" if parts.occlusion else "parts"
    return [
        heading("Parts of the prompt", parts.sentence),
        draw_table(["part", ">gradient", ">occlusion", "", "text"], rows, width),
        Text(f"Rank correlation of both measures over the {of}: {words}", "dim"),
        Text(),
        heading("Tokens", f"brighter spoke for the answer, by {measure}"),
        shaded_text(parts.texts, colors),
    ]
