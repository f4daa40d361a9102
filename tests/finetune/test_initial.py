"""The first weights: positions in step, and heads that look back from the start."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from finetune.initial import begin, sinusoids


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
        assert (found == expected).float().mean() > 0.95
    # The others are as GPT-2 begins: they look everywhere.
    assert first_block[5].max(-1).values[50:].max() < 0.2


def test_tokens_and_positions_begin_alike() -> None:
    decoder = begun(hidden=192, heads=6).transformer
    assert decoder.wte.weight.std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert 1 < decoder.wpe.weight.std().item() / decoder.wte.weight.std().item() < 1.5


def test_one_step_is_the_same_everywhere() -> None:
    vectors = sinusoids(1024, 192)
    nearness = vectors @ vectors.T
    for distance in (0, 1, 5):
        found = nearness.diagonal(distance)
        assert torch.allclose(found, found[0].expand_as(found), atol=1e-4)
    assert 1 < vectors.std() * 192**0.5 < 1.5


@pytest.mark.parametrize(("hidden", "heads"), [(16, 1), (16, 2), (15, 3), (8, 8)])
def test_small_and_odd_shapes(hidden: int, heads: int) -> None:
    model = begun(hidden, heads, positions=16)
    assert torch.isfinite(model(torch.arange(16)[None]).logits).all()
