"""Kahneman-Tversky optimization (Ethayarajh et al., 2024, arXiv 2402.01306, equations 7 and 8).

With r = log π(reply)/ref(reply) and z an estimate of the divergence from the reference, the loss
of a reply is

    good  λ_D·(1 - σ(β·(r - z)))        bad  λ_U·(1 - σ(β·(z - r)))

z is, as in TRL, the mean log-ratio of mismatched replies, each prompt with the reply of the row
before it (the first with that of the last), 0 where it would be negative, without a gradient. TRL
takes it over a micro-batch, in whose order it pairs the rows; here rows are paired in the order of
the whole set and z is over the optimizer step, so that it is the same however the step is cut. A
step of all rows has TRL's z. A mismatched pair is cut at the end of its reply, to the length of a
row, like TRL's.

λ_D and λ_U are by the counts unless they are set: the rarer kind weighs as much altogether as the
other (equation 8 with a ratio of 1); TRL has 1 for both and says so where the counts differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn

from chatapp.engine.model import PieceTokenizer
from chatapp.tasks.metrics import wilson
from finetune.config.objectives import KtoSettings
from finetune.data.batches import Tensors
from finetune.data.encoding import Encoded, Span
from finetune.data.preferences import FEEDBACK, EncodedFeedback, EncodedPair, EncodedVerdict
from finetune.objectives.log_probs import side, token_log_probs
from finetune.objectives.objective import Figures, RowSets, Scalar, Tell, through_head
from finetune.objectives.pairs import (
    LOGP_FIGURES,
    REWARD_FIGURES,
    Dpo,
    FeedbackEvaluator,
    FeedbackObjective,
    PairEvaluator,
    replies_of,
)
from finetune.objectives.rows import (
    PairRows,
    Sides,
    cut_line,
    lengths_document,
    lengths_line,
    mean_losses,
    reply_lengths,
    show_pairs,
)


@dataclass(frozen=True)
class VerdictEvaluator(FeedbackEvaluator):
    """Evaluates a model on verdicts by KTO, and on preferences by DPO, which ranks
    their replies."""

    @torch.no_grad()
    def measure(self, model: Any, rows: Sequence[EncodedFeedback], tell: Tell) -> Figures:
        """The means over the replies; the fraction of correct verdicts with Wilson's interval."""
        settings = cast(KtoSettings, self.config.objective)
        if all(isinstance(row, EncodedPair) for row in rows):
            ranking = PairEvaluator(self.config, self.text, Dpo(beta=settings.beta))
            return ranking.measure(model, rows, tell)
        objective = Kto.of(settings, rows)
        made, end = self.pair_rows(objective, rows, tell), self.text.tokenizer.end_id
        means, _ = mean_losses(objective, model, made, end, "pairs", tell)
        right = wilson(round(means["accuracy"] * len(made)), len(made))
        return Figures(objective.metrics(means, 0.0), {"accuracy": right})


def as_verdicts(rows: Sequence[EncodedFeedback]) -> list[EncodedVerdict]:
    """Verdicts unchanged, and each preference as two."""
    return [verdict for feedback_row in rows for verdict in feedback_row.verdicts]


@dataclass(frozen=True, kw_only=True)
class Kto(FeedbackObjective):
    """beta, desirable (λ_D), undesirable (λ_U): see above."""

    beta: float = 0.1
    desirable: float = 1.0
    undesirable: float = 1.0

    evaluator = VerdictEvaluator
    needs_reference = True
    row_kind = FEEDBACK

    @staticmethod
    def sides(rows: Sequence[EncodedFeedback], longest: int) -> Sides:
        """For verdicts: the reply, the one before it with the same prompt, and the label."""
        verdicts = as_verdicts(rows)
        replies = [verdict.reply for verdict in verdicts]
        mismatched = [
            _mismatched(reply, before, longest)
            for reply, before in zip(replies, [replies[-1], *replies[:-1]], strict=True)
        ]
        return replies, mismatched, [float(verdict.desirable) for verdict in verdicts]

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        labels = {"kl": "KL"} | REWARD_FIGURES | {"accuracy": "verdicts right"} | LOGP_FIGURES
        over = {"chosen": 0, "rejected": 1}
        return {"kto": Scalar("KTO", curve=True, metric="loss")} | {
            name: Scalar(label, metric=name, over=over.get(name.partition("_")[0]))
            for name, label in labels.items()
        }

    def means(self, sums: Tensor, weights: Tensor) -> dict[str, float]:
        """The margin is between the means of the good and of the bad replies, as in TRL."""
        means = super().means(sums, weights)
        chosen, rejected = means.get("chosen_reward"), means.get("rejected_reward")
        if chosen is None or rejected is None:
            del means["margin"]
        else:
            means["margin"] = chosen - rejected
        return means

    @classmethod
    def of(cls, settings: KtoSettings, rows: Sequence[EncodedFeedback]) -> "Kto":
        desirable, undesirable = weights(settings, as_verdicts(rows))
        return cls(beta=settings.beta, desirable=desirable, undesirable=undesirable)

    def summary(self, data: RowSets) -> str:
        return (
            f"KTO over {data.examples:,} replies; a good one weighs {self.desirable:.3g}, a bad "
            f"one {self.undesirable:.3g}"
        )

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The number of good and of bad replies, and the sum of the log-ratios of the mismatched
        ones.
        """
        counts = torch.zeros(3, dtype=torch.float64)
        device = next(call.parameters()).device
        for batch in batches:
            here = {key: value.to(device) for key, value in batch.items()}
            good, bad = _kinds(side(here, 0))
            with torch.no_grad():
                ratios = self._log_ratios(call, model, side(here, 1))
            counts += torch.stack([good.sum(), bad.sum(), ratios.sum()]).to(counts)
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        n_good, n_bad, mismatched = counts.tolist()
        n = max(1.0, n_good + n_bad)
        kl = max(0.0, mismatched / n)
        rows = side(batch, 0)
        good, bad = _kinds(rows)

        def compute(hidden: Tensor) -> Tensor:
            replies = replies_of(_log_probs(hidden, model, rows), rows)
            ratios = replies.logps - replies.reference
            sign = good.float() - bad.float()
            weight = self.desirable * good.float() + self.undesirable * bad.float()
            # 1 - σ(x) as σ(-x), which is exact if it is small.
            loss = (weight * torch.sigmoid(-self.beta * sign * (ratios - kl))).sum() / n
            learnt = ratios.detach()
            shares = (good / max(1.0, n_good), bad / max(1.0, n_bad))
            rewards = [(self.beta * learnt * share).sum() for share in shares]
            logps = [(replies.logps.detach() * share).sum() for share in shares]
            right = ((learnt - kl) * sign > 0).sum() / n
            here = kl * (good.sum() + bad.sum()) / n
            return torch.stack([loss, here, right, rewards[0] - rewards[1], *rewards, *logps])

        return through_head(call, model, rows, compute)

    def _log_ratios(self, call: nn.Module, model: Any, rows: Tensors) -> Tensor:
        """For each reply of a side of a batch."""

        def compute(hidden: Tensor) -> Tensor:
            replies = replies_of(_log_probs(hidden, model, rows), rows)
            return replies.logps - replies.reference

        return through_head(call, model, rows, compute)

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(PairRows, data.train)
        good = _are_good(rows)
        lengths = reply_lengths(rows.examples)
        lines = [
            Text(self.summary(data)),
            Text(f"good: {int(good.sum()):,} of {len(good):,} replies ({good.mean():.1%})"),
            *(
                lengths_line(f"{name} replies", lengths[chosen])
                for name, chosen in (("good", good), ("bad", ~good))
                if chosen.any()
            ),
            cut_line(data),
        ]
        titles = [("good" if is_good else "bad", "mismatched, for the KL") for is_good in good]
        return {"Pairs": [*lines, *show_pairs(rows, titles, tokenizer, marked)]}

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        rows = cast(PairRows, data.train)
        return {
            "reply_tokens": lengths_document(reply_lengths(rows.examples)),
            "desirable": int(_are_good(rows).sum()),
        }


def _are_good(rows: PairRows) -> NDArray[np.bool_]:
    return np.array(rows.values) > 0.5


def _log_probs(hidden: Tensor, model: Any, rows: Tensors) -> Tensor:
    return token_log_probs(hidden, model.get_output_embeddings(), rows, rows["response_mask"])


def _kinds(rows: Tensors) -> tuple[Tensor, Tensor]:
    """Masks of the good and of the bad replies of a side of a batch; those without labels are in
    neither.
    """
    replies = replies_of(torch.zeros(rows["input_ids"].shape, device=rows["value"].device), rows)
    labelled = replies.tokens > 0
    return labelled & (replies.value > 0.5), labelled & (replies.value <= 0.5)


def _mismatched(prompt_of: Encoded, reply_of: Encoded, longest: int) -> Encoded:
    """The prompt of one sequence with the reply of another, at most `longest` tokens."""
    in_prompt = prompt_of.spans != Span.RESPONSE
    in_reply = reply_of.spans == Span.RESPONSE
    ids = np.concatenate([prompt_of.ids[in_prompt], reply_of.ids[in_reply]])[:longest]
    spans = np.concatenate([prompt_of.spans[in_prompt], reply_of.spans[in_reply]])[:longest]
    return Encoded(ids, spans, prompt_of.key)


def weights(settings: KtoSettings, verdicts: Sequence[EncodedVerdict]) -> tuple[float, float]:
    """λ_D and λ_U, computed from the counts unless they are set."""
    good = sum(verdict.desirable for verdict in verdicts)
    bad = len(verdicts) - good
    by_count = (max(1.0, bad / max(1, good)), max(1.0, good / max(1, bad)))
    set_to = (settings.desirable_weight, settings.undesirable_weight)
    desirable, undesirable = (
        count if value is None else value for count, value in zip(by_count, set_to, strict=True)
    )
    return desirable, undesirable
