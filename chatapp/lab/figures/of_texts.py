"""The blocks of what a model makes of a text: tokens, the next one, attention, layers, parts."""

from typing import TYPE_CHECKING

from chatapp.common.shading import percent, visible
from chatapp.lab.figures.blocks import (
    Bar,
    Block,
    Cell,
    Heading,
    Lines,
    Map,
    Note,
    Number,
    Pieces,
    Shaded,
    Share,
    Table,
)
from chatapp.lab.findings import Attention, Layers, NextToken, PromptText, Tokens, state_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatapp.lab.architectures.masks import MaskFilling
    from chatapp.lab.head_texts import HeadTexts
    from chatapp.lab.predictions import Candidate
    from chatapp.lab.prompt_parts import PromptParts


def pieces(candidates: "Sequence[Candidate]") -> Pieces:
    """Tokens with their probabilities."""
    return Pieces([(candidate.text, candidate.probability) for candidate in candidates])


def prompt_blocks(prompt: PromptText) -> list[Block]:
    """The text, each part on the colour of its kind, with the kinds in words."""
    kinds = list(dict.fromkeys(prompt.kinds))
    shares = [(kinds.index(kind) + 1) / (len(kinds) + 1) for kind in prompt.kinds]
    most = max(map(len, prompt.texts), default=1)
    rows: list[list[Cell]] = [
        [kind, Number(len(text), ",d"), Bar(len(text) / most), f"│{text}│"]
        for kind, text in zip(prompt.kinds, prompt.texts, strict=True)
    ]
    return [
        Heading("Prompt", prompt.sentence),
        Shaded(prompt.texts, shares, prompt.kinds),
        Table(["part", ">characters", "", "text"], rows),
    ]


def tokens_blocks(tokens: Tokens) -> list[Block]:
    """The text, coloured by how likely it was; a row a token."""
    shares: list[float | None] = []
    notes: list[str] = []
    rows: list[list[Cell]] = []
    for position, (id, text) in enumerate(zip(tokens.ids, tokens.texts, strict=True)):
        expected, actual = tokens.expected[position], tokens.actual(position)
        measures: list[Cell] = ["", "", "", "", ""]
        note = f"token {position}, id {id}"
        if expected is not None and actual is not None:
            entropy = "" if expected.entropy is None else Number(expected.entropy, ".1f")
            rank = "" if actual.rank is None else f"{actual.rank:,}"
            share = actual.probability
            measures = [Bar(share, is_dim=True), Share(share), rank, entropy]
            measures.append(pieces(expected.candidates))
            note += f": p {share:.6g}, rank {rank}"
        shares.append(actual.probability if actual is not None else None)
        notes.append(note)
        rows.append([str(position), str(id), Pieces.of(text), *measures])
    columns = [">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"]
    return [
        Heading("Tokens", f"{tokens.sentence}; orange was unlikely, blue likely"),
        Shaded(tokens.texts, shares, notes, is_likelihood=True),
        Table(columns, rows),
    ]


def next_blocks(next_token: NextToken) -> list[Block]:
    """A row a candidate, before and after the cut."""
    cut, sampling = next_token.cut, next_token.sampling
    rows: list[list[Cell]] = [
        [
            str(candidate.rank),
            str(candidate.id),
            Pieces.of(candidate.text),
            Share(candidate.probability),
            Bar(candidate.probability, is_dim=True),
            Share(drawn or None, "cut"),
            Bar(drawn),
        ]
        for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
    ]
    parameters = (
        f"temperature {sampling.temperature:g}, top-k {sampling.top_k}, "
        f"top-p {sampling.top_p:g}, min-p {sampling.min_p:g}"
    )
    return [
        Heading("Next token", f"{next_token.sentence}; {parameters}"),
        Table([">", ">id", "token", ">softmax", "", ">drawn", ""], rows),
    ]


def mask_blocks(mask: "MaskFilling") -> list[Block]:
    """A row a candidate for the masked token."""
    rows: list[list[Cell]] = [
        [
            f"{candidate.rank:,}",
            str(candidate.id),
            Pieces.of(candidate.text),
            Share(candidate.probability),
            Bar(candidate.probability),
        ]
        for candidate in mask.prediction.candidates
    ]
    return [
        Heading("Mask", mask.sentence),
        Table([">", ">id", "token", ">softmax", ""], rows),
    ]


def attention_blocks(attention: Attention) -> list[Block]:
    """The text, brighter where the token looks; lines to it; a map of all heads."""
    target = attention.target
    seen = f"each head's weight on token {target} │{visible(attention.texts[target])}│, in percent"
    notes = [f"token {n}: weight {weight:.6g}" for n, weight in enumerate(attention.weights)]
    return [
        Heading("Attention", attention.sentence),
        Shaded(attention.texts, attention.shares, notes, attention.position),
        Lines(attention.texts, attention.weights, attention.by_head, attention.position),
        Heading("Layers and heads", seen),
        Map(attention.on(target), is_of_heads=True),
    ]


def layers_blocks(layers: Layers) -> list[Block]:
    """A table with a row a state."""
    ranks = [">rank"] if layers.actual else []
    rows: list[list[Cell]] = []
    for index, guess in enumerate(layers.predictions):
        rank = [f"{guess.actual.rank:,}"] if guess.actual else []
        entropy = Number(guess.entropy or 0.0, ".1f")
        rows.append([state_name(index), entropy, *rank, pieces(guess.candidates)])
    return [
        Heading("Layers", layers.sentence),
        Table([">layer", ">bits", *ranks, "logit lens"], rows),
    ]


def parts_blocks(parts: "PromptParts") -> list[Block]:
    """Each part with both measures; the text, brighter where a token spoke for the answer."""
    most = max((abs(part.occlusion) for part in parts.parts), default=0.0) or 1.0
    rows: list[list[Cell]] = [
        [
            part.part,
            Number(part.gradient, "+.2f"),
            Number(part.occlusion, "+.2f"),
            Bar(max(0.0, part.occlusion) / most),
            visible(" ".join(part.text.split())),
        ]
        for part in parts.parts
    ]
    correlation = parts.rank_correlation
    words = "undefined" if correlation is None else f"{correlation:+.2f}"
    values = parts.occlusion or parts.gradient
    largest = max(map(abs, values), default=0.0) or 1.0
    measure = "occlusion" if parts.occlusion else "gradient × input"
    of = "tokens" if parts.occlusion else "parts"
    return [
        Heading("Parts of the prompt", parts.sentence),
        Table(["part", ">gradient", ">occlusion", "", "text"], rows),
        Note(f"Rank correlation of both measures over the {of}: {words}"),
        Heading("Tokens", f"brighter spoke for the answer, by {measure}"),
        Shaded(
            parts.texts,
            [max(0.0, value) / largest for value in values],
            [f"token {n}: {measure} {value:+.6g}" for n, value in enumerate(values)],
        ),
    ]


def head_texts_blocks(texts: "HeadTexts") -> list[Block]:
    """The texts of one head, each shaded by what its strongest token attends to."""
    blocks: list[Block] = [Heading("Texts", texts.sentence)]
    for row in texts.rows:
        first = row.links[0].source
        rest = len(row.texts) - len(row.weights)
        notes = [f"token {n}: weight {weight:.6g}" for n, weight in enumerate(row.weights)]
        links = "; ".join(
            f"│{visible(row.texts[link.source])}│ {link.source} attends to "
            f"│{visible(row.texts[link.target])}│ {link.target}, {percent(link.weight).strip()}"
            for link in row.links
        )
        blocks.append(
            Shaded(row.texts, [*row.weights, *[None] * rest], [*notes, *[""] * rest], first)
        )
        blocks.append(Note(f"{row.strength:.2f}  {links}"))
    return blocks
