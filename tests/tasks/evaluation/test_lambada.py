"""Both LAMBADA protocols against a plain computation with transformers."""

import math

import pytest
import torch
from fakes import ScriptedModel

from chatapp.tasks.evaluation.language_modelling import is_passage, lambada

PASSAGES = [
    "she looked at the door and he looked at her",
    "User: I ate it all.  Assistant: so I see, User",
    "they went to the sea, the whole family went to the sea ",
    "no one\nsaid a word",
    "a " * 150 + "b",
]


@pytest.fixture
def passages(gpt2_folder, gpt2):
    """Some whose last token the random model predicts, so that its accuracy is not 0."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(gpt2_folder).eval()
    found = list(PASSAGES)
    for start in ("once a", "twice b", "in a c", "why not d", "so e"):
        ids = gpt2.tokenizer.encode(start)
        for _ in range(6):
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            text = gpt2.tokenizer.decode(ids)
            if text == text.strip() and gpt2.tokenizer.encode(text) == ids:
                found.append(text)
    return found


def slow(folder, gpt2, contexts, targets):
    """Accuracy and perplexity from one forward pass a target."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    right, logs = [], []
    for context, target in zip(contexts, targets, strict=True):
        ids = [*context, *target][-gpt2.context :]
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0, -len(target) - 1 : -1].log_softmax(-1)
        right.append(rows.argmax(-1).tolist() == target)
        logs.append(float(rows[range(len(target)), target].sum()))
    return sum(right) / len(right), math.exp(-sum(logs) / len(logs))


def test_last_token(gpt2, gpt2_folder, passages):
    ids = [gpt2.tokenizer.encode(text.strip()) for text in passages]
    accuracy, perplexity = slow(
        gpt2_folder, gpt2, [each[:-1] for each in ids], [each[-1:] for each in ids]
    )
    found = lambada(gpt2, passages).figures["last_token"]
    assert 0 < found.accuracy == accuracy < 1
    assert found.perplexity == pytest.approx(perplexity, rel=1e-3)


def test_last_word(gpt2, gpt2_folder, passages):
    contexts, targets = [], []
    for text in passages:
        before, _, word = " ".join(text.split("\n")).strip().rpartition(" ")
        contexts.append(gpt2.tokenizer.encode(before.rstrip()))
        targets.append(gpt2.tokenizer.encode(f" {word}"))
    assert max(map(len, targets)) > 1
    # A line break in a passage stays one; here it is not before the last word.
    contexts[3] = gpt2.tokenizer.encode("no one\nsaid a")
    accuracy, perplexity = slow(gpt2_folder, gpt2, contexts, targets)
    found = lambada(gpt2, passages).figures["last_word"]
    assert found.accuracy == accuracy
    assert found.perplexity == pytest.approx(perplexity, rel=1e-3)


def test_a_word_is_right_when_it_is_said_greedily():
    model = ScriptedModel(lambda prompt: " bat" if prompt.endswith("the") else " no")
    seen = []
    found = lambada(
        model, ["it was the bat", "it was a bat"], lambda done, of: seen.append((done, of))
    ).figures
    assert found["last_word"].accuracy == found["last_token"].accuracy == 0.5
    assert found["last_word"].perplexity == pytest.approx(math.e)
    assert all(sampling.temperature == 0 for sampling in model.samplings)
    assert seen == [(1, 2), (2, 2)]


def test_a_generation_that_fails_is_no_wrong_answer():
    replies = [" bat", " bat", RuntimeError("out of memory"), " no", " no", " no"]
    measured = lambada(ScriptedModel(replies), ["it was the bat", "it fell", "it was a bat"])
    assert measured.failures == {1: "out of memory"}
    assert measured.figures["last_word"].accuracy == 0.5
    assert measured.figures["last_token"].accuracy == 0.5
    none = lambada(ScriptedModel([RuntimeError("out of memory")]), ["it fell"])
    assert none.figures == {}


def test_what_is_a_passage():
    assert is_passage("two words")
    assert not is_passage(" one ")
    assert not is_passage("")
