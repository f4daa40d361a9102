"""Distillation: a student learns the next-token distributions of a teacher with its vocabulary.

With P the teacher's distribution of a token and Q the student's, both of logits / temperature, the
loss is the generalized Jensen-Shannon divergence (Agarwal et al., 2024, GKD, arXiv 2306.13649,
equation 1; TRL's GKDTrainer), a mean over the tokens of the replies:

    β·KL(P ‖ M) + (1 - β)·KL(Q ‖ M), M = β·P + (1 - β)·Q
    β = 0: KL(P ‖ Q), the forward KL      β = 1: KL(Q ‖ P), the reverse KL

The replies are those of the rows; a share of them, `own_replies`, is drawn from the student in each
step, see `finetune.training.draws`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from chatapp.engine.backends.transformers_loading import context_of, load_causal
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.models.resolving import find_model
from chatapp.engine.tokenizers import chat_tokenizer
from finetune.config.objectives import DistillationSettings
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Rows, Tensors
from finetune.objectives.l3 import ReplyObjective, count_labels
from finetune.objectives.objective import (
    ModelText,
    Objective,
    RowSets,
    Scalar,
    check_causal,
    check_head,
    check_packing,
    perplexity,
    through_head,
)
from finetune.objectives.rows import read_chat_rows, show_lengths, show_masks

_CHUNK_LOGITS = 2**22
"""Logits of one model that exist at one time; a divergence needs about eight such tensors."""


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """The divergence of each token in nats, (tokens,), of log-probabilities (tokens, vocabulary).

    See above for the formula.
    """

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return functional.kl_div(second, first, reduction="none", log_target=True).sum(-1)

    if beta == 0:
        return kl(teacher, student)
    if beta == 1:
        return kl(student, teacher)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


@dataclass(frozen=True, kw_only=True)
class Distillation(ReplyObjective):
    """See above. config: its table. teacher: a causal model of transformers, frozen.

    window: the tokens that both models can read, without those that start each sequence.
    """

    config: DistillationSettings
    teacher: Any
    window: int

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        settings = cast(DistillationSettings, config.objective)
        files = find_model(settings.teacher)
        _check_vocabulary(settings.teacher, chat_tokenizer(files)[0], text)
        teacher = load_causal(files)
        try:
            check_causal(teacher)
            check_head(teacher)
            if config.data.packing:
                check_packing(teacher)
        except ConfigError as error:
            raise ConfigError(f"objective.teacher: {error}") from None
        teacher.to(getattr(torch, settings.teacher_precision)).requires_grad_(False)
        window = min(text.window, context_of(teacher.config) - len(text.start))
        data = read_chat_rows(config, replace(text, window=window), "prompt")
        data = replace(data, hashes=data.hashes | {"objective.teacher": files.digest()})
        return cls(config=settings, teacher=teacher, window=window), data

    @property
    def draws_replies(self) -> bool:  # type: ignore[override]
        return self.config.own_replies > 0

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """L2 and accuracy are of the rows' own tokens."""
        return {
            "jsd": Scalar(self._divergence, curve=True, metric="loss"),
            "l2": Scalar("L2"),
            "accuracy": Scalar(metric="accuracy"),
        }

    @property
    def _divergence(self) -> str:
        beta = self.config.beta
        return {0.0: "forward KL", 1.0: "reverse KL"}.get(beta, f"JSD({beta:g})")

    def summary(self, data: RowSets) -> str:
        text = f"{self._divergence} to {self.config.teacher}"
        text += f" over {data.response_labels:,} response tokens"
        if share := self.config.own_replies:
            text += f"; {share:.0%} of the replies are the student's own"
        return text

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        return count_labels(batches, "token")

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        head, labelled = model.get_output_embeddings(), batch["response_mask"][:, 1:]
        labels = batch["input_ids"][:, 1:][labelled]
        targets = self._teacher_states(batch)[:, :-1][labelled]
        rows = max(1, _CHUNK_LOGITS // len(head.weight))

        def compute(hidden: Tensor) -> Tensor:
            states, total = hidden[:, :-1][labelled], torch.zeros(3, device=hidden.device)
            for start in range(0, max(1, len(labels)), rows):
                here = slice(start, start + rows)
                # The logits are computed again in the backward pass.
                total = total + checkpoint(
                    self._sums, head, states[here], targets[here], labels[here], use_reentrant=False
                )
            return total / float(counts[0].clamp(min=1))

        return through_head(call, model, batch, compute)

    @torch.no_grad()
    def _teacher_states(self, batch: Tensors) -> Tensor:
        """What the teacher's head reads, (sequences, tokens, width)."""
        teacher = self.teacher.to(batch["input_ids"].device).eval()
        return through_head(teacher, teacher, batch, lambda hidden: hidden)

    def _sums(self, head: Any, states: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        """Sums of the `names` over tokens. states, targets: what the two heads read."""
        logits = _logits(head, states)
        with torch.no_grad():
            wanted = _logits(self.teacher.get_output_embeddings(), targets)
        size = min(logits.shape[1], wanted.shape[1])  # one may be padded
        student, teacher = (
            (outputs[:, :size] / self.config.temperature).log_softmax(1)
            for outputs in (logits, wanted)
        )
        jsd = generalized_jsd(student, teacher, self.config.beta)
        nll = functional.cross_entropy(logits.detach(), labels, reduction="sum")
        return torch.stack([jsd.sum(), nll, (logits.argmax(1) == labels).sum().to(nll)])

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        examples = cast(Rows, data.train).examples
        return {
            "Tokens": [*show_lengths(examples), Text(self.summary(data))],
            "Masks": list(show_masks(examples, tokenizer, marked)),
        }

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        return super().metrics(means, done) | {"perplexity": perplexity(means["l2"])}


def _logits(head: Any, states: Tensor) -> Tensor:
    return functional.linear(states, head.weight, head.bias).float()


def _check_vocabulary(teacher: str, theirs: PieceTokenizer, text: ModelText) -> None:
    """Raises ConfigError where a teacher's tokens are not the student's."""
    ours = text.tokenizer
    sentence = f"objective.teacher: {teacher} has another vocabulary than {text.name}: "
    if theirs.size != ours.size:
        raise ConfigError(f"{sentence}{theirs.size:,} tokens instead of {ours.size:,}")
    for id in range(ours.size):
        if theirs.piece(id) != ours.piece(id):
            raise ConfigError(
                f"{sentence}token {id} is {theirs.piece(id)!r} instead of {ours.piece(id)!r}"
            )
