"""The Jacobian lens is what autograd makes of transformers' own model, and goes on after a kill."""

from pathlib import Path
from typing import Any

import pytest
import torch
from family_shapes import make_family
from hooked import blocks_of
from torch import Tensor

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED, BUNDLED_FOLDER, BUNDLED_LENS
from chatapp.engine.tokenizers.byte_level import BPETokenizer
from chatapp.lab.divergence import Divergence
from chatapp.lab.inspectable import inspectable
from chatapp.lab.lens import SKIPPED, compute_lens, find_lens, lens_path

Pair = tuple[LocalModel, Any]

FAMILIES = ["llama, shared keys, tied", "llama, one key"]
TEXTS = [
    torch.randint(1, 300, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (SKIPPED + 3, SKIPPED, SKIPPED + 2)
]


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("chatapp.lab.lens.data_dir", lambda: tmp_path / "data")


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bpe: Any
) -> Pair:
    folder = tmp_path_factory.mktemp("family")
    reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    decoder = load_decoder(ModelFiles.read(folder))
    return LocalModel(decoder, BPETokenizer(bpe, 0), name="a"), reference


def states_of(reference: Any, ids: list[int]) -> list[Tensor]:
    """The states before each block and after the last, (tokens, width), with their graph."""
    blocks, seen, undo = blocks_of(reference), [], []
    for block in blocks:
        undo.append(block.register_forward_pre_hook(lambda _, given: seen.append(given[0]) or None))
    undo.append(
        blocks[-1].register_forward_hook(
            lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
    )
    try:
        reference(torch.tensor([ids]), use_cache=False)
    finally:
        for each in undo:
            each.remove()
    return seen


def jacobians_of(reference: Any, texts: list[list[int]]) -> Tensor:
    """The definition, one derivative after the other: every later token at every earlier one."""
    total, count = None, 0
    for ids in texts:
        *states, final = states_of(reference, ids)
        width = final.shape[-1]
        for later in range(SKIPPED, len(ids)):
            rows = []
            for number in range(width):
                one = final.view(-1, width)[later, number]
                of_one = torch.autograd.grad(one, states, retain_graph=True)
                rows.append(
                    torch.stack([g.view(-1, width)[SKIPPED : later + 1].sum(0) for g in of_one])
                )
            added = torch.stack(rows, 1)
            total = added if total is None else total + added
        count += max(0, len(ids) - SKIPPED)
    assert total is not None
    return total / count


def test_it_is_the_mean_of_all_derivatives(pair: Pair, tmp_path: Path) -> None:
    model, reference = pair
    lens = compute_lens(model, TEXTS, tmp_path / "lens.safetensors")
    expected = jacobians_of(reference, TEXTS)
    assert lens.positions == 5
    assert lens.jacobians.shape == expected.shape
    # It is kept with eleven bits a number.
    assert torch.allclose(lens.jacobians, expected, rtol=2e-3, atol=2e-3 * float(expected.std()))


def test_layers_show_what_it_predicts(pair: Pair) -> None:
    model, reference = pair
    assert find_lens(model) is None
    opened = inspectable(model)
    assert opened is not None
    assert opened.inspect(TEXTS[0]).jacobian(3) == []
    lens = compute_lens(model, TEXTS, lens_path(model))
    trace = opened.inspect(TEXTS[0])
    with torch.no_grad():
        width = reference.config.hidden_size
        *states, final = (each.view(-1, width) for each in states_of(reference, TEXTS[0]))
        norm, head = reference.base_model.norm, reference.get_output_embeddings()
        moved = [j @ state[4] for j, state in zip(lens.jacobians, states, strict=True)]
        expected = head(norm(torch.stack([*moved, final[4]])))
    logits = trace.jacobian_logits(4)
    assert logits is not None
    assert torch.allclose(logits, expected[:, : logits.shape[1]], atol=1e-3)
    assert len(trace.jacobian(4)) == len(trace.lens(4))
    assert trace.jacobian(4)[-1] == trace.lens(4)[-1]


def test_a_killed_computation_goes_on(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = pair
    monkeypatch.setattr("chatapp.lab.lens.SAVED_EVERY", -1.0)
    texts = [*TEXTS, [*reversed(TEXTS[0])]]
    whole = compute_lens(model, texts, tmp_path / "whole.safetensors")
    path = tmp_path / "lens.safetensors"

    def kill(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_lens(model, texts, path, kill)
    assert not path.exists()
    steps: list[tuple[int, int]] = []
    lens = compute_lens(model, texts, path, lambda done, total: steps.append((done, total)))
    assert steps == [(2, 3), (3, 3)]
    assert torch.equal(lens.jacobians, whole.jacobians)
    assert sorted(file.name for file in tmp_path.glob("*.*")) == [
        "lens.safetensors",
        "whole.safetensors",
    ]


def test_texts_without_enough_tokens_are_refused(pair: Pair, tmp_path: Path) -> None:
    model, _ = pair
    with pytest.raises(UserError, match=f"no text has more than {SKIPPED} tokens"):
        compute_lens(model, TEXTS[1:2], tmp_path / "lens.safetensors")


def test_the_bundled_lens_is_nearer_to_the_answer_at_the_embeddings() -> None:
    model = load_model(BUNDLED)
    assert (BUNDLED_FOLDER / BUNDLED_LENS).stat().st_size < 500_000
    opened = inspectable(model)
    assert opened is not None
    ids = model.tokenizer.encode("Once upon a time there was a little girl who lived in a house.")
    trace = opened.inspect(ids)
    nats = []
    for position in range(2, len(ids), 3):
        plain, moved = trace.layer_logits(position), trace.jacobian_logits(position)
        assert moved is not None
        answer = plain[-1].log_softmax(-1)
        both = (rows[0].log_softmax(-1) for rows in (plain, moved))
        nats.append([float((answer.exp() * (answer - row)).sum()) for row in both])
    by_logit_lens, by_jacobian_lens = torch.tensor(nats).mean(0).tolist()
    assert by_jacobian_lens < 0.7 * by_logit_lens


def test_layers_of_two_models_diverge_by_their_kl(
    tmp_path_factory: pytest.TempPathFactory, bpe: Any
) -> None:
    folder = tmp_path_factory.mktemp("base")
    base_reference = make_family(FAMILIES[0], folder)
    tuned_folder = tmp_path_factory.mktemp("tuned")
    tuned_reference = make_family(FAMILIES[0], tuned_folder)
    with torch.no_grad():
        for parameter in blocks_of(tuned_reference)[1].parameters():
            parameter += 0.05 * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
    tuned_reference.save_pretrained(tuned_folder)
    base, tuned = (
        LocalModel(load_decoder(ModelFiles.read(where)), BPETokenizer(bpe, 0), name=name)
        for name, where in (("base", folder), ("tuned", tuned_folder))
    )
    text = "The quick brown fox likes the small café"
    found = Divergence.of(tuned, base, text)
    ids = base.tokenizer.encode(text)
    logprobs = []
    for reference in (base_reference, tuned_reference):
        with torch.no_grad():
            states = torch.stack([s.view(len(ids), -1) for s in states_of(reference, ids)])
            logits = reference.get_output_embeddings()(reference.base_model.norm(states))
        logprobs.append(logits[..., : base.vocabulary].double().log_softmax(-1))
    before, after = logprobs
    expected = (before.exp() * (before - after)).sum(-1).mean(1)
    assert list(found.logit) == pytest.approx(expected.tolist(), abs=1e-4)
    assert found.logit[:2] == pytest.approx((0, 0), abs=1e-6)
    assert found.logit[2] > 0.001
    assert (found.steepest, found.jacobian) == ("1", ())
    assert Divergence.of(base, base, text).logit == pytest.approx([0] * len(found.logit), abs=1e-6)
