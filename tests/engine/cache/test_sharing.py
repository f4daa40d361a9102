"""Scoring computes what rows share once, and what it finds does not depend on that."""

import random

import pytest
from random_models import logits_of

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.cache.key_values import PrefixTree
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling


def expected(model, pair):
    context, continuation = pair
    rows = logits_of(model, [*context, *continuation]).log_softmax(-1)
    return [float(rows[len(context) - 1 + n, id]) for n, id in enumerate(continuation)]


def branching(seed, n):
    """Rows that leave a common text at any place, cut into context and continuation anywhere."""
    draw = random.Random(seed)
    trunk = [draw.randrange(340) for _ in range(60)]
    pairs = []
    for _ in range(n):
        row = trunk[: draw.randrange(1, 50)] + [
            draw.randrange(340) for _ in range(draw.randrange(1, 11))
        ]
        cut = draw.randrange(1, len(row))
        pairs.append((row[:cut], row[cut:]))
    # The same row twice, a row within another, and the same row cut at other places.
    pairs += [
        pairs[0],
        (trunk[:3], trunk[3:40]),
        (trunk[:39], trunk[39:40]),
        (trunk[:1], trunk[1:40]),
    ]
    draw.shuffle(pairs)
    return pairs


def prompt_with_labels():
    prompt = list(range(100, 140))
    return [(prompt, label) for label in ([1], [2, 3], [2, 4, 5], [6, 7, 8, 9])]


@pytest.fixture(params=["local", "transformers"])
def model(request, gpt2):
    kind = LocalModel if request.param == "local" else TransformersModel
    return kind.load(ModelFiles.read(gpt2[0]))


def computed(model, monkeypatch):
    """How many tokens each pass of the model computes, as they happen."""
    sizes = []
    if isinstance(model, LocalModel):
        hidden = model.decoder.hidden

        def counted(ids, *rest, **more):
            sizes.append(len(ids[0]))
            return hidden(ids, *rest, **more)

        monkeypatch.setattr(model.decoder, "hidden", counted)
    else:
        model.network.register_forward_pre_hook(
            lambda _, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
    return sizes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch_tokens", [3, 40, 256])
def test_rows_that_branch_anywhere(model, gpt2, seed, batch_tokens):
    if isinstance(model, LocalModel):
        model.batch_tokens = batch_tokens
    elif batch_tokens != 256:
        pytest.skip("it computes row by row")
    pairs = branching(seed, 30)
    for _ in range(2):  # the second time with a cache that holds much of it
        for pair, found in zip(pairs, model.score(pairs), strict=True):
            assert found == pytest.approx(expected(gpt2[1], pair), abs=1e-4)


def test_a_prompt_is_computed_once_for_all_its_labels(model, monkeypatch):
    sizes = computed(model, monkeypatch)
    model.score(prompt_with_labels())
    if isinstance(model, LocalModel):
        # Its 40 tokens, and of the labels all but the last token, where they differ.
        assert sizes == [40 + 0 + 1 + 1 + 3]
    else:
        # Row by row; what predicts the first token of a label is computed for each.
        assert sizes == [40, 1 + 1, 1 + 2, 1 + 3]
    sizes.clear()
    other = [([*range(100, 130), *range(150, 160)], [1, 2])]
    model.score(other)
    assert sizes == [11]


def test_scoring_and_generating_share_one_cache(model):
    pairs = prompt_with_labels()
    greedy = Sampling(temperature=0.0, max_tokens=5)
    alone = list(model.generate(Request(pairs[0][0], greedy)))
    model.forget()
    model.score(pairs)
    after = list(model.generate(Request(pairs[0][0], greedy)))
    assert [event.id for event in after if isinstance(event, Token)] == [
        event.id for event in alone if isinstance(event, Token)
    ]
    assert isinstance(after[-1], Finished)
    assert after[-1].reused_tokens == 39


def test_a_pass_that_fails_leaves_no_half_cache(model, gpt2, monkeypatch):
    pairs = branching(5, 20)
    model.score(pairs)

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        if isinstance(model, LocalModel):
            patch.setattr(model.decoder.blocks[1].__class__, "__call__", fail)
        else:
            patch.setattr(model.network, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            model.score(branching(6, 20))
    for pair, found in zip(pairs, model.score(pairs), strict=True):
        assert found == pytest.approx(expected(gpt2[1], pair), abs=1e-4)


def test_the_mask_lets_a_token_see_its_own_row_alone():
    tree = PrefixTree([7, 8])
    assert tree.mask() is None
    assert tree.add([7, 8, 1, 2]) == [0, 1, 2, 3]
    assert tree.mask() is None  # one row is plainly causal
    assert tree.add([7, 8, 1, 3, 4]) == [0, 1, 2, 4, 5]
    assert tree.add([7, 9]) == [0, 6]
    assert tree.ids == [1, 2, 3, 4, 9]
    assert tree.positions == [2, 3, 3, 4, 1]
    mask = tree.mask()
    assert [row.nonzero().flatten().tolist() for row in mask.exp()] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 4],
        [0, 1, 2, 4, 5],
        [0, 6],
    ]
