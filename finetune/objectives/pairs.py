"""Objectives on pairs of replies, DPO; CPO, SimPO and ORPO, which need no reference; and reward
models.

A pair's loss depends on the values of the two replies, and the step's loss is the mean over its
pairs, plus an optional supervised term: weight · L1, the mean negative log-likelihood of tokens of
the chosen sequences.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn
from torch.nn import functional

from chatapp.engine.backends.head import HEAD_FILE, REWARD, HeadSpec
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.models.resolving import find_model
from chatapp.tasks.metrics import wilson
from finetune.config.objectives import SupervisedSpan
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Tensors, aux_labels, collate, response_labels
from finetune.data.preferences import PREFERENCES, EncodedFeedback, EncodedPair
from finetune.objectives.heads import WithHead
from finetune.objectives.log_probs import reply_sums, side, token_log_probs
from finetune.objectives.objective import (
    Evaluator,
    Figures,
    ModelText,
    Objective,
    RowPrompt,
    RowSets,
    Scalar,
    Tell,
    objective_class,
    row_questions,
    through_head,
)
from finetune.objectives.rows import (
    PACKED_LENGTH,
    PairRows,
    Sides,
    batches_on,
    count_alike,
    cut_line,
    encode_run_rows,
    give_reference,
    lengths_document,
    lengths_line,
    pair_rows,
    reply_lengths,
    show_pairs,
)

REWARD_FIGURES = {
    "accuracy": "pairs right",
    "margin": "margin",
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
}
LOGP_FIGURES = {"chosen_logp": "log p chosen", "rejected_logp": "log p rejected"}


class SideReplies(NamedTuple):
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

    rewards, logps: of the chosen and of the rejected replies; of a reward model there are no logps.
    counts: False for a pair without labels, which fills a batch.
    """

    loss: Tensor
    rewards: Sequence[Tensor]
    counts: Tensor
    logps: Sequence[Tensor] = ()

    def figures(self) -> dict[str, Tensor]:
        """The figures of each pair, by name."""
        chosen, rejected = (reward.detach() for reward in self.rewards)
        margin = chosen - rejected
        figures = [(margin > 0).float(), margin, chosen, rejected]
        figures += [logp.detach() for logp in self.logps]
        return dict(zip((*REWARD_FIGURES, *LOGP_FIGURES), figures, strict=False))


def replies_of(logps: Tensor, batch: Tensors) -> SideReplies:
    """The replies of a batch whose tokens have these log-probabilities, (sequences, tokens)."""
    labels = batch["response_mask"]
    tokens = reply_sums(labels, batch)
    return SideReplies(
        reply_sums(logps * labels, batch),
        reply_sums(batch["reference"] * labels, batch),
        tokens,
        reply_sums(batch["value"] * labels, batch) / tokens.clamp(min=1),
    )


@dataclass(frozen=True)
class FeedbackEvaluator(Evaluator):
    """Evaluates a model on feedback; rewards are relative to the reference of the run, its initial
    model, whichever model is evaluated.
    """

    def read_rows(self) -> tuple[list[EncodedFeedback], dict[str, list[EncodedFeedback]]]:
        kind = cast(type[FeedbackObjective], objective_class(self.config))
        sets = encode_run_rows(self.config, self.text, kind.row_kind)
        return sets.train, sets.held_out

    def questions(self, rows: Sequence[EncodedFeedback]) -> Iterator[RowPrompt]:
        """The prompts of the better replies, and of the good ones."""
        liked = [row.liked for row in rows if row.liked is not None]
        return row_questions(liked, self.text.tokenizer, self.text.window)

    def pair_rows(
        self, objective: "FeedbackObjective", rows: Sequence[EncodedFeedback], tell: Tell
    ) -> PairRows:
        """Examples as rows of one pair each, with the reference in them if it is needed."""
        made = pair_rows(rows, self.config, self.text, "response", objective.sides)
        if objective.needs_reference:
            reference = load_causal(find_model(self.config.model)).eval()
            pad = partial(collate, pad_id=self.text.tokenizer.end_id)

            def progress(done: int, total: int) -> None:
                tell("the reference", done)

            give_reference(reference, {"": made}, pad, "float32", progress)
        return made


@dataclass(frozen=True)
class PairEvaluator(FeedbackEvaluator):
    """Evaluates a model on pairs by an objective, by default that of the run."""

    ranking: "PairObjective | None" = None

    @cached_property
    def objective(self) -> "PairObjective":
        """What the pairs are measured by."""
        kind = cast(type[PairObjective], objective_class(self.config))
        return self.ranking or kind.of(self.config.objective, ())

    def __post_init__(self) -> None:
        if self.objective.added and not (self.text.files.path / HEAD_FILE).is_file():
            raise ConfigError(
                f"{self.text.name} has no head that scores replies; compare reward models"
            )

    def extend(self, model: Any) -> None:
        self.objective.extend(model, seed=0)
        self.objective.load(model, self.text.files.path)

    def questions(self, rows: Sequence[EncodedFeedback]) -> Iterator[RowPrompt]:
        return super().questions(rows) if self.objective.replies else iter(())

    def measure(self, model: Any, rows: Sequence[EncodedFeedback], tell: Tell) -> Figures:
        """Means over pairs; the fraction of correct ones with Wilson's interval, the margin with
        that of a normal mean.
        """
        made = self.pair_rows(self.objective, rows, tell)
        collected: dict[str, list[Tensor]] = {}
        for batch in batches_on(model, made, self.text.tokenizer.end_id, "pairs", tell):
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


class FeedbackObjective(Objective):
    """An objective on pairs of sequences made of feedback. span: the tokens of L1 in the first
    sequences.
    """

    span: SupervisedSpan = "response"
    row_kind = PREFERENCES

    @staticmethod
    def sides(rows: Sequence[EncodedFeedback], longest: int) -> Sides:
        """The rows as pairs: of preferences chosen, rejected, and the margin.

        longest: the most tokens of a sequence that is made here.
        """
        pairs = cast(Sequence[EncodedPair], rows)
        first, second = [pair.chosen for pair in pairs], [pair.rejected for pair in pairs]
        return first, second, [pair.margin for pair in pairs]

    @classmethod
    @abstractmethod
    def of(cls, settings: Any, rows: Sequence[EncodedFeedback]) -> Self:
        """The objective for a table of the configuration, and its training rows."""

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        data, prepared = config.data, encode_run_rows(config, text, cls.row_kind)
        objective = cls.of(config.objective, prepared.train)
        span = objective.span
        packed = (data.max_length or PACKED_LENGTH, config.seed) if data.packing else None
        train = pair_rows(prepared.train, config, text, span, cls.sides, packed)
        replies = [*train.first.examples, *train.second.examples]
        return objective, RowSets(
            train=train,
            held_out={
                name: pair_rows(rows, config, text, span, cls.sides)
                for name, rows in prepared.held_out.items()
            },
            collate=partial(collate, pad_id=text.tokenizer.end_id),
            examples=len(train.examples),
            hashes=prepared.report.hashes,
            response_labels=sum(int(response_labels(reply).sum()) for reply in replies),
            aux_labels=sum(int(aux_labels(example, span).sum()) for example in train.examples),
            report=prepared.report,
        )


_FIELDS = {"aux_weight": "weight", "aux_span": "span", "label_smoothing": "smoothing"}
"""The fields of `PairObjective` whose keys in the configuration have other names."""


@dataclass(frozen=True, kw_only=True)
class PairObjective(FeedbackObjective):
    """Losses of pairs, and weight · L1. Each kind computes the results of pairs, in `of_replies`;
    its fields are the keys of its table.

    weight, span: of the supervised term, and its tokens in the chosen sequences. name: of the loss
    in the log; title: in words.
    """

    weight: float = 0.0
    span: SupervisedSpan = "response"
    evaluator = PairEvaluator
    name = "pairs"
    title = "pairs"
    logp_figures: ClassVar[Mapping[str, str]] = LOGP_FIGURES

    @classmethod
    def of(cls, settings: Any, rows: Sequence[EncodedFeedback]) -> Self:
        keys = settings.model_dump(exclude={"kind"})
        return cls(**{_FIELDS.get(key, key): value for key, value in keys.items()})

    def of_replies(self, chosen: SideReplies, rejected: SideReplies) -> PairScores:
        """The results of pairs from the log-probabilities of their replies."""
        raise NotImplementedError

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        figures = REWARD_FIGURES | dict(self.logp_figures)
        return {
            self.name: Scalar(self.title, curve=True, metric="loss"),
            "pair_loss": Scalar("pairs" if self.weight else ""),
            "l1": Scalar("L1", metric="l1") if self.weight else Scalar(),
            **{key: Scalar(label, metric=key) for key, label in figures.items()},
        }

    def summary(self, data: RowSets) -> str:
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

        return through_head(call, model, batch, compute)

    @torch.no_grad()
    def pair_figures(self, model: Any, batch: Tensors) -> dict[str, Tensor]:
        """The loss and the figures of each pair of a batch, each (pairs,)."""
        figures: dict[str, Tensor] = {}

        def compute(hidden: Tensor) -> Tensor:
            logps = self._log_probs(hidden, model, batch)
            score_pairs = self.score_pairs(hidden, logps, model, batch)
            figures.update({"loss": score_pairs.loss, **score_pairs.figures()})
            return hidden

        through_head(model, model, batch, compute)
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
            lengths_line("chosen replies", reply_lengths(rows.examples)),
            lengths_line("rejected replies", reply_lengths(rows.second.examples)),
            Text(
                f"alike, nine tokens in ten the same: {count_alike(rows):,} of "
                f"{len(rows.examples):,} pairs"
            ),
            cut_line(data),
        ]
        return {"Pairs": [*lines, *show_pairs(rows, titles, tokenizer, marked)]}

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        rows = cast(PairRows, data.train)
        return {
            "chosen_tokens": lengths_document(reply_lengths(rows.examples)),
            "rejected_tokens": lengths_document(reply_lengths(rows.second.examples)),
            "alike": count_alike(rows),
        }


@dataclass(frozen=True, kw_only=True)
class Dpo(PairObjective):
    """Direct preference optimization (Rafailov et al., 2023, arXiv 2305.18290, equation 7).

    With Δ = log π(chosen)/ref(chosen) - log π(rejected)/ref(rejected), the loss of a pair is

        sigmoid  -log σ(β·Δ)
                 with label smoothing ε, the share of preferences taken to be wrong, the unbiased
                 (-(1 - ε)·log σ(β·Δ) + ε·log σ(-β·Δ)) / (1 - 2ε)  (Chowdhury et al., 2024, arXiv
                 2403.00409, equation 12; TRL's `robust`)
        hinge    max(0, 1 - β·Δ)                                (Liu et al., 2023, arXiv 2309.06657)
        ipo      (δ - 1/(2τ))², δ as Δ but of means over the tokens of each reply, τ = β (Azar et
                 al., 2023, arXiv 2310.12036, equation 17; the means are TRL's, by its authors)

    A reply's reward is β times its log-ratio. Beside it stands λ·L1 of the chosen replies (Pang et
    al., 2024, arXiv 2404.19733, without their lengths): DPO alone lets the probability of both fall
    as long as that of the rejected falls more. The reference is the initial model of the run, and
    dropout is off, so the ratio is exact.

    smoothing: ε.
    """

    loss: Literal["sigmoid", "ipo", "hinge"] = "sigmoid"
    beta: float = 0.1
    smoothing: float = 0.0

    name = "dpo"
    title = "DPO"
    needs_reference = True

    def of_replies(self, chosen: SideReplies, rejected: SideReplies) -> PairScores:
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
        rewards = [self.beta * ratio for ratio in ratios]
        return PairScores(losses, rewards, chosen.tokens > 0, [chosen.logps, rejected.logps])

    def _sigmoid(self, margin: Tensor) -> Tensor:
        right = -functional.logsigmoid(margin)
        if not self.smoothing:
            return right
        wrong = -functional.logsigmoid(-margin)
        return ((1 - self.smoothing) * right - self.smoothing * wrong) / (1 - 2 * self.smoothing)


# Of a mean log-probability: at 0 the odds would be infinite.
_HIGHEST = -1e-7


@dataclass(frozen=True, kw_only=True)
class Cpo(PairObjective):
    """Contrastive preference optimization (Xu et al., 2024, arXiv 2401.08417): DPO with a uniform
    reference, and L1 of the chosen replies, which keeps them likely:

        -log σ(β·(log π(chosen) - log π(rejected))) + λ·L1

    A reply's reward is β times its log-probability. weight: λ.
    """

    weight: float = 1.0
    beta: float = 0.1
    gamma: float = 0.0

    name = "cpo"
    title = "CPO"

    def log_probability(self, side: SideReplies) -> Tensor:
        """The log-probability of each reply, (pairs,)."""
        return side.logps

    def of_replies(self, chosen: SideReplies, rejected: SideReplies) -> PairScores:
        logps = [self.log_probability(side) for side in (chosen, rejected)]
        losses = -functional.logsigmoid(self.beta * (logps[0] - logps[1]) - self.gamma)
        rewards = [self.beta * logp for logp in logps]
        return PairScores(losses, rewards, chosen.tokens > 0, logps)


@dataclass(frozen=True, kw_only=True)
class Simpo(Cpo):
    """Simple preference optimization (Meng et al., 2024, arXiv 2405.14734, equation 6): the reward
    is the mean log-probability of a reply's tokens, as in generation, and must differ by a margin
    γ:

        -log σ(β·(mean log π(chosen) - mean log π(rejected)) - γ)
    """

    weight: float = 0.0
    beta: float = 2.0
    gamma: float = 1.0

    name = "simpo"
    title = "SimPO"

    def log_probability(self, side: SideReplies) -> Tensor:
        return side.logps / side.tokens.clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Orpo(PairObjective):
    """Odds-ratio preference optimization (Hong et al., 2024, arXiv 2403.07691, equations 6 and 7):
    with p a reply's probability a token, exp of the mean of its log-probabilities, and odds =
    p / (1 - p),

        L1 - β·log σ(log(odds(chosen) / odds(rejected)))

    As in TRL, its L1 is over the whole chosen sequence, the prompt included (`span` chooses
    otherwise), and a reply's reward is β times its mean log-probability.
    """

    weight: float = 1.0
    beta: float = 0.1

    name = "orpo"
    title = "ORPO"

    def of_replies(self, chosen: SideReplies, rejected: SideReplies) -> PairScores:
        means = [
            (side.logps / side.tokens.clamp(min=1)).clamp(max=_HIGHEST)
            for side in (chosen, rejected)
        ]
        odds = [mean - (-mean.expm1()).log() for mean in means]
        losses = -self.beta * functional.logsigmoid(odds[0] - odds[1])
        rewards = [self.beta * mean for mean in means]
        return PairScores(losses, rewards, chosen.tokens > 0, means)


REWARD_SPEC = HeadSpec(REWARD, (), "")


@dataclass(frozen=True, kw_only=True)
class Reward(WithHead, PairObjective):
    """A linear head that scores a whole reply (Ouyang et al., 2022, arXiv 2203.02155).

    With r the head's score of the last token's state and m the row's margin (Touvron et al., 2023,
    arXiv 2307.09288, equation 2), a pair's loss is that of Bradley and Terry (1952),

        -log σ(r(chosen) - r(rejected) - m) + c·(r(chosen) + r(rejected))²

    The second term centres scores around 0, which the first leaves free (Eisenstein et al., 2023,
    arXiv 2312.09244, equation 2). A reply is scored after its prompt, closed as the template closes
    it, at its last token; the engine's `RewardModel` reads it there too. centring: c.
    """

    centring: float = 0.0

    name = "reward"
    title = "Bradley-Terry"
    spec = REWARD_SPEC
    logp_figures: ClassVar[Mapping[str, str]] = {}

    def score_pairs(self, hidden: Tensor, logps: Tensor, model: Any, batch: Tensors) -> PairScores:
        scores = model.task_head(hidden.float())[..., 0].float() * _last_tokens(batch)
        chosen, rejected = (
            reply_sums(values, side(batch, number))
            for number, values in enumerate((scores[0::2], scores[1::2]))
        )
        replies = replies_of(logps[0::2], side(batch, 0))
        losses = -functional.logsigmoid(chosen - rejected - replies.value)
        losses = losses + self.centring * (chosen + rejected) ** 2
        return PairScores(losses, (chosen, rejected), replies.tokens > 0)

    def _log_probs(self, hidden: Tensor, model: Any, batch: Tensors) -> Tensor:
        return torch.zeros(batch["input_ids"].shape, device=hidden.device)


def _last_tokens(batch: Tensors) -> Tensor:
    """The tokens that end an example, (sequences, tokens) bool."""
    ids = batch["example_ids"]
    return (ids > 0) & (ids != functional.pad(ids, (0, 1))[:, 1:])
