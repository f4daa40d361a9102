"""How well a model predicts a text: perplexity over a sliding window.

Keep: every token of the text is scored exactly once. The first window begins with the end-of-text
token, which GPT-2 saw before every document, so that the text's first token is scored as well;
each later window begins a stride after its predecessor and gives a token at least window - stride
tokens of context.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chatapp.engine.model import LanguageModel

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What a text costs a model.

    negative_log_likelihood: of the whole text, in nats.
    tokens: of the model's own tokenizer. words: what white space separates. bytes: of the
    text in UTF-8. stride: tokens scored in each window after the first.
    """

    negative_log_likelihood: float
    tokens: int
    words: int
    bytes: int
    stride: int

    @property
    def per_token(self) -> float:
        """exp(nats / tokens); depends on the tokenizer."""
        return exp_or_inf(self.negative_log_likelihood / self.tokens)

    @property
    def per_word(self) -> float:
        """exp(nats / words), the "word perplexity" of papers on language models."""
        return exp_or_inf(self.negative_log_likelihood / self.words)

    @property
    def per_byte(self) -> float:
        """exp(nats / bytes); 2 to the power of the bits a byte."""
        return exp_or_inf(self.negative_log_likelihood / self.bytes)


def perplexity(
    model: LanguageModel, text: str, stride: int | None = None, progress: Progress | None = None
) -> Perplexity:
    """The perplexity of a text.

    stride: from 1 to the model's window - 1; half the window if there is none. A smaller one
        gives more context, and takes longer.
    Raises ValueError for a stride out of range and for a text without words.
    """
    window = model.context
    stride = window // 2 if stride is None else stride
    if not 1 <= stride < window:
        raise ValueError(f"the stride is {stride}; expected 1 to {window - 1}")
    words = len(text.split())
    if not words:
        raise ValueError("there are no words to predict")
    ids = [model.tokenizer.end_id, *model.tokenizer.encode(text)]
    total = 0.0
    for first, begin, end in _windows(len(ids), window, stride):
        (scores,) = model.score([(ids[first:begin], ids[begin:end])])
        total -= math.fsum(scores)
        if progress:
            progress(end - 1, len(ids) - 1)
    size = len(text.encode("utf-8", "surrogatepass"))
    return Perplexity(total, len(ids) - 1, words, size, stride)


def _windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where each window begins, where its first token to be scored is, and where it ends."""
    begin = 1
    for first in range(0, length, stride):
        end = min(first + window, length)
        if begin < end:
            yield first, begin, end
        begin = end


def exp_or_inf(value: float) -> float:
    """e to the power of `value`, infinite where a float is too small for it."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
