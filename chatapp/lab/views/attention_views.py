"""Views of attention: what one token attends to, and a reply to the prompt of an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent, visible
from chatapp.common.userfiles import UserError
from chatapp.lab.drawing.blocks import Block, Heading, Lines, Map, Note, Shaded
from chatapp.lab.view import AtToken, Subject, View, checked_place, named_token, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.lab.encoder_decoder import EncoderDecoderTrace
    from chatapp.lab.traces import Trace

MOST_IN_FULL = 128
"""Tokens whose attention is complete in the document: layers · heads · 128² numbers."""


@dataclass(frozen=True, kw_only=True)
class AtHead:
    """Which heads are looked at."""

    layer: int | None = option("Show this layer's attention only, numbered from 0.")
    head: int | None = option("Show this head's attention only, numbered from 0.")


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(AtToken, AtHead):
    """A token and a head."""


def check_in_full(size: int) -> None:
    """Raises UserError for a text whose every token would make too long a document."""
    if size > MOST_IN_FULL:
        raise UserError(
            f"the text has {size} tokens, but all attention and layers are shown for "
            f"{MOST_IN_FULL} at most; choose a token with --token, or look at tokens or next alone"
        )


@dataclass(frozen=True, eq=False)
class Attention(View):
    """The attention of one token.

    texts: of the tokens that it may attend to. by_head: (layers, heads, tokens), the weights on
    each of them. position: its own. layer, head: the selected ones, from 0; None averages over all.
    encoded: how many of the first tokens an encoder read.
    """

    name: ClassVar[str] = "attention"
    title: ClassVar[str] = "Attention"
    summary: ClassVar[str] = "Show what a token attends to."
    formula: ClassVar[str] = (
        "A = softmax(Q K^T · scale), the earlier tokens only; the weights of a token add up to 1; "
        "Vaswani et al. 2017, arXiv 1706.03762."
    )
    reads_masks: ClassVar[bool] = True
    Options: ClassVar[type[Any]] = AttentionOptions

    texts: tuple[str, ...]
    by_head: "NDArray[np.float32]"
    position: int
    layer: int | None = None
    head: int | None = None
    encoded: int = 0

    @classmethod
    def look(cls, subject: Subject, options: AttentionOptions) -> "Attention":
        layer = checked_place("layer", options.layer, subject.trace.layers)
        head = checked_place("head", options.head, subject.trace.heads)
        return cls.of(subject.trace, subject.position, layer, head)

    @classmethod
    def whole(cls, subject: Subject, options: AttentionOptions) -> Any:
        cls.look(subject, options)  # refuses what is not there
        check_in_full(len(subject.ids))
        return subject.trace.attentions().tolist()

    @classmethod
    def of(
        cls, trace: "Trace", position: int, layer: int | None = None, head: int | None = None
    ) -> Self:
        """Raises UserError for a layer or a head that the token's stack does not have."""
        weights = trace.attention(position)
        for kind, place, size in zip(("layer", "head"), (layer, head), weights.shape, strict=False):
            if place is not None and place >= size:
                raise UserError(f"{kind} {place} of {size}, numbered from 0, is none")
        texts = trace.texts[: weights.shape[-1]]
        return cls(texts, weights, position, layer, head, trace.encoded)

    @cached_property
    def weights(self) -> list[float]:
        """The weight on each token, averaged over the layers and heads that are not selected."""
        layers = slice(None) if self.layer is None else [self.layer]
        heads = slice(None) if self.head is None else [self.head]
        weights: list[float] = self.by_head[layers][:, heads].mean(axis=(0, 1)).tolist()
        return weights

    @property
    def shares(self) -> list[float]:
        """The weights relative to the largest, from 0 to 1.

        The first token gets the attention that a head does not need, and would dominate: it does
        not count as the largest.
        """
        brightest = max(self.weights[1:], default=0.0) or 1.0
        return [min(1.0, weight / brightest) for weight in self.weights]

    @property
    def copied(self) -> int | None:
        """The place after the last earlier one with the same token; None where it is new."""
        *before, token = self.texts
        return len(before) - before[::-1].index(token) if token in before else None

    @property
    def copying_head(self) -> tuple[int, int] | None:
        """Layer and head with the largest weight on what followed the same token before; None
        where the token is new.
        """
        if self.copied is None:
            return None
        layer, head = divmod(int(self.by_head[:, :, self.copied].argmax()), self.by_head.shape[1])
        return layer, head

    @property
    def order(self) -> list[int]:
        """The positions by falling weight."""
        return sorted(range(len(self.weights)), key=lambda position: -self.weights[position])

    @property
    def target(self) -> int:
        """The position with the largest weight, except the first and the token itself."""
        order = self.order
        others = (position for position in order if position not in (0, self.position))
        return next(others, order[0])

    @property
    def chosen(self) -> str:
        """The selected layers and heads, in words."""
        if self.layer is None and self.head is None:
            return "average of all heads"
        layer = "average of all layers" if self.layer is None else f"layer {self.layer}"
        head = "average of its heads" if self.head is None else f"head {self.head}"
        return f"{layer}, {head}"

    def on(self, target: int) -> list[list[float]]:
        """Each head's weight on the token at `target`: a row per layer, a column per head."""
        rows: list[list[float]] = self.by_head[:, :, target].tolist()
        return rows

    @property
    def reading(self) -> str:
        target = self.target
        share = percent(self.weights[target]).strip()
        words = (
            f"{named_token(self.texts, self.position)} attends most to "
            f"{named_token(self.texts, target)}, {share}"
        )
        if target == self.copied and not self.encoded:
            words += ", which followed the same token before"
        return f"T{words[1:]} ({self.chosen})"

    @property
    def sums(self) -> str:
        """What the weights add up to, in words."""
        cross = sum(self.weights[: self.encoded])
        total = sum(self.weights) - cross * self.is_cross
        least = min(total, cross if self.is_cross else 1)
        words = "The weights"
        if self.is_cross:
            words += f" on the prompt (cross-attention) add up to {cross:.4f}, those on the reply"
        rest = ", the rest is on special tokens" if least < 0.9995 else ""
        return f"{words} add up to {total:.4f}{rest}"

    @property
    def is_cross(self) -> bool:
        """Whether it is a decoder's token, which attends to the encoder's output, too."""
        return 0 < self.encoded <= self.position

    def to_json(self) -> list[list[list[float]]]:
        weights: list[list[list[float]]] = self.by_head.tolist()
        return weights

    def blocks(self) -> Sequence[Block]:
        target = self.target
        seen = f"each head's weight on token {target} │{visible(self.texts[target])}│, in percent"
        notes = [f"token {n}: weight {weight:.6g}" for n, weight in enumerate(self.weights)]
        return [
            Note(self.sums),
            Shaded(self.texts, self.shares, notes, self.position),
            Lines(self.texts, self.weights, self.by_head, self.position),
            Heading("Layers and heads", seen),
            Map(self.on(target), is_of_heads=True),
        ]


@dataclass(frozen=True, eq=False)
class CrossAttention(View):
    """What each token of a reply attends to in the prompt.

    prompt, reply: texts of their tokens. weights: (reply, prompt), of the selected layer and head,
    or averaged over those that are not selected.
    """

    name: ClassVar[str] = "cross_attention"
    title: ClassVar[str] = "Cross-attention"
    summary: ClassVar[str] = "Show what an encoder-decoder's reply attends to."
    formula: ClassVar[str] = (
        "A = softmax(Q K^T · scale), the queries of the decoder and the keys of the encoder's "
        "output; Vaswani et al. 2017, arXiv 1706.03762."
    )
    key: ClassVar[str] = "k"
    Options: ClassVar[type[Any]] = AtHead

    prompt: tuple[str, ...]
    reply: tuple[str, ...]
    weights: "NDArray[np.float32]"
    chosen: str

    @classmethod
    def look(cls, subject: Subject, options: AtHead) -> "CrossAttention":
        from chatapp.lab.encoder_decoder import EncoderDecoderTrace

        trace = subject.trace
        if not isinstance(trace, EncoderDecoderTrace):
            raise UserError(f"{subject.model.name}: this model has no encoder beside its decoder")
        if not trace.texts[trace.encoded :]:
            raise UserError("there is no reply here that could attend to the prompt")
        layer = checked_place("layer", options.layer, trace.layers)
        return cls.of(trace, layer, checked_place("head", options.head, trace.heads))

    @classmethod
    def of(
        cls, trace: "EncoderDecoderTrace", layer: int | None = None, head: int | None = None
    ) -> Self:
        weights = trace.cross_attention()
        layers = slice(None) if layer is None else [layer]
        heads = slice(None) if head is None else [head]
        chosen = " and ".join(
            f"the average of all {name}s" if place is None else f"{name} {place}"
            for name, place in (("layer", layer), ("head", head))
        )
        texts = trace.texts[: trace.encoded], trace.texts[trace.encoded :]
        return cls(*texts, weights[layers][:, heads].mean(axis=(0, 1)), chosen)

    @property
    def reading(self) -> str:
        token = int(self.weights.max(axis=1).argmax())
        best = int(self.weights[token].argmax())
        return (
            f"Of {len(self.reply)} tokens of the reply, │{visible(self.reply[token])}│ looks back "
            f"most sharply: {percent(float(self.weights[token, best])).strip()} on "
            f"{named_token(self.prompt, best)} ({self.chosen})"
        )

    def to_json(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "reply": self.reply, "weights": self.weights.tolist()}

    def blocks(self) -> Sequence[Block]:
        names = [f"{place} │{text}│" for place, text in enumerate(self.prompt)]
        first = len(self.prompt)
        columns = [str(first + place) for place in range(len(self.reply))]
        reply = "  ".join(f"{first + n} │{visible(text)}│" for n, text in enumerate(self.reply))
        return [
            Map(self.weights.T.tolist(), ("prompt", "reply"), names, columns),
            Note(f"The reply: {reply}"),
        ]
