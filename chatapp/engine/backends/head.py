"""A linear head on a causal model: its definition, its input tokens and its output.

Invariant: only this module encodes texts for a head. `run`, `eval`, `finetune predict` and the
evaluation during training get the same tokens and numbers from it. A head reads the last block's
state at the token that closes a sequence, as in training, and adds nothing to the vocabulary. A
reward model is a head that reads prompt and reply, closed, at their last token.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, get_args

from chatapp.common.userfiles import read_json_object, reason, write_whole
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

HEAD_FILE = "head.json"
"""The definition of a head, next to the model's files."""

HEAD_WEIGHTS = "head.safetensors"
"""Its linear layer: weight (outputs, width) and bias (outputs,)."""

HeadTask = Literal["classification", "entailment", "similarity", "multiple-choice", "reward"]

REWARD: Final = "reward"
"""The task of a head that scores replies."""

Sequences = tuple[tuple[int, ...], ...]
"""The sequences of one input: one sequence of ids, the two orders of a pair for similarity, or one
sequence per choice.
"""

_BATCH = 16
"""Inputs in one batch."""


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A task and its classes.

    labels: none for multiple choice, whose choices differ, and none for a reward, which is one
    number. reads: the token of a sequence whose state is read; of a masked model the first.
    scale: of regression, the mean and standard deviation of the training labels: the layer
    outputs the number of deviations from the mean, so the learning rate does not depend on the
    unit. None for classes. length: tokens of the longest training sequence; longer texts are cut to
    it. None, as in heads of earlier versions, is the model's window.
    """

    task: HeadTask
    labels: tuple[str, ...]
    delimiter: str
    scale: tuple[float, float] | None = None
    length: int | None = None
    reads: Literal["last", "first"] = "last"

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
                kind = cast(HeadTask, task)
                match rest.get("scale"), rest.get("length"), rest.get("reads", "last"):
                    case None, (int() | None) as length, ("last" | "first") as reads:
                        return cls(kind, tuple(labels), delimiter, None, length, reads)
                    case (
                        [float(mean), float(deviation)],
                        (int() | None) as length,
                        ("last" | "first") as reads,
                    ) if kind != "multiple-choice":
                        return cls(kind, (), delimiter, (mean, deviation), length, reads)
        raise ModelError(f"{path}: expected the keys task, labels and delimiter of a head")


class HeadEncoder:
    """Encodes the texts of an input as the sequences that a head reads (Radford et al., 2018,
    figure 1).

    A sequence is start, text (two texts with a delimiter between them), and the end-of-text token.
    A delimiter that has no tokens, such as a line break in WordPiece, is the end-of-text token.
    start: the tokens that the model expects before any text; if empty, the
    end-of-text token. window: tokens of the longest sequence of the model, including `start`.
    length: the most tokens that the head reads. Raises ModelError when no text fits.
    """

    def __init__(
        self, spec: HeadSpec, tokenizer: Tokenizer, start: Sequence[int], window: int
    ) -> None:
        self.length = min(spec.length or window, window)
        self._spec, self._tokenizer = spec, tokenizer
        self._start, self._end = list(start) or [tokenizer.end_id], tokenizer.end_id
        delimiter = tokenizer.encode(spec.delimiter) if spec.delimiter else []
        self._delimiter = delimiter or [tokenizer.end_id] * bool(spec.delimiter)
        if len(self._framed([[], []])) >= self.length:
            raise ModelError(
                f"the head reads {self.length} tokens, which its delimiter {spec.delimiter!r} fills"
            )

    def sequences(self, texts: Sequence[str | Sequence[str]], *, cut: bool = True) -> Sequences:
        """An input as sequences of at most `length` tokens; without `cut` of any length.

        texts: one, or two, or for multiple choice a context and its choices. In a sequence that is
        too long, the end of its longer text is cut, never the delimiter or the last token.
        """
        sequences = []
        for pair in self._pairs(texts):
            parts = [self._tokenizer.encode(text.strip()) for text in pair]
            surplus = len(self._framed(parts)) - self.length if cut else 0
            for _ in range(surplus):
                max(parts, key=len).pop()
            sequences.append(self._framed(parts))
        return tuple(sequences)

    def _pairs(self, texts: Sequence[Any]) -> list[Sequence[str]]:
        """The texts of each sequence."""
        match self._spec.task:
            case "similarity":
                return [texts, texts[::-1]]
            case "multiple-choice":
                return [[texts[0], choice] for choice in texts[1]]
        return [texts]

    def _framed(self, parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
        joined = parts[0] if len(parts) == 1 else [*parts[0], *self._delimiter, *parts[1]]
        return (*self._start, *joined, self._end)


def head_logits(
    layer: Any, states: "Tensor", owners: "Tensor", count: int, task: HeadTask
) -> "Tensor":
    """Logits of inputs, (count, classes or choices).

    states: (sequences, width), where each sequence is read. owners: the input of each
    sequence, (sequences,), rising. The states of the two orders of a pair are summed before the
    layer; for multiple choice the score of each choice is its own logit, and absent choices have
    -inf.
    """
    import torch

    if task != "multiple-choice":
        summed = torch.zeros(count, states.shape[1], device=states.device)
        logits: Tensor = layer(summed.index_add(0, owners, states))
        return logits
    scores = layer(states)[:, 0].float()
    sizes = torch.bincount(owners, minlength=count)
    first = sizes.cumsum(0) - sizes
    choice = torch.arange(len(owners), device=states.device) - first[owners]
    empty = torch.full((count, max(1, int(sizes.max()))), -torch.inf, device=states.device)
    return empty.index_put((owners, choice), scores)


@contextmanager
def in_place_of(lm_head: Any, compute: "Callable[[Tensor], Tensor]") -> Iterator[None]:
    """Make a language model return `compute(hidden)` instead of logits.

    Inside the model's own forward pass, the computation finds every parameter where DDP, FSDP,
    autocast and adapters put it.
    """
    lm_head.forward = compute
    try:
        yield
    finally:
        del lm_head.forward


class HeadModel:
    """A causal or masked model of transformers and the linear layer on it.

    start: special tokens before each sequence. context: tokens of the longest sequence after them.
    """

    def __init__(
        self,
        name: str,
        files: ModelFiles,
        spec: HeadSpec,
        model: Any,
        layer: Any,
        tokenizer: Tokenizer,
        start: Sequence[int],
    ) -> None:
        from chatapp.engine.backends.transformers_loading import context_of

        self.name, self.files, self.spec, self.start = name, files, spec, start
        self.tokenizer: Tokenizer = tokenizer
        window = context_of(model.config)
        self.context = window - len(start)
        self.encoder = HeadEncoder(spec, tokenizer, start, window)
        self._model, self._layer = model, layer

    @classmethod
    def load(cls, name: str, files: ModelFiles, device: str = "cpu") -> Self:
        """Load the model of a run with a head, in float32. device: see `device_for`.

        Raises ModelError.
        """
        from chatapp.engine.backends.transformers_loading import load_network, put_on
        from chatapp.engine.tokenizers import chat_tokenizer

        spec = HeadSpec.load(files.path)
        tokenizer, start = chat_tokenizer(files)
        layer = _read_layer(files.path / HEAD_WEIGHTS, spec.outputs)
        model = put_on(device, load_network(files), files)
        return cls(name, files, spec, model, layer.to(model.device), tokenizer, start)

    def outputs(self, inputs: Sequence[Sequences]) -> list[list[float]]:
        """The probabilities of each input's labels or choices, the number of a regression, or a
        reward.

        inputs: see `HeadEncoder.sequences`. Inputs of similar length share a batch.
        """
        order = sorted(range(len(inputs)), key=lambda index: max(map(len, inputs[index])))
        outputs: dict[int, list[float]] = {}
        for begin in range(0, len(order), _BATCH):
            batch = order[begin : begin + _BATCH]
            outputs.update(zip(batch, self._of_batch([inputs[i] for i in batch]), strict=True))
        return [outputs[index] for index in range(len(inputs))]

    def _of_batch(self, inputs: Sequence[Sequences]) -> list[list[float]]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        device = self._model.device
        sequences = [torch.tensor(ids, device=device) for entry in inputs for ids in entry]
        last = torch.tensor([len(ids) - 1 for ids in sequences], device=device)
        sizes = [len(entry) for entry in inputs]
        owners = torch.arange(len(inputs), device=device).repeat_interleave(
            torch.tensor(sizes, device=device)
        )
        logits: list[Tensor] = []

        def read(hidden: "Tensor") -> "Tensor":
            place = last if self.spec.reads == "last" else torch.zeros_like(last)
            states = hidden[torch.arange(len(last), device=device), place].float()
            logits.append(head_logits(self._layer, states, owners, len(inputs), self.spec.task))
            return hidden

        # Padding is at the right, where causal attention cannot see it; others get a mask.
        real = pad_sequence([torch.ones_like(ids) for ids in sequences], batch_first=True)
        options = {"use_cache": False} if self.spec.reads == "last" else {"attention_mask": real}
        padded = pad_sequence(sequences, batch_first=True, padding_value=self.tokenizer.end_id)
        self._model.eval()
        with torch.inference_mode(), in_place_of(self._model.get_output_embeddings(), read):
            self._model(input_ids=padded, **options)
        if self.spec.scale or self.spec.task == REWARD:
            mean, deviation = self.spec.scale or (0.0, 1.0)
            return (logits[0] * deviation + mean).tolist()
        lengths = (
            sizes if self.spec.task == "multiple-choice" else [self.spec.outputs] * len(inputs)
        )
        rows = logits[0].softmax(1).tolist()
        return [row[:size] for row, size in zip(rows, lengths, strict=True)]


def _read_layer(path: Path, outputs: int) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from torch import nn

    try:
        tensors = load_file(path)
        layer = nn.Linear(tensors["weight"].shape[1], outputs)
        layer.load_state_dict(tensors)
    except (OSError, KeyError, IndexError, SafetensorError, RuntimeError) as error:
        line = reason(error).strip().partition("\n")[0]
        raise ModelError(f"{path}: not the weights of this head: {line}") from None
    return layer


class RewardModel(HeadModel):
    """Scores replies after their prompts."""

    def score(self, ids: Sequence[int]) -> float:
        """The score of a sequence at its last token; only differences of scores have a meaning.

        ids: without `start`. Raises ValueError for a sequence longer than the model's window, and
        for a score that is not finite.
        """
        if len(ids) > self.context:
            raise ValueError(
                f"the reward model {self.name} reads {self.context:,} tokens, prompt and reply "
                f"have {len(ids):,}"
            )
        ((score,),) = self.outputs([((*self.start, *ids),)])
        if not math.isfinite(score):
            raise ValueError(f"the reward model {self.name} gives {score}; its weights are damaged")
        return score
