"""What `chatapp inspect` says of a text: the numbers, and the JSON document made of them.

Keep: whatever shows these numbers asks for them here, so that the terminal, a written file and
the document agree. Nothing here knows a terminal.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.lab.predictions import Cut, Prediction
    from chatapp.lab.traces import Trace

SECTIONS = ("tokens", "next", "attention", "layers")

_MOST_IN_FULL = 128
"""Tokens whose attention is given in full: layers · heads · 128² numbers."""


class Findings:
    """What there is to show of a text, computed when it is asked for."""

    def __init__(
        self,
        model: "LanguageModel",
        text: str,
        sampling: "Sampling",
        token: int | None,
        chosen: tuple[int | None, int | None],
        top: int,
    ) -> None:
        """token: negative from the end. chosen: layer and head from 1, None for all.

        Raises UserError when there is no such token, layer or head, ModelError when the model
        does not show its inside, ContextOverflow when the text is longer than its window.
        """
        from chatapp.lab.inspectable import inspectable

        opened = inspectable(model)
        if opened is None:
            raise UserError(f"{model.name}: this kind of model does not show its inside")
        self.text = text
        self.model_name = model.name
        self.sampling = sampling
        self.top = top
        self._opened = opened
        self.trace: Trace = opened.inspect(model.tokenizer.encode(text))
        count = len(self.trace.ids)
        position = count - 1 if token is None else token + count * (token < 0)
        if not 0 <= position < count:
            raise UserError(f"--token is {token}; the text has {count} tokens, from 0 on")
        self.token = position
        for name, value, size in zip(
            ("layer", "head"), chosen, (self.trace.layers, self.trace.heads), strict=True
        ):
            if value is not None and not 1 <= value <= size:
                raise UserError(f"--{name} is {value}; the model has {size}, from 1 on")
        self.layer, self.head = chosen

    def tokens(self) -> list[dict[str, Any]]:
        """Every token with what was expected in its place; nothing is expected of the first."""
        rows: list[dict[str, Any]] = []
        before: Prediction | None = None
        for id, text, after in zip(
            self.trace.ids, self.trace.texts, self.trace.predictions(self.top), strict=True
        ):
            came = before.actual if before else None
            rows.append(
                {
                    "id": id,
                    "text": text,
                    "probability": came.probability if came else None,
                    "rank": came.rank if came else None,
                    "entropy": before.entropy if before else None,
                    "alternatives": alternatives(before) if before else [],
                }
            )
            before = after
        return rows

    def next(self) -> "Cut":
        """What may follow the text, before and after the sampling parameters' cut."""
        return self._opened.stepper(self.trace.ids, self.sampling).look(self.top)

    def weights(self) -> "list[float]":
        """What the chosen token puts on each token up to itself, averaged over what is not
        chosen of layers and heads."""
        weights = self.trace.attention(self.token)
        if self.layer is not None:
            weights = weights[self.layer - 1 : self.layer]
        if self.head is not None:
            weights = weights[:, self.head - 1 : self.head]
        averages: list[float] = weights.mean(axis=(0, 1)).tolist()
        return averages


def alternatives(prediction: "Prediction") -> list[dict[str, Any]]:
    """The likeliest tokens of a prediction as plain data."""
    return [asdict(candidate) for candidate in prediction.candidates]


def document(findings: Findings, sections: list[str], *, whole: bool) -> dict[str, Any]:
    """The JSON document. Probabilities are those of the plain softmax, entropies in bits.

    whole: attention and layers of every token, else of the chosen one. Raises UserError for a
    text that is too long for that.
    """
    trace = findings.trace
    size = len(trace.ids)
    if whole and size > _MOST_IN_FULL and {"attention", "layers"} & set(sections):
        raise UserError(
            f"the text has {size} tokens, and attention and layers are given in full for "
            f"{_MOST_IN_FULL} at most; choose one with --token, or --tokens or --next alone"
        )
    data: dict[str, Any] = {"model": findings.model_name, "text": findings.text}
    if "tokens" in sections:
        data["tokens"] = findings.tokens()
    if "next" in sections:
        data["next"] = _next(findings)
    if "attention" in sections:
        weights = trace.attentions() if whole else trace.attention(findings.token)
        data["attention"] = weights.tolist()
    if "layers" in sections:
        positions = range(size) if whole else [findings.token]
        by_token = [trace.lens(position, findings.top) for position in positions]
        rows = [
            [_guess(guesses[layer]) for guesses in by_token] for layer in range(trace.layers + 1)
        ]
        data["layers"] = rows if whole else [row[0] for row in rows]
    return data


def _next(findings: Findings) -> dict[str, Any]:
    cut = findings.next()
    return {
        "sampling": asdict(findings.sampling),
        "entropy": cut.before.entropy,
        "entropy_after_cut": cut.entropy,
        "kept": cut.kept,
        "candidates": [
            asdict(candidate) | {"drawn": drawn}
            for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
        ],
    }


def _guess(prediction: "Prediction") -> dict[str, Any]:
    return {"entropy": prediction.entropy, "alternatives": alternatives(prediction)}
