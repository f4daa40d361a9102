"""The cross-entropy of a language-model head over a large vocabulary, in little memory.

Keep: the gradients are those of the plain formula; only how much of the logits exists at one
time differs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Logits that exist at one time: 64 MiB in float32.
CHUNK_LOGITS = 2**24


class LinearCrossEntropy(torch.autograd.Function):
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
        gradients = (None if d is None else d.mul_(d_loss) for d in ctx.saved_tensors)
        return (*gradients, None, None, None)
