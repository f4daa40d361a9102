"""What `finetune check` says of feedback: pairs side by side, their lengths, how much alike.

Keep: what is shown are the tokens and masks that are learnt, prompt and replies apart.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from finetune.data.chats import Span
from finetune.data.encoding import Encoded
from finetune.display import short_middling_long
from finetune.masks import legend, masked
from finetune.material import Material
from finetune.objectives.kto import Kto
from finetune.objectives.pair_rows import PairRows

ALIKE = 0.9
"""Share of tokens in common from which two replies are called alike."""


def pair_figures(rows: PairRows, is_kto: bool) -> dict[str, Any]:
    """For --json: tokens of the replies, and how many pairs are alike; of verdicts how many are
    good."""
    first, second = (_reply_lengths(side.examples) for side in (rows.first, rows.second))
    if is_kto:
        return {
            "reply_tokens": {"mean": float(first.mean()), "most": int(first.max())},
            "desirable": sum(value > 0.5 for value in rows.values),
        }
    return {
        "chosen_tokens": {"mean": float(first.mean()), "most": int(first.max())},
        "rejected_tokens": {"mean": float(second.mean()), "most": int(second.max())},
        "alike": sum(map(_are_alike, rows.first.examples, rows.second.examples)),
    }


def show_pairs(rows: PairRows, material: Material, console: Console) -> Iterator[RenderableType]:
    """The figures in words, and a short, a middling and a long pair."""
    marked = console.color_system is None
    examples = rows.first.examples
    truncated = sum(material.data.report.truncated.values()) if material.data.report else 0
    yield Text(material.objective.summary(material.data))
    if isinstance(material.objective, Kto):
        good = np.array([value > 0.5 for value in rows.values])
        lengths = _reply_lengths(examples)
        yield Text(f"good: {int(good.sum()):,} of {len(good):,} replies ({good.mean():.1%})")
        for name, chosen in (("good", good), ("bad", ~good)):
            if chosen.any():
                yield _lengths(f"{name} replies", lengths[chosen])
    else:
        for name, side in (("chosen", rows.first), ("rejected", rows.second)):
            yield _lengths(f"{name} replies", _reply_lengths(side.examples))
        alike = sum(map(_are_alike, rows.first.examples, rows.second.examples))
        yield Text(f"alike, nine tokens in ten the same: {alike:,} of {len(examples):,} pairs")
    yield Text(f"rows cut to fit: {truncated:,}")
    yield legend(marked)
    order = np.argsort(rows.lengths if len(rows) == len(examples) else _all_lengths(rows))
    for number in short_middling_long(order.tolist()):
        yield _side_by_side(rows, number, material, marked)


def _side_by_side(rows: PairRows, number: int, material: Material, marked: bool) -> Table:
    """A pair: the prompt over both columns' replies."""
    first, second = rows.first.examples[number], rows.second.examples[number]
    tokenizer = material.tokenizer
    table = Table(show_edge=False, padding=(0, 1), header_style="dim")
    if isinstance(material.objective, Kto):
        names = ("good" if rows.values[number] > 0.5 else "bad", "mismatched, for the KL")
    else:
        margin = f", margin {rows.values[number]:g}" if rows.values[number] else ""
        names = (f"chosen{margin}", "rejected")
    for name, example in zip(names, (first, second), strict=True):
        table.add_column(f"{name} · {len(example.ids):,} tokens", ratio=1, overflow="fold")
    table.add_row(*(masked(each, tokenizer, marked) for each in (first, second)))
    return table


def _lengths(name: str, lengths: Any) -> Text:
    return Text(f"{name}: {lengths.mean():,.0f} tokens on average, at most {lengths.max():,}")


def _reply_lengths(examples: Sequence[Encoded]) -> Any:
    return np.array([int((each.spans == Span.RESPONSE).sum()) for each in examples])


def _all_lengths(rows: PairRows) -> list[int]:
    pairs = zip(rows.first.examples, rows.second.examples, strict=True)
    return [max(len(first.ids), len(second.ids)) for first, second in pairs]


def _are_alike(first: Encoded, second: Encoded) -> bool:
    one, other = (each.ids[each.spans == Span.RESPONSE].tolist() for each in (first, second))
    matcher: SequenceMatcher[int] = SequenceMatcher(None, one, other, autojunk=False)
    return (
        matcher.real_quick_ratio() >= ALIKE
        and matcher.quick_ratio() >= ALIKE
        and matcher.ratio() >= ALIKE
    )
