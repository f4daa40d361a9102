"""`chatapp inspect` with BERT and its relatives: the model's own numbers, and what is refused."""

import json

import numpy as np
import pytest
import tiny_masked
import torch
from transformers import AutoModelForMaskedLM

from chatapp.engine.errors import ModelError
from chatapp.engine.models.loading import load_model

TEXT = "the capital of france is [MASK]."
IDS = [2, 5, 6, 7, 8, 9, 4, 20, 3]


def inspected(run, *arguments):
    """The JSON document of `chatapp inspect`."""
    return json.loads(run("inspect", *map(str, arguments), "--json").out)


@pytest.mark.parametrize("kind", tiny_masked.KINDS)
def test_candidates_attention_and_layers_are_the_models_own(tmp_path, run, kind):
    tiny_masked.save(tmp_path, kind)
    found = inspected(run, TEXT, "--model", tmp_path, "--top", 30)
    network = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        output = network(torch.tensor([IDS]), output_attentions=True)
    shares = output.logits[0, 6].softmax(0)
    falling = pytest.approx(sorted(shares.tolist())[::-1], rel=1e-4)
    candidates = found["mask"]["candidates"]
    assert [c["id"] for c in candidates] == shares.argsort(descending=True).tolist()
    assert [c["probability"] for c in candidates] == falling
    weights = torch.stack(output.attentions)[:, 0, :, 6, 1:-1]
    np.testing.assert_allclose(found["attention"], weights, atol=1e-5)
    last = found["layers"][-1]["alternatives"]
    assert [c["probability"] for c in last] == falling
    assert found["layers"][0]["alternatives"] != last
    # A visible token is scored where it is masked itself.
    masked = torch.tensor([[*IDS[:2], 4, *IDS[3:]]])
    with torch.no_grad():
        share = network(masked).logits[0, 2].softmax(0)[6]
    assert found["tokens"][1]["probability"] == pytest.approx(float(share), rel=1e-4)
    assert found["tokens"][5]["probability"] is None


def test_a_token_of_the_text_is_masked(tmp_path, run):
    model = tiny_masked.save(tmp_path)
    text = "the capital of france is rome."
    found = inspected(run, text, "--model", tmp_path, "--token", 3)
    ids = torch.tensor([[2, 5, 6, 7, 4, 9, 11, 20, 3]])
    with torch.no_grad():
        share = model(ids).logits[0, 4].softmax(0)[8]
    assert found["mask"]["actual"]["text"] == "france"
    assert found["mask"]["actual"]["probability"] == pytest.approx(float(share), rel=1e-4)


def test_what_a_masked_model_cannot_do_is_one_sentence(tmp_path, run):
    tiny_masked.save(tmp_path)
    with pytest.raises(ModelError, match=r"writes no replies; `chatapp inspect .* \[MASK\]"):
        load_model(str(tmp_path))

    def refused(*arguments):
        return run("inspect", *map(str, arguments), "--model", str(tmp_path)).err

    assert "the text has no mask; write [MASK]" in refused("a cat")
    assert "--token is 9; the text has 2" in refused("a cat", "--token", 9)
    assert "only tokens, next, attention, layers are shown" in refused("why", TEXT)
    assert "the text has 61 tokens, and the model reads 38" in refused("a cat sat " * 20 + "[MASK]")
