"""Preference objectives without a reference: CPO and SimPO.

Contrastive preference optimization (Xu et al., 2024, arXiv 2401.08417): DPO with a uniform
reference, and L1 of the chosen replies, which keeps them likely:

    -log σ(β·(log π(chosen) - log π(rejected))) + λ·L1

Simple preference optimization (Meng et al., 2024, arXiv 2405.14734, equation 6): the reward is the
mean log-probability of a reply's tokens, as in generation, and must differ by a margin γ:

    -log σ(β·(mean log π(chosen) - mean log π(rejected)) - γ)

A reply's reward is β times its log-probability, or the mean of its tokens'.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from finetune.config.objectives import CpoSettings, SimpoSettings
from finetune.objectives.pair_objective import PairObjective, PairScores, Replies


@dataclass(frozen=True, kw_only=True)
class Cpo(PairObjective):
    """beta, weight (λ): see above."""

    weight: float = 1.0
    beta: float = 0.1
    gamma: float = 0.0

    name = "cpo"
    title = "CPO"

    @classmethod
    def of(cls, settings: CpoSettings) -> "Cpo":
        return cls(weight=settings.aux_weight, beta=settings.beta)

    def log_probability(self, side: Replies) -> Tensor:
        """Of each reply, (pairs,)."""
        return side.logps

    def of_replies(self, chosen: Replies, rejected: Replies) -> PairScores:
        logps = [self.log_probability(side) for side in (chosen, rejected)]
        return PairScores(
            loss=-functional.logsigmoid(self.beta * (logps[0] - logps[1]) - self.gamma),
            chosen_reward=self.beta * logps[0],
            rejected_reward=self.beta * logps[1],
            counts=chosen.tokens > 0,
            chosen_logp=logps[0],
            rejected_logp=logps[1],
        )


@dataclass(frozen=True, kw_only=True)
class Simpo(Cpo):
    """beta, gamma: see above."""

    weight: float = 0.0
    beta: float = 2.0
    gamma: float = 1.0

    name = "simpo"
    title = "SimPO"

    @classmethod
    def of(cls, settings: SimpoSettings) -> "Simpo":  # type: ignore[override]
        return cls(beta=settings.beta, gamma=settings.gamma)

    def log_probability(self, side: Replies) -> Tensor:
        return side.logps / side.tokens.clamp(min=1)
