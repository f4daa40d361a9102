"""Examples as text, each token in the style of where it comes from.

Keep: foreign text stays plain characters, and control characters never reach the terminal.
"""

from itertools import groupby

from rich.text import Text

from chatapp.engine.generation import PieceTokenizer
from chatapp.foreign import printable
from finetune.data.chats import Span
from finetune.data.encoding import Encoded

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
