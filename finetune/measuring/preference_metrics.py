"""What `finetune eval` says of a run that learnt from feedback, on held-out pairs or verdicts.

Keep: rewards are told against the reference of the run, the model it began with, whichever model
is measured.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.evaluation.metrics import wilson
from chatapp.models.resolving import find_model
from finetune.config.objectives import DpoSettings, KtoSettings, OrpoSettings, RewardSettings
from finetune.config.sections import FinetuneConfig
from finetune.data.batches import ByLength, collate, loader
from finetune.data.encoding import Encoded
from finetune.data.preferences import EncodedJudged, EncodedPair, as_verdicts
from finetune.objectives.dpo import Dpo
from finetune.objectives.kto import Kto, verdict_rows, weights
from finetune.objectives.objective import Objective
from finetune.objectives.orpo import Orpo
from finetune.objectives.pair_objective import PairObjective
from finetune.objectives.reference import give_reference
from finetune.objectives.reward import Reward
from finetune.objectives.rows import PairRows, RowMaker, preference_rows

BATCH = 8
Figures = tuple[dict[str, float], dict[str, tuple[float, float]]]
"""By name, and the 95 % intervals of those that have one."""


class Judge:
    """Measures models on feedback. start: special tokens before each sequence."""

    def __init__(self, config: FinetuneConfig, pad_id: int, start: list[int]) -> None:
        self.settings = config.objective
        self.reference = config.model
        self.collate = partial(collate, pad_id=pad_id)
        self.maker = RowMaker("response", pad_id, start, None)

    def rows_of(self, judged: Sequence[EncodedJudged], tell: Callable[[int], None]) -> PairRows:
        """Rows of pairs, or of verdicts where there are any, with the reference in them."""
        are_pairs = all(isinstance(each, EncodedPair) for each in judged)
        rows = (preference_rows if are_pairs else verdict_rows)(judged, self.maker)
        if isinstance(self.settings, DpoSettings | KtoSettings):
            model = load_causal(find_model(self.reference)).eval()
            give_reference(
                model, {"": rows}, self.collate, "float32", lambda done, total: tell(done)
            )
        return rows

    def figures(
        self,
        model: Any,
        judged: Sequence[EncodedJudged],
        rows: PairRows,
        tell: Callable[[int], None],
    ) -> Figures:
        """Of a model on the rows that `rows_of` made."""
        objective = self._objective(judged)
        if isinstance(objective, PairObjective):
            return _of_pairs(model, objective, rows, self.collate, tell)
        return _of_verdicts(model, objective, rows, self.collate, tell)

    def _objective(self, judged: Sequence[EncodedJudged]) -> Objective:
        settings = self.settings
        match settings:
            case KtoSettings() if not all(isinstance(each, EncodedPair) for each in judged):
                desirable, undesirable = weights(settings, as_verdicts(judged))
                return Kto(beta=settings.beta, desirable=desirable, undesirable=undesirable)
            case KtoSettings():
                return Dpo(beta=settings.beta)
            case DpoSettings():
                return Dpo.of(settings)
            case OrpoSettings():
                return Orpo(beta=settings.beta)
            case RewardSettings():
                return Reward(centring=settings.centring)
        raise AssertionError(f"{settings.kind} is no objective on feedback")


def preferred(judged: Sequence[EncodedJudged]) -> list[Encoded]:
    """Of each pair the chosen reply, and the replies that were found good."""
    return [
        each.chosen if isinstance(each, EncodedPair) else each.reply
        for each in judged
        if isinstance(each, EncodedPair) or each.desirable
    ]


def _of_pairs(
    model: Any, objective: PairObjective, rows: PairRows, collate: Any, tell: Callable[[int], None]
) -> Figures:
    """Means over pairs; the share of right ones with Wilson's interval, the margin with that of a
    normal mean."""
    found: dict[str, list[torch.Tensor]] = {}
    device = next(model.parameters()).device
    for number, batch in enumerate(loader(rows, ByLength(rows.lengths), BATCH, collate)):
        tell(number * BATCH)
        here = {key: value.to(device) for key, value in batch.items()}
        for name, values in objective.each(model, here).items():
            found.setdefault(name, []).append(values.cpu().double())
    each = {name: torch.cat(values) for name, values in found.items()}
    figures = {name: float(values.mean()) for name, values in each.items()}
    n = len(rows)
    margins = each["margin"]
    half = 1.96 * float(margins.std()) / math.sqrt(n) if n > 1 else math.inf
    intervals = {
        "accuracy": wilson(int(each["accuracy"].sum()), n),
        "margin": (figures["margin"] - half, figures["margin"] + half),
    }
    return figures, intervals


@torch.no_grad()
def _of_verdicts(
    model: Any, objective: Objective, rows: PairRows, collate: Any, tell: Callable[[int], None]
) -> Figures:
    device = next(model.parameters()).device
    batches = [
        {key: value.to(device) for key, value in batch.items()}
        for batch in loader(rows, ByLength(rows.lengths), BATCH, collate)
    ]
    counts = objective.count(batches, model, model)
    total = torch.zeros(len(objective.names), dtype=torch.float64)
    for number, batch in enumerate(batches):
        tell(number * BATCH)
        total += objective.losses(model, model, batch, counts, 0.0).cpu()
    means = dict(zip(objective.names, total.tolist(), strict=True))
    right = round(means["accuracy"] * len(rows))
    return objective.metrics(means, 0.0), {"accuracy": wilson(right, len(rows))}
