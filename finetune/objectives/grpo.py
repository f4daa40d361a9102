"""Group relative policy optimization (Shao et al., 2024, arXiv 2402.03300, equations 3 and 4), with
the token-level loss of DAPO (Yu et al., 2025, arXiv 2503.14476, section 3.3).

To each prompt a group of replies is drawn from the model as it is. With R a reply's reward, its
advantage is A = (R - mean(R)) / (std(R) + 1e-4) over its group, std with n - 1 (without
`scale_rewards` the difference alone, Liu et al., 2025, arXiv 2503.20783). With

    r = π(token) / π_old(token),  π_old the model that drew the reply;  q = ref(token) / π(token)

the loss is the mean, over all tokens of all replies of the step, of

    -min(r·A, clip(r, 1 - ε, 1 + ε_high)·A) + β·r·(q - log q - 1)

The last factor estimates the KL divergence from the reference (Schulman, 2020); r beside it makes
it one of π and not of π_old, as in TRL (`use_bias_correction_kl`). Probabilities are at the
temperature that replies are drawn with. Defaults and all this are TRL's (`loss_type` dapo), but
that dropout is off. A reply's end token is a token of it; one that was cut at its longest has none.

Keep: a reply's advantage comes from its own group, and a token's weight is one through the tokens
of the whole optimizer step, so the loss is the same however the step is cut, padded or packed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from chatapp.engine.backends.head import in_place_of
from chatapp.engine.model import PieceTokenizer
from chatapp.prompting.chat_template import Template
from finetune.config.objectives import GrpoSettings
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Tensors, collate
from finetune.data.encoding import Encoded
from finetune.data.packing import Rows
from finetune.data.preparation import RowKind, encode_rows, length_of
from finetune.data.prompts import PROMPT_FIELDS, Asked, PromptEncoder, detect_prompt
from finetune.objectives.log_probs import reply_sums, token_log_probs
from finetune.objectives.objective import RowSets, model_inputs
from finetune.objectives.rewards import Rewards

_SMALLEST_DEVIATION = 1e-4


class PromptRows(Dataset[Tensors]):
    """Prompts as rows, each key (T,), and `row`, the number of the row: which prompt it is.

    The response mask says that replies are to be drawn. start: tokens before each sequence.
    """

    def __init__(self, asked: Sequence[Asked], start: Sequence[int]) -> None:
        self.asked = asked
        self.start = list(start)
        self.lengths = [len(self.start) + len(each.ids) for each in asked]

    def __len__(self) -> int:
        return len(self.asked)

    def __getitem__(self, index: int) -> Tensors:
        ids = torch.tensor([*self.start, *self.asked[index].ids])
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "example_ids": torch.ones_like(ids),
            "response_mask": torch.ones_like(ids, dtype=torch.bool),
            "aux_mask": torch.zeros_like(ids, dtype=torch.bool),
            "row": torch.tensor(index),
        }


SAID = ("advantage", "reward", "no_signal")
"""What is said of each drawn reply; no_signal is 1 where its whole group has one reward."""


class ReplyRows(Dataset[Tensors]):
    """Drawn replies behind their prompts: rows as those of `Rows`, and on all tokens of a reply
    what is said of it, under the keys of `SAID` (float)."""

    def __init__(
        self,
        examples: Sequence[Encoded],
        said: Tensor,
        bins: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """said: (keys of SAID, replies). bins: see `pack`."""
        self.rows = Rows(examples, "response", bins)
        self.lengths = self.rows.lengths
        self._said = said

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensors:
        row = self.rows[index]
        of_row = self._said[:, self.rows.bins[index]]
        # Column 0 is padding.
        on_tokens = functional.pad(of_row, (1, 0))[:, row["example_ids"]]
        return row | dict(zip(SAID, on_tokens, strict=True))


def advantages(rewards: Tensor, scaled: bool) -> Tensor:
    """Of replies in their groups, (groups, replies) -> the same shape."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True) + _SMALLEST_DEVIATION) if scaled else centred


def with_signal(batch: Tensors) -> Tensors:
    """The sequences of a batch that have an advantage; the first, if none has, so that there is a
    loss. Without a KL the others' gradient is 0, and on easy and on hard prompts they are most."""
    has_signal = (batch["advantage"] != 0).any(1)
    has_signal[0] |= ~has_signal.any()
    return {key: value[has_signal] for key, value in batch.items()}


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """See above. config: its table of the configuration.

    A batch is of `ReplyRows`, with two keys more where they are needed: `old` and `reference`,
    log-probabilities of the tokens by π_old and by the reference. Without `old` the model has not
    moved since.
    """

    config: GrpoSettings
    rewards: Rewards

    added = ""
    replies = True
    dropout = False
    needs_reference = False

    @property
    def names(self) -> tuple[str, ...]:
        return ("grpo", *self._told)

    @property
    def figures(self) -> Mapping[str, str]:
        return {"grpo": "GRPO", **self._told, "eval_reward": "held-out reward"}

    @property
    def curves(self) -> tuple[str, ...]:
        return ("reward", "no_signal", *(["kl"] if self.config.beta else []), "eval_reward")

    @property
    def _told(self) -> dict[str, str]:
        """The figures of a step's replies, by their keys in the log."""
        told = {"reward": "reward", "no_signal": "no signal", "length": "tokens a reply"}
        if self.config.beta:
            told["kl"] = "KL"
        if self.config.iterations > 1:
            told["clipped"] = "clipped"
        return told

    def extend(self, model: Any, seed: int) -> None: ...
    def save(self, model: Any, folder: Path) -> None: ...
    def load(self, model: Any, folder: Path) -> None: ...

    def settings(self, done: float) -> dict[str, float]:
        return {}

    def summary(self, data: RowSets) -> str:
        """What is minimised, and over how much."""
        text = (
            f"GRPO: {self.config.replies} replies of at most {self.config.max_tokens:,} tokens to "
            f"each of {data.examples:,} prompts, rewards by {', '.join(self.rewards.names)}"
        )
        if self.rewards.functions:
            text += f"; {', '.join(self.rewards.functions)}: code of your own, which runs"
        return text

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """Tokens of replies, and replies."""
        counts = torch.zeros(2, dtype=torch.float64)
        for batch in batches:
            tokens = reply_sums(batch["response_mask"], batch)
            counts += torch.stack([tokens.sum(), (tokens > 0).sum()]).to(counts)
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        n_tokens, n_replies = map(float, counts.clamp(min=1))
        learnt = batch if self.config.beta else with_signal(batch)

        def mean(key: str) -> Tensor:
            mask = batch["response_mask"]
            sums = reply_sums(batch[key] * mask, batch)
            return (sums / reply_sums(mask, batch).clamp(min=1)).sum() / n_replies

        def compute(hidden: Tensor) -> Tensor:
            mask = learnt["response_mask"]
            logps = self.log_probs(hidden, model, learnt)
            ratios = (logps - learnt.get("old", logps.detach())).exp()
            loss, kl, clipped = self._of_tokens(logps, ratios, learnt)
            told = {
                "reward": mean("reward"),
                "no_signal": mean("no_signal"),
                "length": batch["response_mask"].sum() / n_replies,
                "kl": (kl.detach() * mask).sum() / n_tokens,
                "clipped": (clipped * mask).sum() / n_tokens,
            }
            return torch.stack([(loss * mask).sum() / n_tokens, *(told[n] for n in self._told)])

        with in_place_of(model.get_output_embeddings(), compute):
            losses: Tensor = call(**model_inputs(learnt)).logits
        return losses

    def _of_tokens(
        self, logps: Tensor, ratios: Tensor, batch: Tensors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token, (sequences, tokens): the loss, the KL, and whether its ratio is cut."""
        config, advantage = self.config, batch["advantage"]
        high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        plain = ratios * advantage
        cut = ratios.clamp(1 - config.epsilon, 1 + high) * advantage
        loss, kl = -torch.minimum(plain, cut), torch.zeros_like(logps)
        if config.beta:
            gap = batch["reference"] - logps
            kl = ratios * (gap.exp() - gap - 1)
            loss = loss + config.beta * kl
        return loss, kl, (cut < plain).float()

    def log_probs(self, hidden: Tensor, model: Any, batch: Tensors) -> Tensor:
        """log π of the tokens of the replies, (sequences, tokens), 0 for other tokens."""
        head = model.get_output_embeddings()
        return token_log_probs(hidden, head, batch, batch["response_mask"], self.config.temperature)

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """The mean reward and length of greedy replies; loss, by which the best is chosen, is minus
        the reward."""
        return {
            "loss": -means["reward"],
            "reward": means["reward"],
            "length": means["length"],
        }


def make_grpo(
    config: FinetuneConfig,
    settings: GrpoSettings,
    template: Template,
    tokenizer: PieceTokenizer,
    window: int,
    start: list[int],
) -> tuple[Grpo, RowSets]:
    """The objective and its prompts; see `read_chat_rows`. Raises ConfigError and ModelError."""
    data = config.data
    if settings.max_tokens >= window:
        raise ConfigError(
            f"objective.max_tokens is {settings.max_tokens:,}; the model's window has {window:,} "
            "tokens, prompt and reply together"
        )
    rewards = Rewards(settings.rewards)
    encoder = PromptEncoder(template, tokenizer, length_of(data, window), data.too_long, start)
    kind = RowKind(PROMPT_FIELDS, detect_prompt, encoder, phrased=True)
    prepared = encode_rows(data, kind, config.seed)
    for asked in (prepared.train, *prepared.held_out.values()):
        rewards.check_references(asked)
    return Grpo(config=settings, rewards=rewards), RowSets(
        train=PromptRows(prepared.train, start),
        held_out={name: PromptRows(asked, start) for name, asked in prepared.held_out.items()},
        collate=partial(collate, pad_id=tokenizer.end_id),
        examples=len(prepared.train),
        dropped=prepared.report.dropped,
        hashes=prepared.report.hashes,
        response_labels=0,
        aux_labels=0,
        report=prepared.report,
    )
