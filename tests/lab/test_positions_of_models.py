"""Positions switched off and shuffled are transformers' own model with other position_ids."""

import pytest
import torch
from family_shapes import make_family

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.tokenizers import BPETokenizer
from chatapp.lab.views.architecture_views import Positions

TEXT, OTHER = [5, 17, 93, 5, 41, 18], [5, 41, 93, 5, 17, 18]


@pytest.fixture(scope="module", params=["gpt2", "llama, shared keys, tied"])
def pair(request, tmp_path_factory, bpe, make_gpt2):
    if request.param == "gpt2":
        folder, reference = make_gpt2()
    else:
        folder = tmp_path_factory.mktemp("family")
        reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    decoder = load_decoder(ModelFiles.read(folder))
    return LocalModel(decoder, BPETokenizer(bpe, 0), name="a"), reference


def log_probabilities(reference, ids, places):
    with torch.no_grad():
        output = reference(
            torch.tensor([ids]),
            position_ids=places[None],
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            use_cache=False,
        )
    row = output.logits[0, -1, :340].double().log_softmax(-1)
    return row


def kl(before, after):
    return float((before.exp() * (before - after)).sum())


def test_each_kind_of_positions_is_transformers(pair):
    model, reference = pair
    found = Positions.of(model, TEXT, OTHER)
    size = len(TEXT)
    usual = torch.arange(size)
    shuffled = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    plain, permuted = (
        [log_probabilities(reference, ids, places) for ids in (TEXT, OTHER)]
        for places in (usual, shuffled)
    )
    embeddings = getattr(reference.base_model, "wpe", None)
    if embeddings is None:
        off = [log_probabilities(reference, ids, 0 * usual) for ids in (TEXT, OTHER)]
    else:
        undo = embeddings.register_forward_hook(lambda _, __, output: torch.zeros_like(output))
        off = [log_probabilities(reference, ids, usual) for ids in (TEXT, OTHER)]
        undo.remove()
    for row, (first, second) in zip(found.rows, (plain, off, permuted), strict=True):
        assert row.apart == pytest.approx(kl(first, second), abs=2e-5, rel=1e-3)
        assert row.change == pytest.approx(kl(plain[0], first), abs=2e-5, rel=1e-3)
        probabilities = [each.probability for each in row.first]
        assert probabilities == pytest.approx(first.exp().topk(5).values.tolist(), abs=1e-4)
    assert found.rows[0].change == pytest.approx(0, abs=1e-6)
    assert found.rows[1].change > 1e-4
    assert found.kind == ("rotations" if embeddings is None else "embeddings")


def test_alike_positions(pair):
    model, reference = pair
    found = Positions.of(model, TEXT, OTHER).similarity
    embeddings = getattr(reference.base_model, "wpe", None)
    for distance, value in found.items():
        if embeddings is not None:
            table = embeddings.weight.detach()
            expected = torch.cosine_similarity(table[:-distance], table[distance:]).mean()
        else:
            expected = (distance * reference.base_model.rotary_emb.inv_freq).cos().mean()
        assert value == pytest.approx(float(expected), abs=1e-4)
    assert found[1] > -1
