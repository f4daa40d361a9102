"""Scores of heads are what their formulas say of transformers' own weights, in every family."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from family_shapes import SHAPES, make_family
from hooked import blocks_of, parts_of

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.local import load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.heads import (
    Sums,
    add_random,
    add_text,
    copying_scores,
    random_repeats,
    sample_texts,
)
from chatapp.lab.views.head_views import MEASURES, HeadScores, score_heads

START = [7, 8]
RANDOM = [[3, 5, 9, 2, 11, 4] * 2, [21, 22, 23, 24, 25, 26] * 2]
TEXTS = [[1, 2, 3, 1, 2, 3, 3, 3, 5, 1, 2], [4, 6, 4, 6, 6, 9], [5, 6]]


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    return load_decoder(ModelFiles.read(folder)), reference


def weights_of(reference, ids):
    """(layers, heads, tokens, tokens) of the tokens after `START`."""
    with torch.no_grad():
        output = reference(torch.tensor([[*START, *ids]]), output_attentions=True)
    weights = torch.stack(output.attentions)[:, 0].double().numpy()
    return weights[:, :, len(START) :, len(START) :]


def means(rows):
    """The mean over all tokens of all rows of (layers, heads) in each place."""
    return np.mean([value for row in rows for value in row], axis=0)


def scores_of(decoder, add, rows):
    """What one kind of measure says of rows."""
    sums = Sums(decoder)
    for row in rows:
        add(sums, decoder, [*START, *row], len(START))
    return sums.means()


def test_scores_on_random_tokens(pair):
    ours, reference = pair
    scores = scores_of(ours, add_random, RANDOM)
    seen = [weights_of(reference, row) for row in RANDOM]
    half = len(RANDOM[0]) // 2
    second = range(half, 2 * half)
    expected = {
        "previous": means([[a[:, :, i, i - 1] for i in range(1, 2 * half)] for a in seen]),
        "duplicate": means([[a[:, :, i, i - half] for i in second] for a in seen]),
        "induction": means([[a[:, :, i, i - half + 1] for i in second] for a in seen]),
    }
    assert scores.keys() == expected.keys()
    for name, values in expected.items():
        assert np.allclose(scores[name], values, atol=1e-5), name


def test_scores_on_text(pair):
    ours, reference = pair
    scores = scores_of(ours, add_text, TEXTS)
    rows = {name: [] for name in scores}
    for ids in TEXTS:
        a = weights_of(reference, ids)
        for values in rows.values():
            values.append([])
        for i in range(1, len(ids)):
            row = a[:, :, i]
            distance = sum(row[:, :, j] * (i - j) for j in range(i))
            squares = sum(row[:, :, j] * (i - j) ** 2 for j in range(i))
            logs = np.log2(row, where=row > 0, out=np.zeros_like(row))
            rows["self"][-1].append(row[:, :, i])
            rows["previous_text"][-1].append(row[:, :, i - 1])
            rows["entropy"][-1].append(-(row * logs).sum(-1))
            rows["distance"][-1].append(distance)
            rows["spread"][-1].append(squares - distance**2)
            places = [j for j in range(i - 1) if ids[j] == ids[i]]
            if places:
                rows["induction_text"][-1].append(sum(row[:, :, j + 1] for j in places))
    assert len(rows) == 6
    for name, values in rows.items():
        assert np.allclose(scores[name], means(values), atol=1e-4), name


def test_copying_is_that_of_the_whole_matrix(pair):
    ours, reference = pair
    shape = ours.architecture
    embedding = reference.get_input_embeddings().weight.double().detach()
    output = reference.get_output_embeddings().weight.double().detach()
    centring = torch.eye(shape.width).double()
    if shape.norm == "LayerNorm":
        centring -= 1 / shape.width
    final = reference.base_model
    final_norm = getattr(final, "norm", None) or final.final_layer_norm
    scores = copying_scores(ours)
    size, kv = shape.head_size, shape.key_value_heads
    gamma = lambda norm: (norm.weight.double().detach() + shape.norm_offset).diag()  # noqa: E731
    for layer, block in enumerate(blocks_of(reference)):
        projection, _, _ = parts_of(block)
        attention = getattr(block, "self_attn", None) or block.attention
        if hasattr(attention, "v_proj"):
            values = attention.v_proj.weight
        else:  # GPT-NeoX: of each head its query, key and value
            values = attention.query_key_value.weight.view(kv, 3, size, -1)[:, 2]
        values = values.double().detach().view(kv, size, shape.width)
        after = torch.eye(shape.width).double()
        if shape.has_norms_after:
            after = gamma(block.post_attention_layernorm)
        for head in range(shape.heads):
            v = values[head // (shape.heads // kv)]
            w = projection.weight.double().detach()[:, head * size : (head + 1) * size]
            read = embedding @ (gamma(block.input_layernorm) @ centring).T
            write = output @ gamma(final_norm) @ centring @ after @ w
            eigenvalues = torch.linalg.eigvals(write @ v @ read.T)
            expected = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
            assert scores[layer, head] == pytest.approx(expected, abs=1e-3)


def test_random_tokens_are_no_special_ones(local):
    rows = random_repeats(local, 12, 3, 0)
    assert len(rows) == 3
    assert all(row[:12] == row[12:] for row in rows)
    assert local.tokenizer.end_id not in {id for row in rows for id in row}
    assert rows == random_repeats(local, 12, 3, 0) != random_repeats(local, 12, 3, 1)
    few = {local.tokenizer.end_id, 5, 7}
    assert {id for row in random_repeats(local, 12, 3, 0, few) for id in row} == {5, 7}


def test_all_heads_of_a_model_by_all_measures(local):
    seen = []
    texts = ["The quick brown fox.", "A naïve café owner, a naïve café owner."]
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    scores = score_heads(local, texts, length=20, progress=progress)
    assert seen == [(n, 7) for n in range(7)]
    assert list(scores.values) == list(MEASURES)
    assert all(np.isfinite(value).all() for value in scores.values.values())
    rows = scores.to_json()
    assert len(rows) == math.prod(scores.shape)
    induction = [row["induction"] for row in rows]
    assert induction == sorted(induction, reverse=True)
    again = score_heads(local, texts, length=20)
    assert all(np.array_equal(again.values[name], scores.values[name]) for name in MEASURES)
    assert again.reading == scores.reading
    compared = replace(scores, against=again, sorted_by="entropy")
    assert all(row["change"]["entropy"] == 0 for row in compared.to_json())


def made(induction, **more):
    values = dict.fromkeys(MEASURES, np.zeros_like(np.array(induction)))
    return HeadScores("a", values | {"induction": np.array(induction)}, **more)


def test_order_names_and_changes():
    scores = made([[0.1, 0.9], [0.5, 0.2]])
    assert scores.order == [(0, 1), (1, 0), (1, 1), (0, 0)]
    assert [scores.called(*place) for place in scores.order] == ["induction", "induction", "", ""]
    assert "0.1 has the largest induction score, 0.90" in scores.reading
    moved = replace(scores, against=made([[0.1, 0.8], [0.9, 0.2]]))
    assert moved.order[:2] == [(1, 0), (0, 1)]
    assert moved.to_json()[0]["change"]["induction"] == pytest.approx(-0.4)
    assert "1.0 moved most, by -0.40" in moved.reading
    with pytest.raises(UserError, match="'inductions' is not a measure of a head; expected one of"):
        made([[0.1]], sorted_by="inductions")


def test_a_file_of_texts(tmp_path):
    assert len(sample_texts()) > 20
    path = tmp_path / "texts.txt"
    path.write_text("One.\nstill one\n\n\nTwo.\n")
    assert sample_texts(path) == ["One.\nstill one", "Two."]
    path.write_text(" \n\n")
    with pytest.raises(UserError, match="no text in this file"):
        sample_texts(path)
