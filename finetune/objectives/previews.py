"""Training rows for `finetune check`: lengths, masked examples, pairs side by side.

Invariant: the display shows the trained tokens and masks. Foreign text stays plain characters, and
control characters never reach the terminal.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import Any, TypeVar

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.engine.model import PieceTokenizer
from finetune.data.encoding import Encoded, Span
from finetune.objectives.objective import RowSets
from finetune.objectives.rows import PairRows

STYLES = {Span.TEMPLATE: "dim", Span.PROMPT: "cyan", Span.RESPONSE: "bold green"}
SHOWN = 400
"""Characters of a span beyond which its middle is left out."""

BAR = 14
"""Characters of the longest bar."""

ALIKE = 0.9
"""Fraction of common tokens from which two replies count as alike."""

Item = TypeVar("Item")


def short_middling_long(by_length: Sequence[Item]) -> list[Item]:
    """A short, a middle and a long row from rows sorted by length, without repetitions."""
    places = dict.fromkeys(int(share * len(by_length)) for share in (0.1, 0.5, 0.9))
    return [by_length[place] for place in places]


def legend(marked: bool) -> Text:
    """The meaning of the styles; see `masked`."""
    text = Text("template", STYLES[Span.TEMPLATE])
    text.append(" · ").append("prompt", STYLES[Span.PROMPT]).append(" · ")
    text.append("⟦response⟧" if marked else "response", STYLES[Span.RESPONSE])
    return text


def masked(example: Encoded, tokenizer: PieceTokenizer, marked: bool = False) -> Text:
    """An example as text, each span in its style; a long span is shown by its ends.

    marked: brackets around responses, for terminals without colours.
    """
    text = Text()
    start = 0
    for span, run in groupby(example.spans.tolist()):
        length = len(list(run))
        shown = printable(_decoded(example.ids[start : start + length].tolist(), tokenizer))
        start += length
        if len(shown) > SHOWN:
            shown = f"{shown[: SHOWN // 2]} […] {shown[-SHOWN // 2 :]}"
        if marked and span == Span.RESPONSE:
            shown = f"⟦{shown}⟧"
        text.append(shown, STYLES[Span(span)])
    return text


def _decoded(ids: list[int], tokenizer: PieceTokenizer) -> str:
    """Text of tokens, special ones by their names."""
    parts = []
    names = {tokenizer.end_id, *tokenizer.special.values()}
    for special, run in groupby(ids, key=names.__contains__):
        run_ids = list(run)
        named = map(tokenizer.piece, run_ids)
        parts.append("".join(named) if special else tokenizer.decode(run_ids))
    return "".join(parts)


def show_lengths(examples: Sequence[Encoded]) -> Iterator[RenderableType]:
    """The distributions of the lengths of examples, prompts and responses."""
    lengths = np.array([np.bincount(example.spans, minlength=len(Span)) for example in examples])
    shown = {
        "whole": lengths.sum(1),
        "prompt": lengths[:, Span.PROMPT],
        "response": lengths[:, Span.RESPONSE],
    }
    edges = _edges(int(shown["whole"].max()))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tokens", justify="right")
    for name in shown:
        table.add_column(name, min_width=BAR + 6)
    counts = {name: np.histogram(values, edges)[0] for name, values in shown.items()}
    for row, (low, high) in enumerate(pairwise(edges)):
        bars = [_bar(int(count[row]), int(count.max())) for count in counts.values()]
        table.add_row(f"{low}–{high - 1}", *bars)
    table.add_row(
        "mean",
        *(Text(f"{values.mean():,.0f}, at most {values.max():,}") for values in shown.values()),
    )
    yield table
    template = int(lengths[:, Span.TEMPLATE].sum())
    yield Text(f"an epoch: {int(lengths.sum()):,} tokens, of them {template:,} of the template")


def _edges(longest: int) -> list[int]:
    """Doubling bounds from 0 to beyond the longest."""
    edges = [0, 8]
    while edges[-1] <= longest:
        edges.append(edges[-1] * 2)
    return edges


def _bar(count: int, most: int) -> Text:
    return Text("█" * -(-BAR * count // max(1, most)) + (f" {count:,}" if count else ""))


def show_masks(
    examples: Sequence[Encoded], tokenizer: PieceTokenizer, marked: bool
) -> Iterator[RenderableType]:
    """A short, a middle and a long example, span by span; see `masked`."""
    yield legend(marked)
    for example in short_middling_long(sorted(examples, key=lambda row: len(row.ids))):
        yield Text(f"── {len(example.ids):,} tokens", "dim")
        yield masked(example, tokenizer, marked)


def show_pairs(
    rows: PairRows, titles: Sequence[tuple[str, str]], tokenizer: PieceTokenizer, marked: bool
) -> Iterator[RenderableType]:
    """A short, a middle and a long pair, side by side. titles: of the two sides of each pair."""
    yield legend(marked)
    sides = rows.first.examples, rows.second.examples
    lengths = [max(len(first.ids), len(second.ids)) for first, second in zip(*sides, strict=True)]
    for number in short_middling_long(np.argsort(lengths).tolist()):
        pair = [side[number] for side in sides]
        table = Table(show_edge=False, padding=(0, 1), header_style="dim")
        for title, example in zip(titles[number], pair, strict=True):
            table.add_column(f"{title} · {len(example.ids):,} tokens", ratio=1, overflow="fold")
        table.add_row(*(masked(side, tokenizer, marked) for side in pair))
        yield table


def reply_lengths(examples: Sequence[Encoded]) -> Any:
    """Tokens of each reply, an array."""
    return np.array([int((example.spans == Span.RESPONSE).sum()) for example in examples])


def lengths_line(name: str, lengths: Any) -> Text:
    """Lengths in words."""
    return Text(f"{name}: {lengths.mean():,.0f} tokens on average, at most {lengths.max():,}")


def lengths_document(lengths: Any) -> dict[str, float]:
    """The same for --json."""
    return {"mean": float(lengths.mean()), "most": int(lengths.max())}


def cut_line(data: RowSets) -> Text:
    """The number of rows that were cut to fit."""
    truncated = sum(data.report.truncated.values()) if data.report else 0
    return Text(f"rows cut to fit: {truncated:,}")


def count_alike(rows: PairRows) -> int:
    """The number of pairs with nine tokens in ten in common."""
    return sum(map(_are_alike, rows.first.examples, rows.second.examples))


def _are_alike(first: Encoded, second: Encoded) -> bool:
    one, other = (reply.ids[reply.spans == Span.RESPONSE].tolist() for reply in (first, second))
    matcher: SequenceMatcher[int] = SequenceMatcher(None, one, other, autojunk=False)
    return (
        matcher.real_quick_ratio() >= ALIKE
        and matcher.quick_ratio() >= ALIKE
        and matcher.ratio() >= ALIKE
    )
