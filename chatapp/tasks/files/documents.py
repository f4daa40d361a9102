"""Which documents a chat or a prompt file uses, and how they are searched.

This is the request as plain data, which a prompt file, a command and a stored chat share. Only a
search checks that the files exist.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from chatapp.common.parameters import Parameter
from chatapp.common.userfiles import UserError, quoted, suggestion

Method = Literal["bm25", "encoder", "both"]
PASSAGES = 5
LIMIT = Parameter(
    name="limit", kind=int, default=PASSAGES, low=1, meaning="maximum number of passages"
)
PASSAGE_SIZE = 600
"""Characters: about 100 English words or 150 tokens; half a window of 1,024 has room for three."""

METHODS: tuple[Method, ...] = get_args(Method)


class DocumentsError(UserError):
    """Documents that cannot be searched."""


@dataclass(frozen=True, slots=True)
class DocumentSet:
    """Files, folders and patterns, and how to search them.

    method: "bm25", "encoder" or "both", and after a colon an encoder of `selection.encoders`, as in
    "both:minilm"; the default is the best one installed. limit: the most passages in a prompt.
    size: of a passage, in characters. Raises DocumentsError for an unknown method.
    """

    paths: tuple[str, ...]
    method: str = "bm25"
    limit: int = PASSAGES
    size: int = PASSAGE_SIZE

    def __post_init__(self) -> None:
        self.method_and_encoder()

    def method_and_encoder(self) -> tuple[Method, str | None]:
        """The search method and its encoder. Raises DocumentsError."""
        name, colon, encoder = self.method.partition(":")
        method = next((known for known in METHODS if known == name), None)
        if method is None:
            hint = suggestion(name, METHODS)
            raise DocumentsError(f"{quoted(self.method)} is not a way to search documents{hint}")
        if colon and (method == "bm25" or not encoder):
            raise DocumentsError(
                f"{quoted(self.method)} is not a way to search documents; an encoder follows "
                "encoder: or both:"
            )
        return method, encoder or None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "DocumentSet":
        """The inverse of `to_dict`."""
        return cls(**data | {"paths": tuple(data["paths"])})


def content_words(text: str) -> list[str]:
    """The different words of a text, case-folded, without function words of English unless there
    are no others."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    words = list(dict.fromkeys(re.findall(r"\w+", text.casefold())))
    return [word for word in words if word not in STOPWORDS_EN_PLUS] or words


def rarity_of(matches: int, passages: int) -> float:
    """Lucene's inverse document frequency of a word that so many of the passages have."""
    return math.log1p((passages - matches + 0.5) / (matches + 0.5))


def least_covered(rarities: Sequence[float]) -> float:
    """What the rarities of the words that a passage has must add up to: 0.4 of those of the query's
    four rarest words. A common word alone makes no passage relevant."""
    return 0.4 * sum(sorted(rarities)[-4:])
