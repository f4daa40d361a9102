"""Summaries of summaries, and the way back from a sentence to its passages."""

from hypothesis import given
from hypothesis import strategies as st

from chatapp.tasks.summaries import Summary, summarize, trace_sentences


def first_words(texts):
    return [" ".join(text.split()[:2]) for text in texts]


def test_passages_are_summarised_and_then_the_summaries():
    asked = []

    def answer(texts):
        asked.append(list(texts))
        return first_words(texts)

    passages = [f"p{n} says much more" for n in range(5)]
    levels = summarize(passages, answer, lambda text: len(text.split()) <= 4)
    assert asked[0] == passages
    assert asked[1] == ["p0 says p1 says", "p2 says p3 says", "p4 says"]
    assert [[list(each.passages) for each in level] for level in levels] == [
        [[0], [1], [2], [3], [4]],
        [[0, 1], [2, 3], [4]],
        [[0, 1, 2, 3], [4]],
        [[0, 1, 2, 3, 4]],
    ]
    assert levels[-1][0].text == "p0 says"


@given(st.integers(1, 40), st.integers(0, 30))
def test_every_level_covers_every_passage_once(count, room):
    passages = [f"passage {n}" for n in range(count)]
    levels = summarize(passages, first_words, lambda text: len(text) <= room)
    for level in levels:
        assert [number for each in level for number in each.passages] == list(range(count))
    assert len(levels[-1]) == 1


def test_a_short_document_has_one_summary_and_empty_ones_are_left_out():
    assert summarize(["a b c"], first_words, bool) == [[Summary("a b", range(1))]]
    levels = summarize(["", "b", ""], first_words, lambda text: True)
    assert levels[-1] == [Summary("b", range(3))]


def test_a_sentence_goes_back_to_the_passages_that_say_it():
    passages = ["Bees dance.", "Council men repaired it.", "It rained.", "Their pool is closed."]
    summary = Summary("Council men repaired a pool. Bees dance! Zzz", range(4))
    traced = trace_sentences(summary, passages)
    assert [each.text for each in traced] == ["Council men repaired a pool.", "Bees dance!", "Zzz"]
    # One word of four in common, "pool", is too little.
    assert [each.passages for each in traced] == [[1], [0], []]
    only = trace_sentences(Summary("A pool.", range(3, 4)), passages)
    assert only[0].passages == [3]
