"""Replies to fixed prompts while a model learns.

Keep: they are made by the chat's own code from the weights as they are, and leave nothing behind
that training would see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from chatapp.dialogue.prompt import Exchange
from chatapp.dialogue.template_choice import writer_for
from chatapp.engine.transformers_model import TransformersModel
from chatapp.prompting.chat_template import Template
from finetune.config import ConfigError
from finetune.config import Samples as SampleSettings
from finetune.data.packing import Rows
from finetune.data.prompts import Asked
from finetune.display import one_line
from finetune.material import Material
from finetune.objectives.grpo import Grpo, PromptRows
from finetune.objectives.pair_rows import PairRows
from finetune.objectives.rewards import DrawnReply
from finetune.replies import Reply, greedy_replies, questions, stops

Samples = list[tuple[str, Reply]]
"""Prompts, each with the reply to it."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """asked: the row it comes from, where rows are prompts."""

    text: str
    ids: Sequence[int]
    asked: Asked | None = None


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
    prompts = _own_prompts(settings, template, model)
    prompts = prompts or _prompts_of_rows(material, model)

    stop = stops(template, material.config.objective)

    def take() -> Samples:
        material.model.eval()
        model.forget()
        asked = (prompt.ids for prompt in prompts)
        replies = greedy_replies(model, stop, asked, settings.max_tokens)
        samples = [
            (prompt.text, _rewarded(reply, prompt, material))
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        model.forget()
        return samples

    return take if prompts else None


def _own_prompts(
    settings: SampleSettings, template: Template, model: TransformersModel
) -> list[_Prompt]:
    """Those that the configuration names. Raises ConfigError."""
    prompts = []
    for text in settings.prompts:
        try:
            written = writer_for(model, template).write(
                None, [Exchange(text)], max_tokens=settings.max_tokens
            )
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append(_Prompt(text, written.ids))
    return prompts


def _prompts_of_rows(material: Material, model: TransformersModel) -> list[_Prompt]:
    """Those of the first held-out rows."""
    wanted = material.config.samples.held_out
    rows = next(iter(material.data.held_out.values()), None)
    if isinstance(rows, PromptRows):
        return [_Prompt(each.text, each.ids, each) for each in rows.asked[:wanted]]
    if isinstance(rows, PairRows):
        rows = rows.first
    if not isinstance(rows, Rows):
        return []
    asked = questions(rows.examples, material.tokenizer, model.context, len(material.start))
    return [_Prompt(each.text, each.ids) for each in islice(asked, wanted)]


def _rewarded(reply: Reply, prompt: _Prompt, material: Material) -> Reply:
    """The reply with its reward, where there is one to give."""
    if not isinstance(material.objective, Grpo) or prompt.asked is None or reply.error:
        return reply
    ids = material.tokenizer.encode(reply.text, begins=False)
    drawn = DrawnReply(ids, reply.text)
    return replace(reply, reward=material.objective.rewards.of(prompt.asked, drawn))
