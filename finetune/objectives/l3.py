"""The training objective of Radford et al. (2018): L3 = L2 + λ·L1.

L2 is the negative log-likelihood of the response tokens, L1 that of the tokens of the chosen
span, each a mean over its own labels. The one invariant: a label's weight is fixed before
the first micro-batch of an optimizer step, from counts over the whole step, so the sum over
micro-batches and processes is the same loss however the step is cut.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Batch = Mapping[str, Tensor]
"""input_ids, example_ids (0 is padding), response_mask and aux_mask, each (rows, tokens)."""

AuxNorm = Literal["token", "sequence"]

# Logits that exist at one time: 64 MiB in float32.
CHUNK_LOGITS = 2**24


class Losses(NamedTuple):
    """Scalars in nats, except accuracy. Their sums over a step's micro-batches are the step's.

    l3 carries the gradient. accuracy: the share of response tokens that were most probable.
    """

    l3: Tensor
    l2: Tensor
    l1: Tensor
    accuracy: Tensor


def count_labels(batches: Iterable[Batch], aux_norm: AuxNorm) -> Tensor:
    """What L2 and L1 are divided by: (response tokens, span tokens), float64, shape (2,).

    With `aux_norm` "sequence" the second is the number of examples that have a span token.
    Counts of processes are to be summed.
    """
    counts = torch.zeros(2, dtype=torch.float64)
    for batch in batches:
        aux = batch["aux_mask"]
        if aux_norm == "sequence":
            aux = _labels_of_example(batch)[:, 1:] > 0
        counts += torch.stack([batch["response_mask"].sum(), aux.sum()]).to(counts)
    return counts


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats, at most what a float holds."""
    return math.exp(min(loss, 700.0))


def objective(
    hidden: Tensor,
    head: Tensor,
    batch: Batch,
    counts: Tensor,
    *,
    aux_weight: float,
    aux_norm: AuxNorm = "token",
    bias: Tensor | None = None,
) -> Losses:
    """L3, L2 and L1 of a micro-batch.

    hidden: (rows, tokens, width), what the language-model head reads; the state at t - 1
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
    l3, nll, hits = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden[:, :-1][labelled],
        head,
        bias,
        batch["input_ids"][:, 1:][labelled],
        response_weights + aux_weight * aux_weights,
        torch.is_grad_enabled(),
    )
    # Sums of products and not `@`, which autocast would round to bfloat16.
    return Losses(
        l3,
        (nll * response_weights).sum(),
        (nll * aux_weights).sum(),
        (hits * response_weights).sum(),
    )


def _labels_of_example(batch: Batch) -> Tensor:
    """Span tokens of each example: (rows, 1 + most examples of a row); place 0 is padding."""
    ids = batch["example_ids"]
    totals = torch.zeros(len(ids), int(ids.max()) + 1, device=ids.device)
    return totals.scatter_add_(1, ids, batch["aux_mask"].float())


class _LinearCrossEntropy(torch.autograd.Function):
    """Weighted cross-entropy of a linear layer's outputs, which never exist all at once.

    A chunk's logits become its gradients while they are there: with p the softmax and y the
    label, the gradient with respect to the logits is weight · (p - y). That is one product
    with the head's weights less than computing the logits again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor,
        learn: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden (n, width), labels and weights (n,) -> Σ weight · nll, nll (n,), hits (n,)."""
        wanted = [learn and each for each in ctx.needs_input_grad[:3]]
        d_hidden = torch.empty_like(hidden) if wanted[0] else None
        d_head = torch.zeros_like(head, dtype=torch.float32) if wanted[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        nll = torch.empty(len(labels), device=hidden.device)
        hits = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
        rows = max(1, CHUNK_LOGITS // len(head))
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            states, label = hidden[chunk], labels[chunk, None]
            outputs = functional.linear(states, head, bias)
            logits = outputs.float()
            hits[chunk] = logits.argmax(1) == label[:, 0]
            chosen = logits.gather(1, label)
            normaliser = logits.logsumexp(1, keepdim=True)
            nll[chunk] = (normaliser - chosen)[:, 0]
            if not any(wanted):
                continue
            d_logits = logits.sub_(normaliser).exp_()
            d_logits.scatter_add_(1, label, torch.full_like(chosen, -1.0))
            d_logits *= weights[chunk, None]
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            d_outputs = d_logits.to(outputs.dtype)
            if d_hidden is not None:
                d_hidden[chunk] = d_outputs @ head
            if d_head is not None:
                if d_outputs.dtype == states.dtype == torch.float32:
                    d_head.addmm_(d_outputs.T, states)
                else:
                    d_head += d_outputs.T @ states
        ctx.save_for_backward(d_hidden, None if d_head is None else d_head.to(head.dtype), d_bias)
        ctx.mark_non_differentiable(nll, hits)
        return (nll * weights).sum(), nll, hits

    @staticmethod
    def backward(
        ctx: Any, d_loss: Tensor, _nll: Tensor, _hits: Tensor
    ) -> tuple[Tensor | None, ...]:
        found = (None if d is None else d.mul_(d_loss) for d in ctx.saved_tensors)
        return (*found, None, None, None)
