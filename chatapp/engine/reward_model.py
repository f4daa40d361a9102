"""A reward model: a causal model with a linear head that scores a whole reply.

Keep: what is scored is the last token of prompt and reply, closed; finetune trains it there.
"""

from collections.abc import Sequence
from typing import Final

from chatapp.engine.errors import ModelError
from chatapp.engine.folder import find_model
from chatapp.engine.head import HEAD_FILE, HeadModel, HeadSpec

REWARD: Final = "reward"
"""The task of a head that scores replies."""


class RewardModel(HeadModel):
    """Scores replies behind their prompts."""

    def score(self, ids: Sequence[int]) -> float:
        """The score of a sequence by its last token; only differences of scores mean something.

        ids: without `start`. Raises ValueError for a sequence that does not fit the model's window.
        """
        if len(ids) > self.context:
            raise ValueError(
                f"the reward model {self.name} reads {self.context:,} tokens, prompt and reply "
                f"have {len(ids):,}"
            )
        return self.outputs([*self.start, *ids])[0]


def load_reward_model(name: str) -> RewardModel:
    """A run of finetune with objective.kind "reward". Raises ModelError."""
    files = find_model(name)
    if not (files.path / HEAD_FILE).is_file():
        raise ModelError(f"{name}: scores no replies; train it with objective.kind = 'reward'")
    if HeadSpec.load(files.path).task != REWARD:
        raise ModelError(f"{name}: its head scores no replies, it classifies texts")
    return RewardModel.load(name, files)
