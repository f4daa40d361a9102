"""The optimizers of a run: AdamW, or Muon for the matrices inside the blocks with AdamW for the
rest; the schedule of their learning rate; and the average of the weights.

Invariant: every trained parameter is in exactly one group, and a resumed run takes the same next
step that the interrupted run would have taken.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.trainer_pt_utils import get_parameter_names

from finetune.config.sections import ConfigError, Steps

_AVERAGE_FILE = "average.pt"

_NOT_DECAYED = ("bias", "layernorm", "rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""What the names of parameters contain that do not shrink, as in transformers' Trainer."""


def make_optimizer(
    model: nn.Module, settings: Steps, beta2: float = 0.999, *, sharded: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of a model's trained parameters; matrices shrink, biases and norms do not.

    sharded: whether a process has only a part of each parameter. Raises ConfigError.
    """
    decayed = set(get_parameter_names(model, [nn.LayerNorm], _NOT_DECAYED))
    shared: dict[str, Any] = {"lr": settings.learning_rate, "betas": (0.9, beta2), "eps": 1e-8}
    if settings.optimizer == "adamw":
        names = {name for name, _ in model.named_parameters()}
        groups = _groups(model, names, decayed, settings.weight_decay)
        return torch.optim.AdamW(groups, **shared, fused=True)
    if sharded:
        raise ConfigError(
            "train.optimizer: muon needs whole matrices, and FSDP cuts them; use adamw"
        )
    return muon_beside_adamw(model, decayed, weight_decay=settings.weight_decay, **shared)


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
    matrix_groups, other_groups = (
        [group for group in _groups(model, names, decayed, weight_decay) if group["params"]]
        for names in (matrices, others)
    )
    return MuonBesideAdamW(matrix_groups, other_groups, **settings)


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


class WeightAverage:
    """The exponential moving average of a model's weights: a ← d · a + (1 - d) · w after each step.

    d rises to the decay, as (1 + steps) / (10 + steps), so that the first weights are soon
    forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights: list[torch.Tensor] = list(model.parameters())
        self._means = [weight.detach().clone() for weight in self._weights]
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._means, self._weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for number, weight in enumerate(self._weights):
            weight.data, self._means[number] = self._means[number], weight.data

    def save(self, folder: Path, process: int) -> None:
        """Write the average into a checkpoint; it is the same in each process."""
        if process == 0:
            torch.save(self._means, folder / _AVERAGE_FILE)

    def load(self, folder: Path, process: int) -> None:
        """Read what `save` wrote."""
        means = torch.load(folder / _AVERAGE_FILE, weights_only=True)
        for mean, saved in zip(self._means, means, strict=True):
            mean.copy_(saved)
