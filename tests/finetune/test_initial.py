"""The first weights: positions in step, and heads that look back from the start."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from finetune.initial import begin, position_dimensions, sinusoids


def begun(hidden: int, heads: int, positions: int = 256) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=97,
            n_positions=positions,
            n_embd=hidden,
            n_layer=2,
            n_head=heads,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    begin(model)
    model.set_attn_implementation("eager")
    return model.eval()


@torch.no_grad()
def test_the_first_heads_look_back_at_any_position() -> None:
    model = begun(hidden=192, heads=6)
    ids = torch.randint(97, (1, 250), generator=torch.Generator().manual_seed(1))
    first_block = model(ids, output_attentions=True).attentions[0][0]
    for head, steps in ((0, 1), (1, 1), (2, 2)):
        found = first_block[head].argmax(-1)[steps:]
        expected = torch.arange(250 - steps)
        assert (found == expected).float().mean() > 0.9
    # The others are as GPT-2 begins: they look everywhere.
    assert first_block[5].max(-1).values[50:].max() < 0.2


@torch.no_grad()
def test_what_comes_again_is_copied_before_any_training() -> None:
    model = begun(hidden=192, heads=6)
    once = torch.randperm(97, generator=torch.Generator().manual_seed(1))[None, :90]
    logits = model(torch.cat([once, once], dim=1)).logits[0]
    right = logits[:-1].argmax(-1) == torch.cat([once, once], dim=1)[0, 1:]
    assert right[:89].float().mean() < 0.1
    assert right[90:].float().mean() > 0.75


def test_positions_leave_the_other_dimensions_to_the_token() -> None:
    decoder = begun(hidden=192, heads=6).transformer
    first = position_dimensions(192)
    assert first == 64
    assert decoder.wte.weight.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert decoder.wpe.weight[:, :first].std().item() > 192**-0.5
    assert not decoder.wpe.weight[:, first:].any()


def test_one_step_is_the_same_everywhere() -> None:
    vectors = sinusoids(1024, 192)
    nearness = vectors @ vectors.T
    for distance in (0, 1, 5):
        found = nearness.diagonal(distance)
        assert torch.allclose(found, found[0].expand_as(found), atol=1e-4)


@pytest.mark.parametrize(("hidden", "heads"), [(16, 1), (16, 2), (15, 3), (8, 8)])
def test_small_and_odd_shapes(hidden: int, heads: int) -> None:
    model = begun(hidden, heads, positions=16)
    assert torch.isfinite(model(torch.arange(16)[None]).logits).all()
