"""The texts of a head are those where its weights on earlier tokens are largest."""

import numpy as np
import pytest

from chatapp.common.userfiles import UserError
from chatapp.lab.heads import texts_of_head
from chatapp.lab.inspectable import inspectable
from chatapp.lab.views.head_views import HeadTexts

TEXTS = ["The quick brown fox jumps.", "Hello, who are you?", "A café, a café.", "naïve", "the"]


@pytest.mark.parametrize("head", [(0, 1), (1, 3)])
def test_texts_are_ordered_by_the_largest_weights(local, head):
    found = HeadTexts(*head, texts_of_head(local, *head, TEXTS, top=3))
    opened = inspectable(local)
    assert opened is not None
    strengths = {}
    for text in TEXTS:
        ids = local.tokenizer.encode(text)
        if len(ids) < 3:
            continue
        trace = opened.inspect(ids)
        a = trace.attentions()[head]
        best = [max(a[i, j] for j in range(1, i)) for i in range(2, len(ids))]
        strengths[trace.texts] = float(np.mean(best))
    expected = sorted(strengths, key=lambda texts: -strengths[texts])[:3]
    assert [row.texts for row in found.rows] == expected
    for row in found.rows:
        assert row.strength == pytest.approx(strengths[row.texts], abs=1e-5)
        first = row.links[0]
        assert 0 < first.target < first.source
        assert row.weights[first.target] == pytest.approx(first.weight)
        assert sum(row.weights) == pytest.approx(1, abs=1e-5)
        assert [link.weight for link in row.links] == sorted(
            (link.weight for link in row.links), reverse=True
        )
    assert len(found.to_json()) == 3
    assert f"{head[0]}.{head[1]}" in found.reading


def test_what_cannot_be_shown_is_refused(local):
    with pytest.raises(UserError, match=r"2\.0: the model has 2 layers of 4 heads"):
        texts_of_head(local, 2, 0, TEXTS)
    with pytest.raises(UserError, match="at least three tokens"):
        texts_of_head(local, 0, 0, ["a"])
