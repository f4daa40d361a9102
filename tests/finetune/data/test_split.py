"""Keys of content, the held-out share, and passes: of the content and the seed alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from finetune.data.split import content_key, draw, is_held_out


@given(st.text(max_size=20))
def test_any_text_has_a_key(text):
    assert len(content_key(text)) == 16


def test_lone_surrogates_have_a_key():
    assert content_key("\ud800") != content_key("\ud801")


def test_the_held_out_share():
    keys = [content_key(number) for number in range(4000)]
    for share in (0.0, 0.05, 0.3):
        held = {key for key in keys if is_held_out(key, share)}
        assert abs(len(held) / len(keys) - share) < 0.025
        assert held <= {key for key in keys if is_held_out(key, share + 0.1)}
    assert not any(is_held_out(key, 0.0) for key in keys)


def test_weights_are_passes():
    documents = [np.array([i], dtype=np.int32) for i in range(10)]
    assert len(draw(documents, 2.5, seed=0)) == 25
    part = [int(d[0]) for d in draw(documents, 0.5, seed=0)]
    assert len(part) == len(set(part)) == 5
    assert part == [int(d[0]) for d in draw(documents, 0.5, seed=0)]
