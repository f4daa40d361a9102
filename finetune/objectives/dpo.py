"""Direct preference optimization (Rafailov et al., 2023, arXiv 2305.18290, equation 7).

With Δ = log π(chosen)/ref(chosen) - log π(rejected)/ref(rejected), the loss of a pair is

    sigmoid  -log σ(β·Δ)
             with label smoothing ε, the share of preferences taken to be wrong, the unbiased
             (-(1 - ε)·log σ(β·Δ) + ε·log σ(-β·Δ)) / (1 - 2ε)  (Chowdhury et al., 2024, arXiv
             2403.00409, equation 12; TRL's `robust`)
    hinge    max(0, 1 - β·Δ)                                   (Liu et al., 2023, arXiv 2309.06657)
    ipo      (δ - 1/(2τ))², δ as Δ but of means over the tokens of each reply, τ = β
             (Azar et al., 2023, arXiv 2310.12036, equation 17; the means are TRL's, by its authors)

A reply's reward is β times its log-ratio. Beside it stands λ·L1, the negative log-likelihood of
the chosen replies (Pang et al., 2024, arXiv 2404.19733, without their lengths): DPO alone lets the
probability of both replies fall as long as that of the rejected falls more.

Invariant: the reference is the initial model of the run, and dropout is off, so the ratio is exact.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional

from finetune.config.objectives import DpoSettings
from finetune.objectives.pair_objective import PairObjective, PairScores, Replies


@dataclass(frozen=True, kw_only=True)
class Dpo(PairObjective):
    """loss, beta, smoothing: see above."""

    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    beta: float = 0.1
    smoothing: float = 0.0

    name = "dpo"
    title = "DPO"
    needs_reference = True

    @classmethod
    def of(cls, settings: DpoSettings) -> "Dpo":
        return cls(
            weight=settings.aux_weight,
            span=settings.aux_span,
            loss=settings.loss,
            beta=settings.beta,
            smoothing=settings.label_smoothing,
        )

    def of_replies(self, chosen: Replies, rejected: Replies) -> PairScores:
        ratios = [side.logps - side.reference for side in (chosen, rejected)]
        if self.loss == "ipo":
            means = [
                ratio / side.tokens.clamp(min=1)
                for ratio, side in zip(ratios, (chosen, rejected), strict=True)
            ]
            losses = (means[0] - means[1] - 1 / (2 * self.beta)) ** 2
        elif self.loss == "hinge":
            losses = (1 - self.beta * (ratios[0] - ratios[1])).relu()
        else:
            losses = self._sigmoid(self.beta * (ratios[0] - ratios[1]))
        return PairScores(
            loss=losses,
            chosen_reward=self.beta * ratios[0],
            rejected_reward=self.beta * ratios[1],
            counts=chosen.tokens > 0,
            chosen_logp=chosen.logps,
            rejected_logp=rejected.logps,
        )

    def _sigmoid(self, margin: Tensor) -> Tensor:
        right = -functional.logsigmoid(margin)
        if not self.smoothing:
            return right
        wrong = -functional.logsigmoid(-margin)
        return ((1 - self.smoothing) * right - self.smoothing * wrong) / (1 - 2 * self.smoothing)
