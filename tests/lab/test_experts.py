"""The experts that are shown are those that routers of transformers chose, in each family."""

import pytest
import torch
from random_models import save_random, view_of

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.models.loading import load_model
from chatapp.lab.views.architecture_views import Experts

IDS = torch.randint(1, 340, (12,), generator=torch.Generator().manual_seed(2)).tolist()
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}
FAMILIES = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 6, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {"num_experts": 6, "head_dim": 8, "mlp_only_layers": [0]},
    "olmoe": {"num_experts": 5},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory, bpe):
    folder = tmp_path_factory.mktemp("experts")
    save_random(folder, request.param, bpe, **_SIZES | FAMILIES[request.param])
    loaded = load_model(str(folder))
    assert isinstance(loaded, TransformersModel)
    return loaded


def test_the_routers_chose_them(model):
    chosen = []
    routers = [
        module for module in model.network.modules() if type(module).__name__.endswith("Router")
    ]
    hooks = [
        router.register_forward_hook(lambda _, __, output: chosen.append((output[2], output[1])))
        for router in routers
    ]
    with torch.no_grad():
        plain = model.network(torch.tensor([IDS])).logits
    for hook in hooks:
        hook.remove()
    found = view_of(Experts, model, IDS)
    assert len(found.layers) == len(chosen) == len(routers)
    for layer, (experts, weights) in zip(found.layers, chosen, strict=True):
        assert layer.count > 2
        for place in range(len(IDS)):
            theirs = dict(zip(experts[place].tolist(), weights[place].tolist(), strict=True))
            ours = dict(zip(layer.experts[place], layer.weights[place], strict=True))
            assert ours == pytest.approx(theirs, abs=1e-5)
            assert list(layer.weights[place]) == sorted(layer.weights[place], reverse=True)
    with torch.no_grad():
        assert torch.equal(model.network(torch.tensor([IDS])).logits, plain)


def test_a_layer_without_experts_is_not_among_them(model):
    is_first_dense = model.network.config.model_type == "qwen3_moe"
    layers = [layer.layer for layer in view_of(Experts, model, IDS).layers]
    assert layers == [1] if is_first_dense else [0, 1]


def test_a_model_without_experts_says_so(local):
    with pytest.raises(UserError, match="has no mixture of experts"):
        view_of(Experts, local, IDS)
