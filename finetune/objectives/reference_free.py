"""Preference objectives without a reference: CPO, SimPO and ORPO.

Contrastive preference optimization (Xu et al., 2024, arXiv 2401.08417): DPO with a uniform
reference, and L1 of the chosen replies, which keeps them likely:

    -log σ(β·(log π(chosen) - log π(rejected))) + λ·L1

Simple preference optimization (Meng et al., 2024, arXiv 2405.14734, equation 6): the reward is the
mean log-probability of a reply's tokens, as in generation, and must differ by a margin γ:

    -log σ(β·(mean log π(chosen) - mean log π(rejected)) - γ)

A reply's reward is β times its log-probability, or the mean of its tokens'.

Odds-ratio preference optimization (Hong et al., 2024, arXiv 2403.07691, equations 6 and 7): with p
a reply's probability a token, exp of the mean of its log-probabilities, and odds = p / (1 - p),

    L1 - β·log σ(log(odds(chosen) / odds(rejected)))

As in TRL, its L1 is over the whole chosen sequence, the prompt included (`span` chooses otherwise),
and a reply's reward is β times its mean log-probability.

Invariant: what keeps a model from forgetting is L1, or in SimPO the margin alone.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from finetune.config.objectives import CpoSettings, OrpoSettings, SimpoSettings
from finetune.objectives.pair_objective import PairObjective, PairScores, Replies

# Of a mean log-probability: at 0 the odds would be infinite.
_HIGHEST = -1e-7


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


@dataclass(frozen=True, kw_only=True)
class Orpo(PairObjective):
    """beta: see above."""

    weight: float = 1.0
    beta: float = 0.1

    name = "orpo"
    title = "ORPO"

    @classmethod
    def of(cls, settings: OrpoSettings) -> "Orpo":
        return cls(span=settings.span, beta=settings.beta)

    def of_replies(self, chosen: Replies, rejected: Replies) -> PairScores:
        means = [
            (side.logps / side.tokens.clamp(min=1)).clamp(max=_HIGHEST)
            for side in (chosen, rejected)
        ]
        odds = [mean - (-mean.expm1()).log() for mean in means]
        losses = -self.beta * functional.logsigmoid(odds[0] - odds[1])
        return PairScores(
            loss=losses,
            chosen_reward=self.beta * means[0],
            rejected_reward=self.beta * means[1],
            counts=chosen.tokens > 0,
            chosen_logp=means[0],
            rejected_logp=means[1],
        )
