"""A reply generated one token at a time, each distribution in the open.

Keep: as long as the sampling stays and no token is chosen or taken back, it draws the very
tokens that `LanguageModel.generate` gives with the same seed.
"""

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from chatapp.engine.model import Sampling
from chatapp.engine.sampling import Sampler
from chatapp.lab.predictions import Candidate, Cut, cut, predictions


class Stepper:
    """A reply that grows by a token at a time.

    taken: the tokens so far, drawn or chosen, as the model saw them coming.
    sampling: how the next token is drawn.
    """

    def __init__(
        self,
        logits: Callable[[Sequence[int]], Tensor],
        piece: Callable[[int], str],
        ids: Sequence[int],
        sampling: Sampling,
        context: int,
        end_ids: Collection[int],
    ) -> None:
        self.taken: list[Candidate] = []
        self._ids = list(ids)
        self._context = context
        self._end_ids = end_ids
        self._compute = logits
        self._piece = piece
        self._known: Tensor | None = None
        self.draw_by(sampling)

    def draw_by(self, sampling: Sampling) -> None:
        """Draw the next tokens in another way."""
        self.sampling = sampling
        self._sampler = Sampler(sampling)

    @property
    def is_over(self) -> bool:
        """Whether the reply has ended, or the window has no room for another token."""
        ended = bool(self.taken) and self.taken[-1].id in self._end_ids
        return ended or len(self._ids) >= self._context

    def look(self, top: int = 10) -> Cut:
        """The distribution of the next token."""
        return cut(self._logits(), self._ids, self._sampler, top=top, piece=self._piece)

    def draw(self) -> int:
        """Draw the next token and add it; returns its id. Raises ValueError when it is over."""
        self._check()
        id = self._sampler.draw(self._logits(), self._ids)
        self._add(id)
        return id

    def choose(self, id: int) -> None:
        """Add a token that was not drawn.

        Raises ValueError when it is over, or for an id that is not in the vocabulary.
        """
        self._check()
        vocabulary = len(self._logits())
        if not 0 <= id < vocabulary:
            raise ValueError(f"token id {id} is not in the vocabulary of {vocabulary}")
        self._add(id)
        self._sampler = Sampler(self.sampling)

    def back(self) -> bool:
        """Take the last token back; False when there is none."""
        if not self.taken:
            return False
        del self._ids[-1], self.taken[-1]
        self._known = None
        self._sampler = Sampler(self.sampling)
        return True

    def _check(self) -> None:
        if self.is_over:
            raise ValueError("the reply has ended, or the model's window is full")

    def _add(self, id: int) -> None:
        (seen,) = predictions(self._logits()[None], [id], top=1, piece=self._piece)
        assert seen.actual is not None
        self.taken.append(seen.actual)
        self._ids.append(id)
        self._known = None

    def _logits(self) -> Tensor:
        if self._known is None:
            self._known = self._compute(self._ids)
        return self._known
