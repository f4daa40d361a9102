"""Pairs of random tokens, their rows and a reference, for the tests of objectives on feedback."""

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import tiny_finetune as tiny
import torch
from torch import Tensor
from torch.nn import functional

from finetune.data.batches import collate
from finetune.data.encoding import Encoded, Span
from finetune.objectives.pairs import SideReplies
from finetune.objectives.rows import PairRows, give_reference

PAD = partial(collate, pad_id=0)
LENGTHS = ((9, 12), (14, 7), (8, 8), (20, 11), (6, 15), (10, 9), (13, 13), (7, 18))


def pairs(values: Sequence[float] = (0.0,) * 8) -> tuple[list[Encoded], list[Encoded], list[float]]:
    """Eight pairs, each behind one prompt."""
    first = tiny.examples([a for a, _ in LENGTHS], seed=1)
    second = []
    for one, other in zip(first, tiny.examples([b for _, b in LENGTHS], seed=2), strict=True):
        prompt, reply = one.spans != Span.RESPONSE, other.spans == Span.RESPONSE
        ids = torch.cat([torch.tensor(one.ids[prompt]), torch.tensor(other.ids[reply])]).numpy()
        spans = torch.cat([torch.tensor(one.spans[prompt]), torch.tensor(other.spans[reply])])
        second.append(Encoded(ids, spans.numpy(), one.key))
    return first, second, list(values)


def rows(packed: bool = False, values: Sequence[float] = (0.0,) * 8, span: Any = "response") -> Any:
    """Rows of them, of one pair each or of several."""
    return PairRows(*pairs(values), span, 0, (48, 0) if packed else None)


def with_reference(made: PairRows, model: Any) -> PairRows:
    give_reference(model, {"train": made}, PAD, "float32", lambda done, total: None)
    return made


def log_probs(model: Any, example: Encoded) -> Tensor:
    """log p of each token of a sequence but the first, by the plain formula."""
    ids = torch.tensor(example.ids.astype("int64"))
    logits = model(input_ids=ids[None]).logits[0, :-1]
    return -functional.cross_entropy(logits, ids[1:], reduction="none")


def replies(model: Any, examples: Sequence[Encoded]) -> list[Tensor]:
    """log p of the tokens of each reply."""
    return [
        log_probs(model, each)[torch.tensor(each.spans == Span.RESPONSE)[1:]] for each in examples
    ]


def assert_same_step(
    folder: Path, model: Any, made: PairRows, objective: Any, loss: Tensor, sizes: Any
) -> dict[str, float]:
    """One step of a trainer has this loss and its gradients, however it is cut.

    loss: computed on `model`. sizes: of micro-batches, and how many. Returns what was logged.
    """
    loss.backward()
    logs: dict[str, float] = {}
    for size, accumulate in sizes:
        step = tiny.trainer(
            folder, deepcopy(model), made, batch_size=size, accumulate=accumulate, steps=1,
            max_grad_norm=1e9, collate=PAD, objective=objective,
        )  # fmt: skip
        step.model.zero_grad()
        logs, gradients = tiny.step_gradients(step)
        assert abs(logs["loss"] - loss.item()) < 1e-5
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(
                    gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name
                )
    return logs


def side_of(logps: Tensor) -> SideReplies:
    """One side of a batch whose replies have these log-probabilities, of a token each."""
    return SideReplies(
        logps, torch.zeros_like(logps), torch.ones_like(logps), torch.zeros_like(logps)
    )
