"""The common part of objectives on pairs of replies: DPO, ORPO and reward models.

A pair's loss depends on the values of the two replies, and the step's loss is the mean over its
pairs, plus an optional supervised term: weight · L1, the mean negative log-likelihood of tokens of
the chosen sequences.

Invariant: a pair's weight is 1 / the number of pairs of the whole optimizer step, so the loss is
the same however the step is cut, padded or packed.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn

from chatapp.engine.backends.head import HEAD_FILE, in_place_of
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.model import PieceTokenizer, Tokenizer
from chatapp.engine.models.resolving import find_model
from chatapp.tasks.evaluation.metrics import wilson
from finetune.config.objectives import SupervisedSpan
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import ByLength, Tensors, TrainingRows, collate, loader
from finetune.data.formats import Layout
from finetune.data.preferences import EncodedFeedback, FeedbackRow, detect_preference
from finetune.data.preparation import length_of
from finetune.data.tables import Row
from finetune.objectives.log_probs import reply_sums, side, token_log_probs
from finetune.objectives.objective import (
    EVALUATION_BATCH,
    Evaluator,
    Figures,
    ModelText,
    Objective,
    Question,
    RowSets,
    Tell,
    model_inputs,
)
from finetune.objectives.previews import (
    count_alike,
    cut_line,
    lengths_document,
    lengths_line,
    reply_lengths,
    show_pairs,
)
from finetune.objectives.reference import give_reference
from finetune.objectives.rows import (
    MakeRows,
    PairRows,
    RowMaker,
    encode_feedback,
    pair_row_sets,
    preference_rows,
    row_questions,
)

REWARD_FIGURES = {
    "accuracy": "pairs right",
    "margin": "margin",
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
}
LOGP_FIGURES = {"chosen_logp": "log p chosen", "rejected_logp": "log p rejected"}


class Replies(NamedTuple):
    """The replies of one side of a batch, each (pairs,).

    logps: log-probability, a sum over the reply's tokens. reference: the same by the reference.
    tokens: their number. value: see `PairRows`.
    """

    logps: Tensor
    reference: Tensor
    tokens: Tensor
    value: Tensor


class PairScores(NamedTuple):
    """The results of pairs, each (pairs,). loss has a gradient, the others are figures.

    counts: False for a pair without labels, which fills a batch.
    """

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    counts: Tensor
    chosen_logp: Tensor | None = None
    rejected_logp: Tensor | None = None

    def figures(self) -> dict[str, Tensor]:
        """Of each pair, by name."""
        margin = (self.chosen_reward - self.rejected_reward).detach()
        figures = {
            "accuracy": (margin > 0).float(),
            "margin": margin,
            "chosen_reward": self.chosen_reward.detach(),
            "rejected_reward": self.rejected_reward.detach(),
        }
        if self.chosen_logp is not None and self.rejected_logp is not None:
            figures |= {
                "chosen_logp": self.chosen_logp.detach(),
                "rejected_logp": self.rejected_logp.detach(),
            }
        return figures


def replies_of(logps: Tensor, batch: Tensors) -> Replies:
    """The replies of a batch whose tokens have these log-probabilities, (sequences, tokens)."""
    labels = batch["response_mask"]
    tokens = reply_sums(labels, batch)
    return Replies(
        reply_sums(logps * labels, batch),
        reply_sums(batch["reference"] * labels, batch),
        tokens,
        reply_sums(batch["value"] * labels, batch) / tokens.clamp(min=1),
    )


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Losses of pairs, and weight · L1. Each kind computes the results of pairs, in `of_replies`.

    weight, span: of the supervised term, and its tokens in the chosen sequences. name: of the loss
    in the log; title: in words.
    """

    weight: float = 0.0
    span: SupervisedSpan = "response"
    name = "pairs"
    title = "pairs"
    logp_figures: ClassVar[Mapping[str, str]] = LOGP_FIGURES

    @classmethod
    @abstractmethod
    def of(cls, settings: Any) -> "PairObjective":
        """The objective for a table of the configuration."""

    def of_replies(self, chosen: Replies, rejected: Replies) -> PairScores:
        """The results of pairs from the log-probabilities of their replies."""
        raise NotImplementedError

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        objective = cls.of(config.objective)
        prepared = encode_feedback(config, text, detect_preference)
        return objective, pair_row_sets(prepared, config, text, objective.span, preference_rows)

    def questions(
        self, rows: TrainingRows, tokenizer: Tokenizer, context: int, skip: int
    ) -> Iterator[Question]:
        return row_questions(cast(PairRows, rows).first.examples, tokenizer, context, skip)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, "pair_loss", "l1", *REWARD_FIGURES, *self.logp_figures)

    @property
    def figures(self) -> Mapping[str, str]:
        parts = {"pair_loss": "pairs", "l1": "L1"} if self.weight else {}
        return {self.name: self.title} | parts | REWARD_FIGURES | dict(self.logp_figures)

    @property
    def curves(self) -> tuple[str, ...]:
        return (self.name,)

    def summary(self, data: RowSets) -> str:
        """A description of the loss and the amount of data."""
        text = f"{self.title} over {data.examples:,} pairs"
        if self.weight:
            text += f", and {self.weight:g} · L1 over {data.aux_labels:,} tokens of chosen replies"
        return text

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The number of pairs, and of tokens of L1."""
        counts = torch.zeros(2, dtype=torch.float64)
        for batch in batches:
            pairs = reply_sums(side(batch, 0)["response_mask"], side(batch, 0)) > 0
            counts += torch.stack([pairs.sum(), batch["aux_mask"].sum()]).to(counts)
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        n_pairs, n_aux = counts.clamp(min=1).tolist()

        def compute(hidden: Tensor) -> Tensor:
            logps = self._log_probs(hidden, model, batch)
            l1 = -(logps * batch["aux_mask"]).sum() / n_aux if self.weight else torch.zeros(())
            score_pairs = self.score_pairs(hidden, logps, model, batch)
            share = score_pairs.counts / n_pairs
            pair_loss = (score_pairs.loss * share).sum()
            figures = [(figure * share).sum() for figure in score_pairs.figures().values()]
            l1 = l1.to(pair_loss)
            whole = pair_loss + self.weight * l1
            return torch.stack([whole, pair_loss.detach(), l1.detach(), *figures])

        with in_place_of(model.get_output_embeddings(), compute):
            losses: Tensor = call(**model_inputs(batch)).logits
        return losses

    @torch.no_grad()
    def pair_figures(self, model: Any, batch: Tensors) -> dict[str, Tensor]:
        """The loss and the figures of each pair of a batch, each (pairs,)."""
        figures: dict[str, Tensor] = {}

        def compute(hidden: Tensor) -> Tensor:
            logps = self._log_probs(hidden, model, batch)
            score_pairs = self.score_pairs(hidden, logps, model, batch)
            figures.update({"loss": score_pairs.loss, **score_pairs.figures()})
            return hidden

        with in_place_of(model.get_output_embeddings(), compute):
            model(**model_inputs(batch))
        return figures

    def score_pairs(self, hidden: Tensor, logps: Tensor, model: Any, batch: Tensors) -> PairScores:
        """The results of a batch's pairs.

        hidden: the input of the language-model head. logps: of the labels, see `token_log_probs`.
        """
        chosen, rejected = (
            replies_of(values, side(batch, number))
            for number, values in enumerate((logps[0::2], logps[1::2]))
        )
        return self.of_replies(chosen, rejected)

    def _log_probs(self, hidden: Tensor, model: Any, batch: Tensors) -> Tensor:
        labelled = batch["response_mask"]
        if self.weight:
            labelled = labelled | batch["aux_mask"]
        return token_log_probs(hidden, model.get_output_embeddings(), batch, labelled)

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(PairRows, data.train)
        margins = (f", margin {value:g}" if value else "" for value in rows.values)
        titles = [(f"chosen{margin}", "rejected") for margin in margins]
        lines = [
            Text(self.summary(data)),
            lengths_line("chosen replies", reply_lengths(rows.first.examples)),
            lengths_line("rejected replies", reply_lengths(rows.second.examples)),
            Text(
                f"alike, nine tokens in ten the same: {count_alike(rows):,} of "
                f"{len(rows.first.examples):,} pairs"
            ),
            cut_line(data),
        ]
        return {"Pairs": [*lines, *show_pairs(rows, titles, tokenizer, marked)]}

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        rows = cast(PairRows, data.train)
        return {
            "chosen_tokens": lengths_document(reply_lengths(rows.first.examples)),
            "rejected_tokens": lengths_document(reply_lengths(rows.second.examples)),
            "alike": count_alike(rows),
        }

    @classmethod
    def evaluator(cls, config: FinetuneConfig, text: ModelText) -> Evaluator:
        return PairEvaluator(config, text, cls.of(config.objective))

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss in nats per pair, and the figures of the pairs."""
        metrics = {"loss": means[self.name]}
        metrics |= {name: means[name] for name in (*REWARD_FIGURES, *self.logp_figures)}
        return metrics | ({"l1": means["l1"]} if self.weight else {})


@dataclass(frozen=True)
class FeedbackEvaluator(Evaluator):
    """Evaluates a model on feedback; rewards are relative to the reference of the run, its initial
    model, whichever model is evaluated.
    """

    def detect(self, row: Row) -> Layout[FeedbackRow]:
        """The layout of a row. Raises BadRow."""
        return detect_preference(row)

    def read_rows(self) -> tuple[list[EncodedFeedback], dict[str, list[EncodedFeedback]]]:
        sets = encode_feedback(self.config, self.text, self.detect)
        return sets.train, sets.held_out

    def questions(self, rows: Sequence[EncodedFeedback]) -> Iterator[Question]:
        """The prompts of the better replies, and of the good ones."""
        liked = [row.liked for row in rows if row.liked is not None]
        return row_questions(liked, self.text.tokenizer, self.text.window)

    def pair_rows(self, rows: Sequence[EncodedFeedback], make: MakeRows) -> PairRows:
        """Examples as rows of one pair each."""
        text, length = self.text, length_of(self.config.data, self.text.window)
        maker = RowMaker("response", text.tokenizer.end_id, text.start, length, None)
        return make(rows, maker)

    def batches(
        self, model: Any, rows: PairRows, needs_reference: bool, tell: Tell
    ) -> Iterator[Tensors]:
        """The rows on the model's device, with the reference in them if needed."""
        pad = partial(collate, pad_id=self.text.tokenizer.end_id)
        if needs_reference:
            reference = load_causal(find_model(self.config.model)).eval()

            def progress(done: int, total: int) -> None:
                tell("the reference", done)

            give_reference(reference, {"": rows}, pad, "float32", progress)
        device = next(model.parameters()).device
        order = ByLength(rows.lengths)
        for number, batch in enumerate(loader(rows, order, EVALUATION_BATCH, pad)):
            tell("pairs", number * EVALUATION_BATCH)
            yield {key: value.to(device) for key, value in batch.items()}


@dataclass(frozen=True)
class PairEvaluator(FeedbackEvaluator):
    """Evaluates a model on pairs by an objective."""

    objective: PairObjective

    def __post_init__(self) -> None:
        if self.objective.added and not (self.text.files.path / HEAD_FILE).is_file():
            raise ConfigError(
                f"{self.text.name} has no head that scores replies; compare reward models"
            )

    def extend(self, model: Any) -> None:
        self.objective.extend(model, seed=0)
        self.objective.load(model, self.text.files.path)

    def questions(self, rows: Sequence[EncodedFeedback]) -> Iterator[Question]:
        return super().questions(rows) if self.objective.replies else iter(())

    def measure(self, model: Any, rows: Sequence[EncodedFeedback], tell: Tell) -> Figures:
        """Means over pairs; the fraction of correct ones with Wilson's interval, the margin with
        that of a normal mean.
        """
        made = self.pair_rows(rows, preference_rows)
        collected: dict[str, list[Tensor]] = {}
        for batch in self.batches(model, made, self.objective.needs_reference, tell):
            for name, values in self.objective.pair_figures(model, batch).items():
                collected.setdefault(name, []).append(values.cpu().double())
        figures = {name: torch.cat(values) for name, values in collected.items()}
        margins, count = figures["margin"], len(rows)
        middle = float(margins.mean())
        half = 1.96 * float(margins.std()) / math.sqrt(count) if count > 1 else math.inf
        intervals = {
            "accuracy": wilson(int(figures["accuracy"].sum()), count),
            "margin": (middle - half, middle + half),
        }
        return Figures({name: float(figure.mean()) for name, figure in figures.items()}, intervals)
