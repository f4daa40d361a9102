"""What `finetune check` says of prompts to be replied to: what is asked, what a reply would earn.

Keep: rewards are given by the very checks that the run has, to the rows' own replies.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.foreign import printable
from finetune.data.prompts import Asked
from finetune.display import short_middling_long
from finetune.material import Material
from finetune.objectives.grpo import Grpo, PromptRows
from finetune.objectives.rewards import DrawnReply

_MOST = 50
"""Rows whose own replies get rewards."""


def prompt_figures(rows: PromptRows, objective: Grpo, material: Material) -> dict[str, Any]:
    """For --json: tokens of the prompts, and the mean reward of the rows' own replies."""
    lengths = [len(each.ids) for each in rows.asked]
    rewards = [objective.rewards.of(*each) for each in _references(rows, material)]
    return {
        "prompt_lengths": {"mean": float(np.mean(lengths)), "most": max(lengths)},
        "reference_reward": fmean(rewards) if rewards else None,
    }


def show_prompts(rows: PromptRows, objective: Grpo, material: Material) -> Iterator[RenderableType]:
    """The same in words, and three prompts with what each check gives the row's own reply."""
    yield Text(printable(objective.summary(material.data)))
    lengths = [len(each.ids) for each in rows.asked]
    yield Text(f"prompts: {np.mean(lengths):,.0f} tokens on average, at most {max(lengths):,}")
    references = _references(rows, material)
    if references:
        rewards = [objective.rewards.of(*each) for each in references]
        yield Text(
            f"the rows' own replies earn {fmean(rewards):.3g} on average, from {min(rewards):.3g} "
            f"to {max(rewards):.3g} (the first {len(rewards)})"
        )
    table = Table(show_edge=False, padding=(0, 1), header_style="dim")
    for name in ("prompt", "its own reply"):
        table.add_column(name, ratio=1, overflow="fold")
    for name in objective.rewards.names:
        table.add_column(name, justify="right")
    for number in short_middling_long(np.argsort(lengths, kind="stable").tolist()):
        asked = rows.asked[number]
        given = [""] * len(objective.rewards.names)
        if asked.reference:
            reply = _as_reply(asked, material)
            given = [f"{each:.3g}" for each in objective.rewards.each(asked, reply)]
        table.add_row(Text(printable(asked.text)), Text(printable(asked.reference)), *given)
    yield table


def _references(rows: PromptRows, material: Material) -> list[tuple[Asked, DrawnReply]]:
    with_reply = [each for each in rows.asked if each.reference][:_MOST]
    return [(each, _as_reply(each, material)) for each in with_reply]


def _as_reply(asked: Asked, material: Material) -> DrawnReply:
    """The row's own reply as if it were drawn, its end token included."""
    ids = [*material.tokenizer.encode(asked.reference, begins=False), material.tokenizer.end_id]
    return DrawnReply(ids, asked.reference)
