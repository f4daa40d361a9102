"""Group relative policy optimization (Shao et al., 2024, arXiv 2402.03300, equations 3 and 4), with
the token-level loss of DAPO (Yu et al., 2025, arXiv 2503.14476, section 3.3).

For each prompt a group of replies is drawn from the current model. With R a reply's reward, its
advantage is A = (R - mean(R)) / (std(R) + 1e-4) over its group, std with n - 1 (without
`scale_rewards` the difference alone, Liu et al., 2025, arXiv 2503.20783). With

    r = π(token) / π_old(token),  π_old the model that drew the reply;  q = ref(token) / π(token)

the loss is the mean, over all tokens of all replies of the step, of

    -min(r·A, clip(r, 1 - ε, 1 + ε_high)·A) + β·r·(q - log q - 1)

The last factor estimates the KL divergence from the reference (Schulman, 2020); r beside it makes
it one of π and not of π_old, as in TRL (`use_bias_correction_kl`). Probabilities are at the
temperature that replies are drawn with. Defaults and all this are TRL's (`loss_type` dapo), but
that dropout is off. A reply's end token is a token of it; one that was cut at its longest has none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils.data import Dataset

from chatapp.common.foreign import printable
from chatapp.engine.model import PieceTokenizer, Tokenizer
from finetune.config.objectives import GrpoSettings, Metric
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Tensors, TrainingRows, collate
from finetune.data.prompts import PROMPTS, EncodedPrompt
from finetune.objectives.l3 import ChatEvaluator
from finetune.objectives.log_probs import reply_sums, token_log_probs
from finetune.objectives.objective import (
    ModelText,
    Objective,
    RowPrompt,
    RowSets,
    Scalar,
    through_head,
)
from finetune.objectives.rewards import DrawnReply, Rewards
from finetune.objectives.rows import encode_run_rows, lengths_document, short_middling_long

_SMALLEST_DEVIATION = 1e-4


class PromptRows(Dataset[Tensors]):
    """Prompts as rows, each key (T,), and `row`, the number of the row, to identify the prompt.

    The response mask marks rows whose replies are to be drawn. start: tokens before each sequence.
    """

    def __init__(self, prompts: Sequence[EncodedPrompt], start: Sequence[int]) -> None:
        self.prompts = prompts
        self.start = list(start)
        self.lengths = [len(self.start) + len(prompt.ids) for prompt in prompts]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Tensors:
        ids = torch.tensor([*self.start, *self.prompts[index].ids])
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "example_ids": torch.ones_like(ids),
            "response_mask": torch.ones_like(ids, dtype=torch.bool),
            "aux_mask": torch.zeros_like(ids, dtype=torch.bool),
            "row": torch.tensor(index),
        }


REPLY_FIGURES = ("advantage", "reward", "no_signal")
"""The figures of each drawn reply; no_signal is 1 if all rewards of its group are equal."""


def advantages(rewards: Tensor, scaled: bool) -> Tensor:
    """The advantages of replies in their groups, (groups, replies) -> the same shape."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, keepdim=True) + _SMALLEST_DEVIATION) if scaled else centred


def with_signal(batch: Tensors) -> Tensors:
    """The sequences of a batch that have an advantage; the first, if none has, so that there is a
    loss. Without a KL the gradient of the others is 0, and on easy and on hard prompts they are the
    majority.
    """
    has_signal = (batch["advantage"] != 0).any(1)
    has_signal[0] |= ~has_signal.any()
    return {key: value[has_signal] for key, value in batch.items()}


@dataclass(frozen=True, kw_only=True)
class Grpo(Objective):
    """See above. config: its table of the configuration.

    A batch is of drawn replies after their prompts, with `REPLY_FIGURES` on all tokens of each, and
    two more keys if needed: `old` and `reference`,
    log-probabilities of the tokens by π_old and by the reference. Without `old` the model has not
    changed since.
    """

    config: GrpoSettings
    rewards: Rewards

    evaluator = ChatEvaluator
    draws_replies = True

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        settings, start = cast(GrpoSettings, config.objective), text.start
        if settings.max_tokens >= text.window:
            raise ConfigError(
                f"objective.max_tokens is {settings.max_tokens:,}; the model's window has "
                f"{text.window:,} tokens, prompt and reply together"
            )
        rewards = Rewards(settings.rewards)
        prepared = encode_run_rows(config, text, PROMPTS)
        for prompts in (prepared.train, *prepared.held_out.values()):
            rewards.check_references(prompts)
        return cls(config=settings, rewards=rewards), RowSets(
            train=PromptRows(prepared.train, start),
            held_out={
                name: PromptRows(prompts, start) for name, prompts in prepared.held_out.items()
            },
            collate=partial(collate, pad_id=text.tokenizer.end_id),
            examples=len(prepared.train),
            hashes=prepared.report.hashes,
            response_labels=0,
            aux_labels=0,
            report=prepared.report,
        )

    def questions(
        self, rows: TrainingRows, tokenizer: Tokenizer, context: int, skip: int = 0
    ) -> Iterator[RowPrompt]:
        prompts = cast(PromptRows, rows).prompts
        return (RowPrompt(prompt.ids, prompt.text, prompt.reference, prompt) for prompt in prompts)

    def reward(self, question: RowPrompt, reply: str, tokenizer: Tokenizer) -> float | None:
        if question.prompt is None:  # a prompt of the configuration, which has no row
            return None
        return self.rewards.of(question.prompt, _as_drawn(reply, tokenizer, ends=False))

    def close(self) -> None:
        self.rewards.close()

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """The figures of a step's replies, and of greedy ones; the loss has no curve."""
        kl = {"kl": Scalar("KL", curve=True)} if self.config.beta else {}
        clipped = {"clipped": Scalar("clipped")} if self.config.iterations > 1 else {}
        reward = Scalar("reward", curve=True, metric="reward", held_out="held-out reward")
        return {
            "grpo": Scalar("GRPO"),
            "reward": reward,
            "no_signal": Scalar("no signal", curve=True),
            "length": Scalar("tokens a reply", metric="length"),
            **kl,
            **clipped,
        }

    def summary(self, data: RowSets) -> str:
        text = (
            f"GRPO: {self.config.replies} replies of at most {self.config.max_tokens:,} tokens to "
            f"each of {data.examples:,} prompts, rewards by {', '.join(self.rewards.names)}"
        )
        if self.rewards.functions:
            runs = "does not run in a check" if self.rewards.withheld else "runs"
            text += f"; {', '.join(self.rewards.functions)}: code, which {runs}"
        return text

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The number of tokens of replies, and of replies."""
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
            figures = {
                "reward": mean("reward"),
                "no_signal": mean("no_signal"),
                "length": batch["response_mask"].sum() / n_replies,
                "kl": (kl.detach() * mask).sum() / n_tokens,
                "clipped": (clipped * mask).sum() / n_tokens,
            }
            return torch.stack(
                [(loss * mask).sum() / n_tokens, *(figures[n] for n in self.names[1:])]
            )

        return through_head(call, model, learnt, compute)

    def _of_tokens(
        self, logps: Tensor, ratios: Tensor, batch: Tensors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For each token, (sequences, tokens): the loss, the KL, and whether its ratio
        is clipped."""
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

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(PromptRows, data.train)
        lengths = [len(prompt.ids) for prompt in rows.prompts]
        lines = [
            printable(self.summary(data)),
            f"prompts: {np.mean(lengths):,.0f} tokens on average, at most {max(lengths):,}",
        ]
        references = _references(rows, tokenizer)
        if references and not self.rewards.withheld:
            rewards = [self.rewards.of(*reference) for reference in references]
            lines.append(
                f"the rows' own replies earn {fmean(rewards):.3g} on average, from "
                f"{min(rewards):.3g} to {max(rewards):.3g} (the first {len(rewards)})"
            )
        table = _show_rewards(rows, self.rewards, lengths, tokenizer)
        return {"Prompts": [*map(Text, lines), table]}

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        rows = cast(PromptRows, data.train)
        rewards = [self.rewards.of(*reference) for reference in _references(rows, tokenizer)]
        return {
            "prompt_lengths": lengths_document(
                np.array([len(prompt.ids) for prompt in rows.prompts])
            ),
            "reference_reward": fmean(rewards) if rewards and not self.rewards.withheld else None,
        }

    @property
    def best_metrics(self) -> tuple[Metric, ...]:
        """loss is minus the mean reward."""
        return ("loss",)

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss, which selects the best, is minus the reward."""
        return {"loss": -means["reward"]} | super().metrics(means, done)


_SHOWN_REWARDS = 50
"""Rows whose own replies get rewards in a preview."""


def _references(rows: PromptRows, tokenizer: Tokenizer) -> list[tuple[EncodedPrompt, DrawnReply]]:
    """The first rows that have a reply of their own, with it."""
    replied = [prompt for prompt in rows.prompts if prompt.reference][:_SHOWN_REWARDS]
    return [(prompt, _as_drawn(prompt.reference, tokenizer, ends=True)) for prompt in replied]


def _as_drawn(reply: str, tokenizer: Tokenizer, *, ends: bool) -> DrawnReply:
    """A text in the form of a drawn reply. ends: whether its end token is included."""
    ids = tokenizer.encode(reply, begins=False)
    return DrawnReply([*ids, tokenizer.end_id] if ends else ids, reply)


def _show_rewards(
    rows: PromptRows, rewards: Rewards, lengths: Sequence[int], tokenizer: Tokenizer
) -> Table:
    """Three prompts with the value of each check for the row's own reply."""
    table = Table(show_edge=False, padding=(0, 1), header_style="dim")
    for name in ("prompt", "its own reply"):
        table.add_column(name, ratio=1, overflow="fold")
    for name in rewards.names:
        table.add_column(name, justify="right")
    for number in short_middling_long(np.argsort(lengths, kind="stable").tolist()):
        prompt = rows.prompts[number]
        scores = [""] * len(rewards.names)
        if prompt.reference:
            reply = _as_drawn(prompt.reference, tokenizer, ends=True)
            scores = [f"{score:.3g}" for score in rewards.scores(prompt, reply)]
        table.add_row(Text(printable(prompt.text)), Text(printable(prompt.reference)), *scores)
    return table
