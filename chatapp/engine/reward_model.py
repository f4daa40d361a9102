"""A reward model: a causal model with a linear head that scores a whole reply.

Keep: what is scored is the last token of prompt and reply, closed; finetune trains it there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chatapp.engine.errors import ModelError
from chatapp.engine.folder import ModelFiles, find_model
from chatapp.engine.generation import PieceTokenizer
from chatapp.engine.model import Tokenizer
from chatapp.userfiles import read_json_object

HEAD_FILE = "head.json"
"""What a head is, beside the model's own files."""

HEAD_WEIGHTS = "head.safetensors"
"""Its linear layer: weight (outputs, width) and bias (outputs,)."""

REWARD: Final = "reward"
"""The task of a head that scores replies."""


class RewardModel:
    """Scores token sequences. start: special tokens before each of them."""

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        model: Any,
        head: Any,
        tokenizer: PieceTokenizer,
        start: Sequence[int],
    ) -> None:
        from chatapp.engine.pretrained import context_of

        self.name, self.files, self.start = name, files, start
        self.tokenizer: Tokenizer = tokenizer
        self.context = context_of(model.config) - len(start)
        self._model, self._head = model.eval(), head

    def score(self, ids: Sequence[int]) -> float:
        """The score of a sequence by its last token; only differences of scores mean something.

        Raises ValueError for one that does not fit the model's window.
        """
        import torch

        if len(ids) > self.context:
            raise ValueError(
                f"the reward model {self.name} reads {self.context:,} tokens, prompt and reply "
                f"have {len(ids):,}"
            )
        states: list[Any] = []
        lm_head = self._model.get_output_embeddings()
        hook = lm_head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        try:
            with torch.inference_mode():
                row = torch.tensor([[*self.start, *ids]])
                self._model(input_ids=row, use_cache=False, logits_to_keep=1)
                return float(self._head(states[0][0, -1].float())[0])
        finally:
            hook.remove()


def load_reward_model(name: str) -> RewardModel:
    """A run of finetune with objective.kind "reward". Raises ModelError."""
    files = find_model(name)
    path = files.path / HEAD_FILE
    if not path.is_file():
        raise ModelError(f"{name}: scores no replies; train it with objective.kind = 'reward'")
    if read_json_object(path, ModelError).get("task") != REWARD:
        raise ModelError(f"{name}: its head scores no replies, it classifies texts")
    from chatapp.engine.pretrained import load_causal
    from chatapp.engine.tokenizer_files import chat_tokenizer

    tokenizer, start = chat_tokenizer(files)
    model = load_causal(files)
    return RewardModel(name, files, model, _read_head(files.path / HEAD_WEIGHTS), tokenizer, start)


def _read_head(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import nn

    try:
        tensors = load_file(path)
        head = nn.Linear(tensors["weight"].shape[1], 1)
        head.load_state_dict(tensors)
    except (OSError, KeyError, IndexError, SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"{path}: not the weights of a reward model: {line}") from None
    return head
