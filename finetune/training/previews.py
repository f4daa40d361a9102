"""What `finetune check` says of feedback: pairs side by side, their lengths, how much alike.

Keep: what is shown are the tokens and masks that are learnt, prompt and replies apart.

Examples as text, each token in the style of where it comes from.

Keep: foreign text stays plain characters, and control characters never reach the terminal.

What `finetune check` says of prompts to be replied to: what is asked, what a reply would earn.

Keep: rewards are given by the very checks that the run has, to the rows' own replies.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.engine.model import PieceTokenizer
from finetune.data.encoding import Encoded, Span
from finetune.data.prompts import Asked
from finetune.objectives.grpo import Grpo, PromptRows
from finetune.objectives.kto import Kto
from finetune.objectives.rewards import DrawnReply
from finetune.objectives.rows import PairRows
from finetune.training.display import short_middling_long
from finetune.training.run_setup import RunSetup

STYLES = {Span.TEMPLATE: "dim", Span.PROMPT: "cyan", Span.RESPONSE: "bold green"}
SHOWN = 400


def legend(marked: bool) -> Text:
    """What the styles mean; see `masked`."""
    text = Text("template", STYLES[Span.TEMPLATE])
    text.append(" · ").append("prompt", STYLES[Span.PROMPT]).append(" · ")
    text.append("⟦response⟧" if marked else "response", STYLES[Span.RESPONSE])
    return text


def masked(example: Encoded, tokenizer: PieceTokenizer, marked: bool = False) -> Text:
    """An example as text, each span in its style; a long span is shown by its ends.

    marked: brackets stand around responses, for where there is no colour.
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


_MOST = 50
"""Rows whose own replies get rewards."""


def prompt_figures(rows: PromptRows, objective: Grpo, setup: RunSetup) -> dict[str, Any]:
    """For --json: tokens of the prompts, and the mean reward of the rows' own replies."""
    lengths = [len(each.ids) for each in rows.asked]
    rewards = [objective.rewards.of(*each) for each in _references(rows, setup)]
    return {
        "prompt_lengths": {"mean": float(np.mean(lengths)), "most": max(lengths)},
        "reference_reward": fmean(rewards) if rewards else None,
    }


def show_prompts(rows: PromptRows, objective: Grpo, setup: RunSetup) -> Iterator[RenderableType]:
    """The same in words, and three prompts with what each check gives the row's own reply."""
    yield Text(printable(objective.summary(setup.data)))
    lengths = [len(each.ids) for each in rows.asked]
    yield Text(f"prompts: {np.mean(lengths):,.0f} tokens on average, at most {max(lengths):,}")
    references = _references(rows, setup)
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
            reply = _as_reply(asked, setup)
            given = [f"{each:.3g}" for each in objective.rewards.each(asked, reply)]
        table.add_row(Text(printable(asked.text)), Text(printable(asked.reference)), *given)
    yield table


def _references(rows: PromptRows, setup: RunSetup) -> list[tuple[Asked, DrawnReply]]:
    with_reply = [each for each in rows.asked if each.reference][:_MOST]
    return [(each, _as_reply(each, setup)) for each in with_reply]


def _as_reply(asked: Asked, setup: RunSetup) -> DrawnReply:
    """The row's own reply as if it were drawn, its end token included."""
    ids = [*setup.tokenizer.encode(asked.reference, begins=False), setup.tokenizer.end_id]
    return DrawnReply(ids, asked.reference)


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


def show_pairs(rows: PairRows, setup: RunSetup, console: Console) -> Iterator[RenderableType]:
    """The figures in words, and a short, a middling and a long pair."""
    marked = console.color_system is None
    examples = rows.first.examples
    truncated = sum(setup.data.report.truncated.values()) if setup.data.report else 0
    yield Text(setup.objective.summary(setup.data))
    if isinstance(setup.objective, Kto):
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
        yield _side_by_side(rows, number, setup, marked)


def _side_by_side(rows: PairRows, number: int, setup: RunSetup, marked: bool) -> Table:
    """A pair: the prompt over both columns' replies."""
    first, second = rows.first.examples[number], rows.second.examples[number]
    tokenizer = setup.tokenizer
    table = Table(show_edge=False, padding=(0, 1), header_style="dim")
    if isinstance(setup.objective, Kto):
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
