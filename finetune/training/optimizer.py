"""The optimizers of a run: AdamW, or Muon for the matrices inside the blocks with AdamW for the
rest; and the schedule of their learning rate.

Invariant: every trained parameter is in exactly one group, and a resumed run takes the same next
step that the interrupted run would have taken.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn


class MuonBesideAdamW(torch.optim.Optimizer):
    """Muon and AdamW as one optimizer: one schedule, one state to save.

    Muon (Jordan et al. 2024) turns a matrix's momentum into the nearest matrix whose singular
    values are all about 1. Scaled as by Liu et al. (2025) its updates are as large as AdamW's, so
    both take the same learning rate.

    matrices, others: groups of parameters, each with its weight decay; the matrices are 2-D.
    """

    def __init__(
        self,
        matrices: Iterable[dict[str, Any]],
        others: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps)
        self._parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # loading replaces groups and states
        self._share()

    def _share(self) -> None:
        """Share the groups and states of this optimizer with its parts, instead of copies."""
        muon, adamw = self._parts
        count = len(muon.param_groups)
        muon.param_groups, adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        muon.state = adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()  # type: ignore[no-untyped-call]
        return loss


def muon_beside_adamw(
    model: nn.Module, decayed: Collection[str], *, weight_decay: float, **settings: Any
) -> MuonBesideAdamW:
    """The optimizer of a model's trained parameters: Muon for its hidden matrices.

    decayed: names of the parameters with weight decay. settings: of MuonBesideAdamW.
    """
    matrices = hidden_matrices(model)
    others = {name for name, _ in model.named_parameters()} - matrices
    return MuonBesideAdamW(
        _groups(model, matrices, decayed, weight_decay),
        _groups(model, others, decayed, weight_decay),
        **settings,
    )


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the 2-D weights inside the blocks: no embedding, no head, no vector."""
    inside = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for parameter in module.parameters()
    }
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and id(parameter) in inside
    }


def _groups(
    model: nn.Module, names: Collection[str], decayed: Collection[str], weight_decay: float
) -> list[dict[str, Any]]:
    """The named trained parameters, those with weight decay and those without."""
    groups = []
    for decay in (True, False):
        chosen = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name in names and (name in decayed) == decay
        ]
        if chosen:
            groups.append({"params": chosen, "weight_decay": weight_decay if decay else 0.0})
    return groups


_STABLE = 0.8
"""The fraction of the steps after the warmup in which wsd keeps the peak rate."""

_FALLING: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "constant": lambda done: 1.0,
    "wsd": lambda done: min(1.0, (1 - done) / (1 - _STABLE)),
}


def schedule(kind: str, warmup: int, steps: int, min_rate: float = 0.0) -> Callable[[int], float]:
    """The factor of the learning rate before each step, counted from 0.

    It rises over the first `warmup` steps, none of which has a rate of 0, and falls to `min_rate`
    after the last. kind: of `Steps.schedule`; wsd is warmup, stable, decay (MiniCPM, Hu et al.
    2024).
    """
    falling = _FALLING[kind]

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return min_rate + (1 - min_rate) * falling(done)

    return factor
