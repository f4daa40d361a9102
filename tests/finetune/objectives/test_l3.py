"""L3 = L2 + λ·L1 against the plain formula, with its gradients, however a step is cut."""

import pytest
import torch
from torch.nn import functional

from finetune.objectives import log_probs
from finetune.objectives.l3 import count_labels, l3_losses

VOCABULARY, WIDTH = 11, 6


def batch(seed=0, rows=4, tokens=9):
    """Rows of two packed examples and padding: prompt labels first, then response labels."""
    draw = torch.Generator().manual_seed(seed)
    example_ids = torch.zeros(rows, tokens, dtype=torch.int64)
    response = torch.zeros(rows, tokens, dtype=torch.bool)
    aux = torch.zeros(rows, tokens, dtype=torch.bool)
    for row in range(rows):
        middle = 4 + row % 2
        for number, (start, end) in enumerate([(0, middle), (middle, tokens - row % 3)], 1):
            example_ids[row, start:end] = number
            aux[row, start + 1 : start + 2 + row % 2] = True
            response[row, start + 2 + row % 2 : end] = True
    return {
        "input_ids": torch.randint(VOCABULARY, (rows, tokens), generator=draw),
        "example_ids": example_ids,
        "response_mask": response,
        "aux_mask": aux,
    }


def parameters(seed=1, rows=4, tokens=9):
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, tokens, WIDTH, generator=draw)
    head = torch.randn(VOCABULARY, WIDTH, generator=draw)
    bias = torch.randn(VOCABULARY, generator=draw)
    return hidden.requires_grad_(), head.requires_grad_(), bias.requires_grad_()


def plain(hidden, head, bias, data, aux_norm):
    """L2 and L1 by the formulas, from all logits at once."""
    logp = functional.log_softmax(hidden @ head.T + bias, -1)[:, :-1]
    nll = -logp.gather(2, data["input_ids"][:, 1:, None])[..., 0]
    response, aux = data["response_mask"][:, 1:], data["aux_mask"][:, 1:]
    l2 = nll[response].mean()
    if aux_norm == "token":
        return l2, nll[aux].mean()
    means = []
    for row in range(len(nll)):
        for number in data["example_ids"][row].unique():
            chosen = aux[row] & (data["example_ids"][row, 1:] == number)
            if chosen.any():
                means.append(nll[row][chosen].mean())
    return l2, torch.stack(means).mean()


@pytest.mark.parametrize("aux_norm", ["token", "sequence"])
@pytest.mark.parametrize("aux_weight", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("chunk", [1, 5 * VOCABULARY, 10**6])
def test_value_and_gradients_are_those_of_the_formula(monkeypatch, aux_norm, aux_weight, chunk):
    monkeypatch.setattr(log_probs, "CHUNK_LOGITS", chunk)
    data = batch()
    expected = parameters()
    l2, l1 = plain(*expected, data, aux_norm)
    (l2 + aux_weight * l1).backward()
    hidden, head, bias = parameters()
    counts = count_labels([data], aux_norm)
    found = l3_losses(
        hidden, head, data, counts, aux_weight=aux_weight, aux_norm=aux_norm, bias=bias
    )
    found.l3.backward()
    torch.testing.assert_close(found.l2, l2.detach())
    if aux_weight:
        torch.testing.assert_close(found.l1, l1.detach())
    torch.testing.assert_close(found.l3.detach(), (l2 + aux_weight * l1).detach())
    for mine, theirs in zip((hidden, head, bias), expected, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("aux_norm", ["token", "sequence"])
def test_micro_batches_sum_to_the_step(aux_norm):
    data = batch()
    hidden, head, _ = parameters()
    counts = count_labels([data], aux_norm)
    whole = l3_losses(hidden, head, data, counts, aux_weight=0.5, aux_norm=aux_norm)
    whole.l3.backward()
    wanted = head.grad
    hidden, head, _ = parameters()
    parts = [{key: value[i : i + 1] for key, value in data.items()} for i in range(4)]
    assert torch.equal(count_labels(parts, aux_norm), counts)
    found = [
        l3_losses(hidden[i : i + 1], head, part, counts, aux_weight=0.5, aux_norm=aux_norm)
        for i, part in enumerate(parts)
    ]
    sum(losses.l3 for losses in found).backward()
    for mine, theirs in zip(zip(*found, strict=True), whole, strict=True):
        torch.testing.assert_close(sum(mine), theirs)
    torch.testing.assert_close(head.grad, wanted)


def test_equal_weights_give_the_full_sequence_loss_up_to_its_constant():
    """λ = N_aux / N_response gives every token one weight: L3 = (1 + λ) · the plain mean."""
    data = batch()
    hidden, head, _ = parameters()
    counts = count_labels([data], "token")
    n_response, n_aux = counts.tolist()
    aux_weight = n_aux / n_response
    found = l3_losses(hidden, head, data, counts, aux_weight=aux_weight).l3
    either = data["response_mask"] | data["aux_mask"]
    labels = data["input_ids"].masked_fill(~either, -100)[:, 1:]
    full = functional.cross_entropy(
        (hidden @ head.T)[:, :-1].reshape(-1, VOCABULARY), labels.reshape(-1)
    )
    torch.testing.assert_close(found, (1 + aux_weight) * full)


def test_tokens_without_a_label_change_nothing():
    data = batch()
    hidden, head, _ = parameters()
    counts = count_labels([data], "token")
    first = l3_losses(hidden, head, data, counts, aux_weight=0.5)
    unlabelled = ~(data["response_mask"] | data["aux_mask"])
    data["input_ids"] = data["input_ids"].masked_fill(unlabelled, 3)
    second = l3_losses(hidden, head, data, counts, aux_weight=0.5)
    assert first.l3 == second.l3


def test_accuracy_is_that_of_the_response_tokens():
    data = batch()
    hidden, head, _ = parameters()
    best = (hidden @ head.T).argmax(-1)[:, :-1]
    chosen = data["response_mask"][:, 1:]
    expected = (best == data["input_ids"][:, 1:])[chosen].float().mean()
    counts = count_labels([data], "token")
    with torch.no_grad():
        found = l3_losses(hidden, head, data, counts, aux_weight=0.0)
    torch.testing.assert_close(found.accuracy, expected)
    assert not found.l3.requires_grad


def test_a_frozen_head_and_low_precision():
    data = batch()
    hidden, head, _ = parameters()
    counts = count_labels([data], "token")
    exact = l3_losses(hidden, head, data, counts, aux_weight=0.5)
    exact.l3.backward()
    wanted = hidden.grad
    hidden, head, _ = parameters()
    l3_losses(hidden, head.detach(), data, counts, aux_weight=0.5).l3.backward()
    torch.testing.assert_close(hidden.grad, wanted)
    assert head.grad is None
    hidden.grad = None
    with torch.autocast("cpu", torch.bfloat16):
        rough = l3_losses(hidden, head, data, counts, aux_weight=0.5)
    rough.l3.backward()
    assert rough.l3.dtype == torch.float32
    torch.testing.assert_close(rough.l3, exact.l3, rtol=0.02, atol=0.02)
    torch.testing.assert_close(hidden.grad, wanted, rtol=0.1, atol=0.02)
    half = l3_losses(hidden.bfloat16(), head.bfloat16(), data, counts, aux_weight=0.5)
    half.l3.backward()


def test_a_step_without_span_tokens_or_labels_is_finite():
    data = batch()
    data["aux_mask"] = torch.zeros_like(data["aux_mask"])
    hidden, head, _ = parameters()
    for aux_norm in ("token", "sequence"):
        found = l3_losses(
            hidden, head, data, count_labels([data], aux_norm), aux_weight=0.5, aux_norm=aux_norm
        )
        assert found.l1 == 0
        assert found.l3 == found.l2
    data["response_mask"] = torch.zeros_like(data["aux_mask"])
    found = l3_losses(hidden, head, data, count_labels([data], "token"), aux_weight=0.5)
    found.l3.backward()
    assert found.l3 == 0
    assert hidden.grad.abs().sum() == 0
