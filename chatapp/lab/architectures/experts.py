"""Which experts each token went to, where the MLPs of a model are mixtures of experts.

A router scores the experts of a layer for each token. The few with the largest scores compute, and
the MLP's output is the sum of theirs, each times its weight g: Σ g_e E_e(h) (Shazeer et al. 2017,
arXiv 1701.06538; Fedus, Zoph and Shazeer 2021, 2101.03961). Families differ in how they get the
weights: a softmax over all experts or over the chosen ones, or sigmoids, so that their sum need not
be 1.

Invariant: experts and weights are those that the model's own pass used, read where it hands them to
the experts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.background import model_here
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.model import LanguageModel
from chatapp.lab.findings import Finding


@dataclass(frozen=True, slots=True)
class Routes:
    """What the router of a layer chose. experts, weights: of each token, the largest weight first.

    count: how many experts there are to choose from.
    """

    layer: int
    count: int
    experts: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Experts(Finding):
    """The experts of a text's tokens. texts: of the tokens. layers: those that have experts."""

    name: ClassVar[str] = "experts"

    texts: tuple[str, ...]
    layers: tuple[Routes, ...]

    @classmethod
    def of(cls, model: LanguageModel, ids: Sequence[int]) -> Self:
        """Raises UserError for a model without experts, ContextOverflow for a text that does not
        fit.
        """
        model = model_here(model)
        if not isinstance(model, TransformersModel) or not (modules := _expert_modules(model)):
            raise UserError(
                f"{model.name}: this model has no mixture of experts; each token goes through the "
                "one MLP of each layer"
            )
        model.check_text(ids)
        layers = _run(model, ids, modules)
        if not layers:
            raise UserError(
                f"{model.name}: this kind of model does not hand on which experts it chose"
            )
        return cls(tuple(map(model.piece, ids)), layers)

    @property
    def sentence(self) -> str:
        first, count = self.layers[0], len(self.layers)
        return (
            f"The experts of {len(self.texts):,} tokens in {count} layer{'s' * (count > 1)}: "
            f"{len(first.experts[0])} of {first.count} compute for each token"
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": layer.layer,
                "experts": layer.count,
                "tokens": [
                    [{"expert": e, "weight": w} for e, w in zip(*pair, strict=True)]
                    for pair in zip(layer.experts, layer.weights, strict=True)
                ],
            }
            for layer in self.layers
        ]


def _expert_modules(model: TransformersModel) -> dict[int, Any]:
    """The modules that are a layer's experts, by layer."""
    modules: dict[int, Any] = {}
    for name, module in model.network.named_modules():
        place = re.search(r"\.(\d+)\.(?:.*\.)?experts$", name)
        if place is not None:
            modules[int(place[1])] = module
    return modules


@torch.inference_mode()
def _run(
    model: TransformersModel, ids: Sequence[int], modules: dict[int, Any]
) -> tuple[Routes, ...]:
    """One pass of the model; the routes of the layers whose experts take indices and weights."""
    routes: dict[int, Routes] = {}

    def note(layer: int, module: Any, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        tensors = [value for value in (*given, *more.values()) if isinstance(value, Tensor)]
        chosen = next((t for t in tensors if t.dtype == torch.int64), None)
        if chosen is None or tensors[-1].shape != chosen.shape:
            return
        size = chosen.shape[-1]
        indices, weights = (t.reshape(-1, size)[-len(ids) :] for t in (chosen, tensors[-1]))
        weights, order = weights.float().sort(dim=-1, descending=True)
        routes[layer] = Routes(
            layer,
            int(module.num_experts),
            tuple(map(tuple, indices.gather(1, order).tolist())),
            tuple(map(tuple, weights.tolist())),
        )

    with model.lock:
        hooks = [
            module.register_forward_pre_hook(
                lambda module, given, more, layer=layer: note(layer, module, given, more),
                with_kwargs=True,
            )
            for layer, module in modules.items()
        ]
        try:
            tokens = torch.tensor([[*model.start, *ids]], device=model.device)
            model.network(input_ids=tokens, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    return tuple(routes[layer] for layer in sorted(routes))
