"""A linear head on a causal model: what it is, which tokens it reads, and what it gives.

Keep: a head reads the last block's state at the token that closes a sequence, where finetune
taught it, and adds nothing to the vocabulary.

A reward model: a causal model with a linear head that scores a whole reply.

Keep: what is scored is the last token of prompt and reply, closed; finetune trains it there.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from chatapp.common.userfiles import read_json_object, write_whole
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer, Tokenizer

HEAD_FILE = "head.json"
"""What a head is, beside the model's own files."""

HEAD_WEIGHTS = "head.safetensors"
"""Its linear layer: weight (outputs, width) and bias (outputs,)."""

HeadTask = Literal["classification", "entailment", "similarity", "multiple-choice", "reward"]


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A task and its classes. Multiple choice has no labels, as its choices differ, nor has a
    reward, which is one number.

    scale: of regression, mean and standard deviation of the labels learnt from: the layer gives
        the number as so many deviations from the mean, so that no learning rate depends on what
        it is counted in. None for classes.
    """

    task: HeadTask
    labels: tuple[str, ...]
    delimiter: str
    scale: tuple[float, float] | None = None

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_whole(folder / HEAD_FILE, text + "\n")

    @classmethod
    def load(cls, folder: Path) -> "HeadSpec":
        """Raises ModelError."""
        path = folder / HEAD_FILE
        match read_json_object(path, ModelError):
            case {"task": str(task), "labels": [*labels], "delimiter": str(delimiter), **rest} if (
                task in get_args(HeadTask) and all(isinstance(label, str) for label in labels)
            ):
                match rest.get("scale"):
                    case None:
                        return cls(task, tuple(labels), delimiter)  # type: ignore[arg-type]
                    case [float(mean), float(deviation)] if task != "multiple-choice":
                        return cls(task, (), delimiter, (mean, deviation))  # type: ignore[arg-type]
        raise ModelError(f"{path}: expected the keys task, labels and delimiter of a head")


def framed(
    texts: Sequence[Sequence[int]], delimiter: Sequence[int], start: Sequence[int], end: int
) -> tuple[int, ...]:
    """What a head reads of a text, or of two with the delimiter between them: start, text,
    extract (Radford et al., 2018, figure 1).

    start: what the model expects before any text; the end-of-text token when it is empty.
    """
    joined = texts[0] if len(texts) == 1 else [*texts[0], *delimiter, *texts[1]]
    return (*(start or [end]), *joined, end)


class HeadModel:
    """A causal model and the linear layer that reads it.

    start: special tokens before each sequence. context: tokens of the longest one behind them.
    """

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        spec: HeadSpec,
        model: Any,
        layer: Any,
        tokenizer: PieceTokenizer,
        start: Sequence[int],
    ) -> None:
        from chatapp.engine.backends.transformers_loading import context_of

        self.name, self.files, self.spec, self.start = name, files, spec, start
        self.tokenizer: Tokenizer = tokenizer
        self.context = context_of(model.config) - len(start)
        self._model, self._layer = model.eval(), layer

    @classmethod
    def load(cls, name: str, files: ModelFiles) -> Self:
        """The model of a run with a head, on the CPU in float32. Raises ModelError."""
        from chatapp.engine.backends.transformers_loading import load_causal
        from chatapp.engine.tokenizers import chat_tokenizer

        spec = HeadSpec.load(files.path)
        tokenizer, start = chat_tokenizer(files)
        layer = _read_layer(files.path / HEAD_WEIGHTS, spec.outputs)
        return cls(name, files, spec, load_causal(files), layer, tokenizer, start)

    def outputs(self, ids: Sequence[int]) -> list[float]:
        """What the layer gives for a whole sequence, `start` and all."""
        import torch

        states: list[Any] = []
        lm_head = self._model.get_output_embeddings()
        hook = lm_head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        try:
            with torch.inference_mode():
                self._model(input_ids=torch.tensor([ids]), use_cache=False, logits_to_keep=1)
                return [float(each) for each in self._layer(states[0][0, -1].float())]
        finally:
            hook.remove()


def _read_layer(path: Path, outputs: int) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import nn

    try:
        tensors = load_file(path)
        layer = nn.Linear(tensors["weight"].shape[1], outputs)
        layer.load_state_dict(tensors)
    except (OSError, KeyError, IndexError, SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"{path}: not the weights of this head: {line}") from None
    return layer


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
