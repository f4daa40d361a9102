"""Few-shot prompts as training rows: demonstrations and a query in one sequence.

MetaICL's layout (Min et al. 2022), with a loss on the answer of every demonstration that the ones
before it explain, not only on the last.

Invariant: the text is rendered by prompting.files.layout, so the tokens are those of `chatapp run`
and `eval`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chatapp.prompting.messages import Segment
from chatapp.rows.examples import Pool
from chatapp.tasks.files.layout import continuation, render
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model.generators.words import table

Shot = tuple[str, str]
"""An input and its output."""


def draw_layout(
    draw: random.Random, labels: Sequence[str] = (), named: float = 0.2, arrows: float = 0.2
) -> PromptFile:
    """A prompt file without examples: prefixes, separator and instruction drawn.

    named: how often the instruction lists the labels. arrows: how often an output is on the line of
    its input.
    """
    layouts = table("layouts")
    instruction = ""
    chance = draw.random()
    if labels and chance < named:
        label_list = ", ".join(labels[:-1]) + " or " + labels[-1]
        instruction = draw.choice(layouts["labels_named"]).replace("{labels}", label_list)
    elif chance < 0.6:
        instruction = draw.choice(layouts["instructions"])
    if draw.random() < arrows:
        prefix, marker, separator = "", draw.choice(layouts["arrows"]), "\n"
    else:
        prefix, marker = draw.choice(layouts["inputs"]), draw.choice(layouts["outputs"])
        separator = "\n\n" if draw.random() < 0.8 else "\n"
    return PromptFile(
        path=Path("task"),
        instruction=instruction,
        input_prefix=prefix,
        output_prefix=marker,
        separator=separator,
    )


def few_shot_row(
    layout: PromptFile, shots: Sequence[Shot], *, guessable: bool
) -> dict[str, Any] | None:
    """One row of `parts`: demonstrations, and the last of `shots` as the query.

    guessable: whether an output can be known without demonstrations. If not, an answer is trained
    only if the same one occurs before it, because unknowable answers must not be learned. None when
    nothing would be trained.
    """
    *demonstrations, (query, answer) = shots
    pool = Pool(
        [text_in for text_in, _ in demonstrations], [output for _, output in demonstrations]
    )
    prompt = replace(layout, pool=pool)
    segments = render(prompt, range(len(pool)), query)
    segments.append(Segment("assistant", continuation(prompt, answer)))
    texts = [segment.text for segment in segments]
    # Inputs and outputs of demonstrations alternate.
    answers = [index for index, piece in enumerate(segments) if piece.kind == "example"][1::2]
    for index in answers:
        # The line break that ends an answer is trained with it.
        if texts[index + 1].startswith("\n"):
            texts[index] += "\n"
            texts[index + 1] = texts[index + 1][1:]
    answers.append(len(texts) - 1)
    outputs = dict(zip(answers, [*pool.outputs, answer], strict=True))

    parts: list[str] = []
    context = ""
    before: set[str] = set()
    for index, text in enumerate(texts):
        output = outputs.get(index)
        if output is not None and (guessable or output in before or output in layout.instruction):
            parts += [context, text]
            context = ""
        else:
            context += text
        if output is not None:
            before.add(output)
    return {"parts": parts} if parts else None
