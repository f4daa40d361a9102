"""What mattered in a prompt is what transformers' own gradients and masks say, in every family."""

import numpy as np
import pytest
import torch

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.prompt_parts import PartSpan, parts_of_segments, parts_of_text, rank_correlation
from chatapp.lab.views.prompt_part_view import attribute_prompt
from chatapp.prompting.messages import Segment

PROMPT = [5, 17, 93, 200, 41, 5, 18, 77, 123]
SPANS = [PartSpan("example 1", 0, 3), PartSpan("example 2", 3, 6), PartSpan("input", 6, 9)]


def masks(decoder, reference, hidden, size):
    """What transformers adds to scores where pairs (query, key) are hidden."""

    def of(window):
        mask = torch.zeros(1, 1, size, size)
        for query in range(size):
            for key in range(size):
                is_outside = window is not None and query - key >= window
                if key > query or is_outside or (query, key) in hidden:
                    mask[0, 0, query, key] = torch.finfo(torch.float32).min
        return mask

    kinds = getattr(reference.config, "layer_types", None)
    windows = [kind.window for kind in decoder.architecture.attentions]
    if kinds:
        return {kind: of(window) for kind, window in zip(kinds, windows, strict=True)}
    return of(windows[0])


def logprobs(pair, tokens, hidden):
    model, reference = pair
    mask = masks(model.decoder, reference, hidden, len(tokens))
    with torch.no_grad():
        output = reference(torch.tensor([tokens]), attention_mask=mask, use_cache=False)
    return output.logits[0].log_softmax(-1)


def explained(pair, answers, hidden):
    total = 0.0
    for answer, sign in zip(answers, (1, -1), strict=True):
        tokens = [9, *PROMPT, *answer[:-1]]
        rows = logprobs(pair, tokens, hidden)[len(PROMPT) :]
        total += sign * float(sum(row[id] for row, id in zip(rows, answer, strict=True)))
    return total


@pytest.mark.parametrize("answers", [[[7], [30]], [[7, 11], [30]]])
def test_effects_are_those_of_transformers(pair, answers):
    model, reference = pair
    found = attribute_prompt(model, PROMPT, SPANS, *answers)
    whole = explained(pair, answers, set())
    assert found.difference == pytest.approx(whole, abs=1e-3)

    total = torch.zeros(len(PROMPT))
    for answer, sign in zip(answers, (1, -1), strict=True):
        tokens = [9, *PROMPT, *answer[:-1]]
        embedded = reference.get_input_embeddings()(torch.tensor([tokens])).detach()
        embedded.requires_grad_()
        rows = reference(inputs_embeds=embedded, use_cache=False).logits[0].log_softmax(-1)
        picked = [rows[len(PROMPT) + n, id] for n, id in enumerate(answer)]
        (gradient,) = torch.autograd.grad(sum(picked), embedded)
        by_token = (gradient * embedded).sum(-1)[0].detach()
        total += sign * by_token[1 : 1 + len(PROMPT)]
    assert found.gradient == pytest.approx(total.tolist(), abs=1e-3)
    for part, span in zip(found.parts, SPANS, strict=True):
        assert part.gradient == pytest.approx(float(total[span.start : span.stop].sum()), abs=1e-3)

    end = len(PROMPT) + max(map(len, answers)) + 1
    last = len(PROMPT)
    singles = [PartSpan("", at, at + 1) for at in range(len(PROMPT))]
    effects = [*(part.occlusion for part in found.parts), *found.occlusion]
    for span, effect in zip([*SPANS, *singles], effects, strict=True):
        keys = range(span.start + 1, span.stop + 1)
        queries = range(min(span.stop + 1, last), end)
        hidden = {(query, key) for query in queries for key in keys if query != key}
        assert effect == pytest.approx(whole - explained(pair, answers, hidden), abs=1e-3), span


def test_the_likeliest_tokens_are_compared_by_default(local):
    ids = local.tokenizer.encode("The quick brown fox")
    best = local.logits(ids).topk(2).indices.tolist()
    seen = []
    found = attribute_prompt(
        local, ids, [], by_token=False, progress=lambda done, of: seen.append((done, of))
    )
    assert (found.answer, found.against) == tuple(map(local.piece, best))
    assert found.difference > 0
    assert seen == [(0, 1)]
    assert not found.occlusion
    assert found.rank_correlation is None
    other = attribute_prompt(local, ids, [], best[1:], by_token=False)
    assert other.difference == pytest.approx(-found.difference, abs=1e-4)


def test_the_example_that_mattered_most_is_named(local):
    ids = local.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
    spans = [
        PartSpan("instruction", 0, 2),
        PartSpan("example 1", 2, 5),
        PartSpan("example 2", 5, 8),
    ]
    found = attribute_prompt(local, ids, [*spans, PartSpan("input", 8, len(ids))])
    by_name = {part.part: part.occlusion for part in found.parts}
    best = max(("example 1", "example 2"), key=by_name.__getitem__)
    assert found.most_used.part == best
    assert best in found.reading
    document = found.to_json()
    assert [part["part"] for part in document["parts"]] == list(by_name)
    assert len(document["tokens"]) == len(ids)
    assert -1 <= document["rank_correlation"] <= 1


def test_what_cannot_be_explained_is_refused(local):
    with pytest.raises(UserError):
        attribute_prompt(local, [1] * 1000, [])
    with pytest.raises(ValueError, match=r"\S"):
        attribute_prompt(local, [], [])


def test_gradients_need_float32(make_gpt2):
    folder = make_gpt2()[0]
    model = LocalModel.load(ModelFiles.read(folder), precision="int8")
    with pytest.raises(ModelError, match="float32"):
        attribute_prompt(model, [1, 2, 3], [])


def test_an_example_ends_with_its_answer_where_fields_have_names(local):
    shown = [Segment("example", f" {text}", name) for text in "pq" for name in ("a", "b", "label")]
    asked = [Segment("user", " r", "a"), Segment("user", " r", "b")]
    spans = parts_of_segments([*shown, *asked, Segment("marker", " =>")], local.tokenizer)
    assert [span.name for span in spans] == ["example 1", "example 2", "input"]


def test_parts_of_a_prompt(local):
    segments = [
        Segment("instruction", "Classify."),
        Segment("marker", "\n\nText:"),
        Segment("example", " a b"),
        Segment("marker", "\nClass:"),
        Segment("example", " x"),
        Segment("marker", "\n\nText:"),
        Segment("example", " c"),
        Segment("marker", "\nClass:"),
        Segment("example", " y"),
        Segment("marker", "\n\nText:"),
        Segment("document", " A passage."),
        Segment("user", " d"),
        Segment("marker", "\nClass:"),
    ]
    encode = lambda text: len(local.tokenizer.encode(text))  # noqa: E731
    spans = parts_of_segments(segments, local.tokenizer)
    names = ["instruction", "example 1", "example 2", "passage 1", "input"]
    assert [span.name for span in spans] == names
    sizes = [[segments[0]], segments[1:5], segments[5:9], segments[9:11], segments[11:]]
    assert [span.stop - span.start for span in spans] == [
        sum(encode(segment.text) for segment in part) for part in sizes
    ]
    assert [span.start for span in spans][1:] == [span.stop for span in spans][:-1]


def test_turns_of_a_chat(local):
    texts = (("user", "hi"), ("assistant", "ho"), ("user", "what?"))
    segments = [Segment("instruction", "Be nice.")]
    for kind, text in texts:
        segments += [Segment("marker", "\nX:"), Segment(kind, text)]
    spans = parts_of_segments([*segments, Segment("marker", "\nA:")], local.tokenizer)
    assert [span.name for span in spans] == ["instruction", "turn 1", "turn 2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two\n\nthree\nfour\n\nfive", ["one two\n\n", "three\nfour\n\n", "five"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("one", ["one"]),
    ],
)
def test_parts_of_a_text(local, text, expected):
    ids = local.tokenizer.encode(text)
    spans = parts_of_text(text, ids, local.tokenizer)
    assert [local.tokenizer.decode(ids[span.start : span.stop]) for span in spans] == expected
    assert [span.name for span in spans] == [f"part {n}" for n in range(1, len(expected) + 1)]


def test_rank_correlation_with_ties():
    assert rank_correlation([1, 2, 3], [2, 4, 9]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    expected = np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1]
    assert rank_correlation([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(expected)
    assert rank_correlation([1, 1], [1, 2]) is None
    assert rank_correlation([1], [1]) is None
