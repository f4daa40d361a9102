"""Odds-ratio preference optimization (Hong et al., 2024, arXiv 2403.07691, equations 6 and 7).

With p a reply's probability a token, exp of the mean of its log-probabilities, and
odds = p / (1 - p), the loss is L1 of the chosen sequences plus β times the mean over pairs of

    -log σ(log(odds(chosen) / odds(rejected)))

As in TRL, L1 is over the whole chosen sequence, its prompt included (`span` chooses otherwise), and
a reply's reward is β times its mean log-probability.

Invariant: there is no reference; what keeps the model from forgetting is L1.
"""

from dataclasses import dataclass

from torch.nn import functional

from finetune.config.objectives import OrpoSettings
from finetune.objectives.pair_objective import PairObjective, PairScores, Replies

# Of a mean log-probability: at 0 the odds would be infinite.
_HIGHEST = -1e-7


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
