"""The training objective of Radford et al. (2018): L3 = L2 + λ·L1.

L2 is the negative log-likelihood of the response tokens, L1 that of the tokens of the chosen span,
each a mean over its own labels. Of models with an encoder and a decoder, such as T5, there is L2
alone: the encoder reads what is before a reply, and the decoder learns to write the reply.

Invariant: a label's weight depends only on the counts of its whole optimizer step. For a decoder a
row has one reply, its last tokens, and both parts read exactly what they read when a chat generates
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from chatapp.engine.backends.encoder_decoder import decoder_opening
from chatapp.engine.backends.head import HEAD_FILE
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers import open_framed_tokenizer
from finetune.config.objectives import L3Settings, Metric
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Rows, Tensors, response_labels
from finetune.data.encoding import Encoded, Span
from finetune.data.preparation import CHATS
from finetune.objectives.log_probs import LinearCrossEntropy
from finetune.objectives.objective import (
    Evaluator,
    Figures,
    ModelText,
    Objective,
    RowPrompt,
    RowSets,
    Scalar,
    Tell,
    row_questions,
    through_head,
)
from finetune.objectives.rows import (
    encode_run_rows,
    mean_losses,
    read_chat_rows,
    show_lengths,
    show_masks,
    with_start,
)

AuxNorm = Literal["token", "sequence"]


class L3Losses(NamedTuple):
    """Scalars in nats, except accuracy. Their sums over a step's micro-batches are the step's.

    l3 has the gradient. accuracy: the fraction of response tokens that were most probable.
    """

    l3: Tensor
    l2: Tensor
    l1: Tensor
    accuracy: Tensor


def count_labels(batches: Iterable[Tensors], aux_norm: AuxNorm) -> Tensor:
    """The divisors of L2 and L1: (response tokens, span tokens), float64, shape (2,).

    With `aux_norm` "sequence" the second is the number of examples with a span token. Sum the
    counts over processes.
    """
    counts = torch.zeros(2, dtype=torch.float64)
    for batch in batches:
        # The first token of a sequence is never predicted.
        response, aux = batch["response_mask"][:, 1:], batch["aux_mask"][:, 1:]
        if aux_norm == "sequence":
            aux = _labels_of_example(batch)[:, 1:] > 0
        counts += torch.stack([response.sum(), aux.sum()]).to(counts)
    return counts


def l3_losses(
    hidden: Tensor,
    head: Tensor,
    batch: Tensors,
    counts: Tensor,
    *,
    aux_weight: float,
    aux_norm: AuxNorm = "token",
    bias: Tensor | None = None,
) -> L3Losses:
    """L3, L2 and L1 of a micro-batch.

    hidden: (rows, tokens, width), the input of the language-model head; the state at t - 1
        predicts token t.
    head, bias: (vocabulary, width) and (vocabulary,), the head's parameters.
    counts: of `count_labels`, over the whole step and all processes.
    aux_weight: λ. With 0 the span's tokens are not computed.
    aux_norm: "token": L1 is the mean over span tokens. "sequence": the mean over examples of
        each example's mean, as in the paper's own code.

    """
    response, aux = batch["response_mask"], batch["aux_mask"]
    n_response, n_aux = counts.clamp(min=1).tolist()
    if aux_norm == "sequence":
        per_example = _labels_of_example(batch).gather(1, batch["example_ids"])
        aux_weights = aux / (per_example.clamp(min=1) * n_aux)
    else:
        aux_weights = aux / n_aux
    labelled = (response | aux) if aux_weight else response
    labelled = labelled[:, 1:]
    response_weights = (response / n_response)[:, 1:][labelled]
    aux_weights = aux_weights[:, 1:][labelled]
    l3, nll, hits = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden[:, :-1][labelled],
        head,
        bias,
        batch["input_ids"][:, 1:][labelled],
        response_weights + aux_weight * aux_weights,
        torch.is_grad_enabled(),
    )
    # Sums of products instead of `@`, which autocast would round to bfloat16.
    return L3Losses(
        l3,
        (nll * response_weights).sum(),
        (nll * aux_weights).sum(),
        (hits * response_weights).sum(),
    )


def _labels_of_example(batch: Tensors) -> Tensor:
    """Span tokens of each example: (rows, 1 + most examples of a row); column 0 is padding."""
    ids = batch["example_ids"]
    totals = torch.zeros(len(ids), int(ids.max()) + 1, device=ids.device)
    return totals.scatter_add_(1, ids, batch["aux_mask"].float())


@dataclass(frozen=True)
class ChatEvaluator(Evaluator):
    """Evaluates how well a model predicts the replies of chats, and provides their prompts."""

    def __post_init__(self) -> None:
        if (self.text.files.path / HEAD_FILE).is_file():
            raise ConfigError(
                f"{self.text.name} has a head; compare it with the run of another head"
            )

    def read_rows(self) -> tuple[list[Encoded], dict[str, list[Encoded]]]:
        sets = encode_run_rows(self.config, self.text, CHATS)
        if not self.text.files.is_encoder_decoder:
            return sets.train, sets.held_out
        held_out = {name: replies_apart(rows) for name, rows in sets.held_out.items()}
        return replies_apart(sets.train), held_out

    def questions(self, rows: Sequence[Encoded]) -> Iterator[RowPrompt]:
        return row_questions(rows, self.text.tokenizer, self.text.window)

    @torch.inference_mode()
    def measure(self, model: Any, rows: Sequence[Encoded], tell: Tell) -> Figures:
        """Loss, perplexity and accuracy of the response tokens, and the loss per byte
        of replies."""
        objective = L3(aux_weight=0.0, encoder_end=encoder_end(self.text))
        tokenizer = self.text.tokenizer
        behind_start = Rows(with_start(list(rows), self.text.start), "prompt")
        end = tokenizer.end_id
        means, counts = mean_losses(objective, model, behind_start, end, "loss", tell)
        metrics = objective.metrics(means, 0.0)
        replies = (tokenizer.decode(row.ids[response_labels(row)].tolist()) for row in rows)
        size = sum(len(reply.strip().encode()) for reply in replies)
        figures = {"token_accuracy" if key == "accuracy" else key: metrics[key] for key in metrics}
        return Figures(
            figures | {"loss_per_byte": figures["loss"] * float(counts[0]) / max(1, size)}
        )


@dataclass(frozen=True)
class ReplyObjective(Objective):
    """An objective on the replies of rows, evaluated by their loss and by the model's replies."""

    evaluator: ClassVar[type[Evaluator]] = ChatEvaluator
    dropout = True

    @property
    def best_metrics(self) -> tuple[Metric, ...]:
        return ("loss", "accuracy", "exact_match")


@dataclass(frozen=True)
class L3(ReplyObjective):
    """L2 of the responses plus λ times L1, computed only with the language-model head.

    aux_weight: λ. aux_norm: see `l3_losses`. aux_decays: λ falls linearly to 0. encoder_end: of an
    encoder-decoder model, which has no L1, the tokens after a text that the encoder reads.
    """

    aux_weight: float
    aux_norm: AuxNorm = "token"
    aux_decays: bool = False
    encoder_end: Sequence[int] | None = None

    @classmethod
    def of(cls, settings: L3Settings, **fields: Any) -> Self:
        """The objective for a table of the configuration."""
        decays = settings.aux_decay == "linear"
        return cls(settings.aux_weight, settings.aux_norm, decays, **fields)

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        settings = cast(L3Settings, config.objective)
        sets = read_chat_rows(config, text, settings.aux_span)
        if not text.files.is_encoder_decoder:
            return cls.of(settings), sets
        return cls.of(settings, encoder_end=encoder_end(text)), _replies_apart(sets)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Without λ there is no L1, and L3 is L2."""
        has_l1 = bool(self.aux_weight)
        return {
            "l3": Scalar("L3" if has_l1 else ""),
            "l2": Scalar("L2", curve=True, metric="loss", is_nats=True),
            "l1": Scalar("L1" if has_l1 else "", curve=True, metric="l1" if has_l1 else ""),
            "accuracy": Scalar(metric="accuracy"),
        }

    def weight(self, done: float) -> float:
        """λ after this fraction of the run."""
        return self.aux_weight * (1 - done) if self.aux_decays else self.aux_weight

    def prompt_weight(self, data: RowSets) -> float:
        """The weight of a token of L1 relative to one of L2: λ · N_response / N_prompt, or 0."""
        tokens = data.aux_labels
        return self.aux_weight * data.response_labels / tokens if tokens else 0.0

    def summary(self, data: RowSets) -> str:
        if not self.aux_weight:
            return f"L3 = L2, over {data.response_labels:,} response tokens; λ is 0"
        if not data.aux_labels:
            return f"L3 = L2, over {data.response_labels:,} response tokens; L1 has none"
        return (
            f"L3 = L2 + {self.aux_weight:g} · L1; L1 over {data.aux_labels:,} tokens, L2 over "
            f"{data.response_labels:,}: a token of L1 counts {self.prompt_weight(data):.3g} times "
            "as much as one of L2"
        )

    def settings(self, done: float) -> dict[str, float]:
        return {"aux_weight": self.weight(done)}

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        return count_labels(batches, self.aux_norm)

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        if self.encoder_end is not None:
            opening, count = decoder_opening(model), float(counts[0].clamp(min=1))
            l2, accuracy = decoder_losses(call, batch, opening, self.encoder_end, count)
            return torch.stack([l2, l2.detach(), torch.zeros_like(l2), accuracy])
        head = model.get_output_embeddings()

        def compute(hidden: Tensor) -> Tensor:
            return torch.stack(self.of_hidden(hidden, head, batch, counts, done))

        return through_head(call, model, batch, compute)

    def of_hidden(
        self, hidden: Tensor, head: Any, batch: Tensors, counts: Tensor, done: float
    ) -> L3Losses:
        """The losses of the language-model head's input; see `l3_losses`."""
        return l3_losses(
            hidden,
            head.weight,
            batch,
            counts,
            aux_weight=self.weight(done),
            aux_norm=self.aux_norm,
            bias=head.bias,
        )

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(Rows, data.train)
        labels = [
            f"labels: {data.response_labels:,} of L2 (responses), {data.aux_labels:,} of L1 "
            f"({rows.aux_span}); N_response/N_prompt = "
            f"{data.response_labels / max(1, data.aux_labels):.3g}"
        ]
        if data.aux_labels:
            labels.append(
                f"λ = {self.aux_weight:g}: a token of L1 counts "
                f"{self.prompt_weight(data):.3g} times as much as one of L2"
            )
        return {
            "Tokens": [*show_lengths(rows.examples), *map(Text, labels)],
            "Masks": list(show_masks(rows.examples, tokenizer, marked)),
        }

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        return {"effective_prompt_weight": self.prompt_weight(data)}

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss and l1 in nats per token, perplexity, accuracy on response tokens."""
        metrics = super().metrics(means, done)
        if not self.weight(done):  # its sum has not been computed
            metrics.pop("l1", None)
        return metrics


def encoder_end(text: ModelText) -> Sequence[int] | None:
    """The tokens after a text that a model's encoder reads; None without an encoder."""
    if not text.files.is_encoder_decoder:
        return None
    return open_framed_tokenizer(text.files.tokenizer)[2]


def _replies_apart(sets: RowSets) -> RowSets:
    def apart(rows: Any) -> Rows:
        return Rows(replies_apart(rows.examples), rows.aux_span)

    train = apart(sets.train)
    held_out = {name: apart(rows) for name, rows in sets.held_out.items()}
    return replace(sets, train=train, held_out=held_out, examples=len(train), aux_labels=0)


_NO_LABEL = -100


def replies_apart(examples: Sequence[Encoded]) -> list[Encoded]:
    """An example for each reply, which ends in it. Raises ConfigError for a plain text."""
    apart = []
    for example in examples:
        is_reply = example.spans == Span.RESPONSE
        if is_reply[0]:
            raise ConfigError(
                f"{example.location}: an encoder-decoder model learns replies to prompts, and "
                "this is a text without a prompt"
            )
        ends = [at for at, pair in enumerate(pairwise([*is_reply, False]), 1) if pair == (1, 0)]
        for end in ends:
            spans = example.spans[:end].copy()
            start = int(np.flatnonzero(spans != Span.RESPONSE)[-1]) + 1
            spans[:start][spans[:start] == Span.RESPONSE] = Span.PROMPT
            apart.append(replace(example, ids=example.ids[:end], spans=spans))
    return apart


def decoder_losses(
    call: nn.Module, batch: Tensors, opening: Sequence[int], end: Sequence[int], count: float
) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of the replies and the number of likeliest tokens, over `count`.

    opening: tokens before each reply of the decoder. end: tokens after each text of the encoder.
    """
    device = batch["input_ids"].device
    first, last = (torch.tensor(list(ids), device=device) for ids in (opening, end))
    read, replies = [], []
    for ids, mask in zip(batch["input_ids"], batch["response_mask"], strict=True):
        places = mask.nonzero()[:, 0]
        read.append(torch.cat([ids[: places[0] if len(places) else len(ids)], last]))
        replies.append(ids[mask])
    labels = pad_sequence(replies, batch_first=True, padding_value=_NO_LABEL)
    logits = call(
        input_ids=pad_sequence(read, batch_first=True),
        attention_mask=pad_sequence([torch.ones_like(ids) for ids in read], batch_first=True),
        decoder_input_ids=pad_sequence(
            [torch.cat([first, reply[:-1]]) for reply in replies], batch_first=True
        ),
        use_cache=False,
    ).logits[:, len(opening) - 1 :]
    nll = cross_entropy(logits.float().mT, labels, ignore_index=_NO_LABEL, reduction="sum")
    hits = (logits.argmax(2) == labels).sum()
    return nll / count, hits / count
