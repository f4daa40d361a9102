"""A reward model: a causal model with a linear head that scores a whole reply.

Keep: what is scored is the last token of prompt and reply, closed; finetune trains it there.
"""

import math
from collections.abc import Sequence
from typing import Final

from chatapp.engine.errors import ModelError
from chatapp.engine.folder import find_model, local_folder
from chatapp.engine.head import HEAD_FILE, HeadModel, HeadSpec

REWARD: Final = "reward"
"""The task of a head that scores replies."""


class RewardModel(HeadModel):
    """Scores replies behind their prompts."""

    def score(self, ids: Sequence[int]) -> float:
        """The score of a sequence by its last token; only differences of scores mean something.

        ids: without `start`. Raises ValueError for a sequence that does not fit the model's window,
            and when what comes out is no finite number.
        """
        if len(ids) > self.context:
            raise ValueError(
                f"the reward model {self.name} reads {self.context:,} tokens, prompt and reply "
                f"have {len(ids):,}"
            )
        score = self.outputs([*self.start, *ids])[0]
        if not math.isfinite(score):
            raise ValueError(f"the reward model {self.name} gives {score}; its weights are damaged")
        return score


def scores_replies(name: str) -> bool:
    """Whether a name is that of a reward model on this machine. Reads no weights."""
    try:
        folder = local_folder(name)
        is_head = folder is not None and (folder / HEAD_FILE).is_file()
        return folder is not None and is_head and HeadSpec.load(folder).task == REWARD
    except ModelError:
        return False


def load_reward_model(name: str) -> RewardModel:
    """A run of finetune with objective.kind "reward". Raises ModelError."""
    files = find_model(name)
    if not (files.path / HEAD_FILE).is_file():
        raise ModelError(f"{name}: scores no replies; train it with objective.kind = 'reward'")
    if HeadSpec.load(files.path).task != REWARD:
        raise ModelError(f"{name}: its head scores no replies, it classifies texts")
    return RewardModel.load(name, files)
