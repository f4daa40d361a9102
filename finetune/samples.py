"""Replies to fixed prompts while a model learns.

Keep: they are made by the chat's own code from the weights as they are, and leave nothing behind
that training would see.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from chatapp.dialogue.prompt import Exchange
from chatapp.dialogue.template_choice import writer_for
from chatapp.engine.transformers_model import TransformersModel
from finetune.config import ConfigError
from finetune.data.packing import Rows
from finetune.display import one_line
from finetune.material import Material
from finetune.objectives.pair_rows import PairRows
from finetune.replies import Reply, greedy_replies, questions

Samples = list[tuple[str, Reply]]
"""Prompts, each with the reply to it."""


def sampler(material: Material) -> Callable[[], Samples] | None:
    """What makes the sample replies of a run; None without prompts.

    Raises ConfigError for a prompt that does not fit.
    """
    template, settings = material.template, material.config.samples
    if template is None or not material.objective.replies:
        return None
    model = TransformersModel(
        material.model, material.tokenizer, name=material.config.model, start=material.start
    )
    prompts: list[tuple[str, Sequence[int]]] = []
    for text in settings.prompts:
        try:
            written = writer_for(model, template).write(
                None, [Exchange(text)], max_tokens=settings.max_tokens
            )
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append((text, written.ids))
    held_out = next(iter(material.data.held_out.values()), None)
    if isinstance(held_out, PairRows):
        held_out = held_out.first
    if not prompts and isinstance(held_out, Rows):
        asked = questions(held_out.examples, material.tokenizer, model.context, len(material.start))
        prompts = [(each.text, each.ids) for each in islice(asked, settings.held_out)]

    def take() -> Samples:
        material.model.eval()
        model.forget()
        asked = (ids for _, ids in prompts)
        replies = greedy_replies(model, template, asked, settings.max_tokens)
        samples = [(text, reply) for (text, _), reply in zip(prompts, replies, strict=True)]
        model.forget()
        return samples

    return take if prompts else None
