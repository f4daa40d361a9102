"""Log-probabilities of tokens and of replies, and cross-entropy, in little memory.

Invariant: the gradients are those of the plain formula; only the amount of logits that exists at
one time differs. A reply's log-probability is the sum over its own labels, at any position in a
row.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from finetune.data.batches import Tensors

# The most logits that exist at one time: 256 MiB in float32.
CHUNK_LOGITS = 2**26

# Few enough rows that a small vocabulary's logits stay in the processor's cache.
_LEAST_ROWS = 256


class LinearCrossEntropy(torch.autograd.Function):
    """Weighted cross-entropy of a linear layer's outputs, which never exist all at once.

    A chunk's logits become its gradients immediately: with p the softmax and y the label, the
    gradient with respect to the logits is weight · (p - y). That saves one product with the head's
    weights compared to computing the logits again in the backward pass.
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
        wanted = [learn and needed for needed in ctx.needs_input_grad[:3]]
        d_hidden = torch.empty_like(hidden) if wanted[0] else None
        d_head = torch.zeros_like(head, dtype=torch.float32) if wanted[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        nll = torch.empty(len(labels), device=hidden.device)
        hits = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
        for chunk in _chunks(len(labels), head):
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
        gradients = (None if d is None else d.mul_(d_loss) for d in ctx.saved_tensors)
        return (*gradients, None, None, None)


class LinearLogProbs(torch.autograd.Function):
    """Log-probabilities of labels under a linear layer's outputs, which never exist all at once.

    With p the softmax, y the label and g the gradient of its log-probability, that of the logits is
    g · (y - p). g is known only after all losses, so the logits are computed again.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor
    ) -> Tensor:
        """hidden (n, width), labels (n,) -> log p of each label, (n,) float32."""
        logps = torch.empty(len(labels), device=hidden.device)
        normalisers = torch.empty_like(logps)
        for chunk in _chunks(len(labels), head):
            outputs = functional.linear(hidden[chunk], head, bias)
            logits = outputs.float()
            normalisers[chunk] = logits.logsumexp(1)
            logps[chunk] = logits.gather(1, labels[chunk, None])[:, 0] - normalisers[chunk]
            ctx.dtype = outputs.dtype  # of the products, which autocast may choose
        ctx.save_for_backward(hidden, head, bias, labels, normalisers)
        return logps

    @staticmethod
    def backward(ctx: Any, d_logps: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, bias, labels, normalisers = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        d_hidden = torch.empty_like(hidden) if wanted[0] else None
        d_head = torch.zeros_like(head, dtype=torch.float32) if wanted[1] else None
        d_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        weights = head.to(ctx.dtype) if len(labels) else head
        offset = bias if bias is None or not len(labels) else bias.to(ctx.dtype)
        for chunk in _chunks(len(labels), head):
            states, label = hidden[chunk].to(ctx.dtype), labels[chunk, None]
            logits = functional.linear(states, weights, offset).float()
            d_logits = logits.sub_(normalisers[chunk, None]).exp_().neg_()
            d_logits.scatter_add_(1, label, torch.ones_like(label, dtype=torch.float32))
            d_logits *= d_logps[chunk, None]
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            d_outputs = d_logits.to(ctx.dtype)
            if d_hidden is not None:
                d_hidden[chunk] = (d_outputs @ weights).to(hidden.dtype)
            if d_head is not None:
                d_head += d_outputs.T @ states
        return d_hidden, None if d_head is None else d_head.to(head.dtype), d_bias, None


def _chunks(rows: int, head: Tensor) -> list[slice]:
    """As many rows at a time as make the sum of the head's gradient, which each chunk reads and
    writes whole, cost no more than the chunk's logits: the width of the states. A GPU, which waits
    for each chunk's start, takes as many as its memory may hold.
    """
    vocabulary, width = head.shape
    size = max(1, CHUNK_LOGITS // vocabulary)
    if not head.is_cuda:
        size = min(size, max(_LEAST_ROWS, width))
    return [slice(start, start + size) for start in range(0, rows, size)]


def token_log_probs(
    hidden: Tensor, head: Any, batch: Tensors, labelled: Tensor, temperature: float = 1.0
) -> Tensor:
    """log p of each labelled token of a batch, (sequences, tokens); 0 for the others.

    hidden: (sequences, tokens, width), what the language-model head reads; the state at t - 1
        predicts token t. labelled: (sequences, tokens), never a first token.
    temperature: which the logits are divided by.
    """
    learnt = labelled[:, 1:]
    states, bias = hidden[:, :-1][learnt], head.bias
    if temperature != 1:
        states, bias = states / temperature, None if bias is None else bias / temperature
    logps = LinearLogProbs.apply(  # type: ignore[no-untyped-call]
        states, head.weight, bias, batch["input_ids"][:, 1:][learnt]
    )
    empty = torch.zeros(labelled.shape, device=hidden.device)
    return empty.masked_scatter(labelled, logps)


def reply_sums(values: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Sums of the tokens' values over each example of a batch, in their order, (examples,).

    values: (sequences, tokens).
    """
    ids = batch["example_ids"]
    examples = ids.max(1).values
    first = examples.cumsum(0) - examples
    count = int(examples.sum())
    index = torch.where(ids > 0, ids - 1 + first[:, None], count)
    sums = torch.zeros(count + 1, device=values.device, dtype=torch.float32)
    return sums.index_add(0, index.flatten(), values.float().flatten())[:count]


def side(batch: Tensors, number: int) -> Tensors:
    """The first (0) or the second (1) sequences of a batch of pairs."""
    return {key: value[number::2] for key, value in batch.items()}
