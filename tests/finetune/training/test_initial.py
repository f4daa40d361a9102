"""The first weights: positions in step, and heads that look back and copy from the start."""

import random

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from finetune.training.initial_weights import plant_heads, position_dimensions, sinusoids

VOCABULARY = 997


def begun(hidden: int, heads: int, positions: int = 256) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=positions,
            n_embd=hidden,
            n_layer=2,
            n_head=heads,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    plant_heads(model)
    model.set_attn_implementation("eager")
    return model.eval()


@torch.no_grad()
def test_the_first_heads_look_back_at_any_position() -> None:
    model = begun(hidden=192, heads=6)
    ids = torch.randint(97, (1, 250), generator=torch.Generator().manual_seed(1))
    first_block = model(ids, output_attentions=True).attentions[0][0]
    for head, steps in ((0, 1), (1, 2)):
        found = first_block[head].argmax(-1)[steps:]
        assert (found == torch.arange(250 - steps)).float().mean() > 0.99
    # One looks at many near tokens at once, and hardly at any far away.
    many = first_block[2][50:]
    near = [row[at - 15 : at + 1].sum().item() for at, row in enumerate(many, 50)]
    assert min(near) > 0.6
    assert many.max() < 0.5
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


def recalled(model: GPT2LMHeadModel, words: int, seed: int) -> bool:
    """Whether the likeliest token is the label of the one text of four that comes again.

    "a b w w w w c d LABEL e" four times, of other words and labels each, then one of them
    again with a word changed.
    """
    draw = random.Random(seed)
    texts = [draw.sample(range(20, VOCABULARY), words) for _ in range(4)]
    labels = draw.sample(range(20, VOCABULARY), 4)
    ids: list[int] = []
    for text, label in zip(texts, labels, strict=True):
        ids += [1, 2, *text, 3, 4, label, 5]
    text, label = draw.choice(list(zip(texts, labels, strict=True)))
    text[draw.randrange(words)] = draw.randrange(20, VOCABULARY)
    ids += [1, 2, *text, 3, 4]
    last: Tensor = model(torch.tensor([ids])).logits[0, -1]
    return int(last.argmax()) == label


@torch.no_grad()
@pytest.mark.parametrize(("words", "least"), [(4, 0.4), (8, 0.5)])
def test_the_label_of_a_like_text_is_copied_before_any_training(words: int, least: float) -> None:
    model = begun(hidden=192, heads=6)
    assert sum(recalled(model, words, seed) for seed in range(100)) / 100 > least


def test_positions_and_tokens_share_no_dimension() -> None:
    decoder = begun(hidden=192, heads=6).transformer
    first = position_dimensions(192)
    assert first == 64
    assert not decoder.wte.weight[:, :first].any()
    assert decoder.wte.weight[:, first:].std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert decoder.wpe.weight[:, :first].std().item() == pytest.approx(192**-0.5, rel=0.3)
    assert not decoder.wpe.weight[:, first:].any()


def test_one_step_is_the_same_everywhere() -> None:
    vectors = sinusoids(1024, 192)
    nearness = vectors @ vectors.T
    for distance in (0, 1, 5):
        found = nearness.diagonal(distance)
        assert torch.allclose(found, found[0].expand_as(found), atol=1e-4)


@pytest.mark.parametrize(("hidden", "heads"), [(16, 1), (16, 2), (15, 3), (8, 8), (64, 2), (64, 4)])
def test_small_and_odd_shapes(hidden: int, heads: int) -> None:
    model = begun(hidden, heads, positions=16)
    assert torch.isfinite(model(torch.arange(16)[None]).logits).all()
