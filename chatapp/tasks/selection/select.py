"""The [select] table of a prompt file, and its selector."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from chatapp.common.validation import key_of
from chatapp.rows.examples import Pool
from chatapp.tasks.selection.methods import METHODS, Fixed, Selector
from chatapp.tasks.selection.similarity import Encoder, Metric
from chatapp.tasks.settings import SHOTS, ShotOrder

Pooling = Literal["mean", "cls"]


def _known(value: Any) -> str:
    if isinstance(value, str) and value in METHODS:
        return value
    *names, last = map(repr, METHODS)
    # Pydantic's words for a choice, so that all choices are refused alike.
    message = f"Input should be {', '.join(names)} or {last}"
    raise PydanticCustomError("literal_error", "{message}", {"message": message})


class Select(BaseModel):
    """Which demonstrations are shown, in which order.

    method: its name, see `METHODS`. k: how many. order: of printing; None is `nearest-last` if
    the method ranks, so that the best one is next to the query, else as chosen. seed: for methods
    that draw, and for `shuffled`. encoder: for methods that need one; None is the best one
    installed. pooling: of a sentence encoder; None is its own. layer: of the encoder `lm`, counted
    from the last when negative. metric: of similarity. relevance: the weight of similarity in
    `mmr`, from 0 to 1; the rest weighs redundancy. nearest: how many of the k `knn-block` chooses
    for the input; the rest is its block.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: Annotated[str, PlainValidator(_known)] = Fixed.name
    k: int = key_of(SHOTS, SHOTS.default)
    order: ShotOrder | None = None
    seed: int = key_of("seed", 0)
    encoder: str | None = None
    pooling: Pooling | None = None
    layer: int = -1
    metric: Metric = "cosine"
    relevance: Annotated[float, Field(ge=0, le=1)] = 0.5
    nearest: int = key_of(SHOTS, 4)

    @property
    def selector(self) -> type[Selector]:
        """The class of the method."""
        return METHODS[self.method]


def build_selector(pool: Pool, select: Select, encoder: Encoder | None = None) -> Selector:
    """Build the selector that `select` describes; each query has its own k.

    encoder: for methods that need one; None is TF-IDF. Raises PromptError for an encoder whose
    embeddings are not finite.
    """
    method = select.selector if len(pool) else Fixed
    return method.build(pool, select, encoder)
