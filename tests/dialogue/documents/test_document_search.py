"""Searching: by words, by meaning, by both, and what is in a query or in a document."""

import math
from pathlib import Path

import pytest

from chatapp.dialogue.documents.search import Documents, fused
from chatapp.engine.errors import ModelError
from chatapp.tasks.files.documents import METHODS, DocumentsError, DocumentSet


def documents_of(folder, method="bm25", limit=3):
    return Documents(DocumentSet((str(folder),), method, limit))


@pytest.fixture
def animals(folder):
    (folder / "sea.md").write_text(
        "# Sea\n\n## Walrus\n\nIt eats clams.\n\n## Whales\n\nThey sing and eat krill.\n"
    )
    (folder / "land.txt").write_text("A horse eats hay.\n\nDogs bark at horses.")
    return folder


@pytest.mark.parametrize("method", ["bm25", "encoder:tfidf", "both:tfidf"])
def test_every_method_finds_the_passage_and_says_how_near(animals, method):
    best, *others = documents_of(animals, method=method).search("What do whales eat?")
    assert (Path(best.file).name, best.place) == ("sea.md", "Sea > Whales, line 7")
    assert "krill" in best.text
    assert best.score > 0
    assert all(other.score <= best.score for other in others)


def test_names_and_headings_are_searched_too(animals):
    documents = documents_of(animals)
    assert Path(documents.search("land")[0].file).name == "land.txt"
    assert documents.search("dog barks")[0].text.endswith("Dogs bark at horses.")


def test_a_word_of_every_passage_still_counts(tmp_path):
    (tmp_path / "one.txt").write_text("The sea rises.")
    (tmp_path / "two.txt").write_text("The sea stays.")
    (first,) = documents_of(tmp_path).search("sea rises")
    assert first.text == "The sea rises."
    _, second = documents_of(tmp_path).search("sea")
    # Of passages with the average length, BM25 is the inverse document frequency of the words.
    assert second.score == pytest.approx(math.log(1 + 0.5 / 2.5))
    assert first.score == pytest.approx(second.score + math.log(1 + 1.5 / 1.5))


def test_a_limit_and_nothing_found(animals):
    documents = documents_of(animals)
    assert len(documents_of(animals, limit=1).search("eat")) == 1
    assert documents.search("zebra") == []


QUERIES = ("", '"', "NEAR(a b)", "a AND", "* OR title:x", "\0", "\ud800", "-" * 99, "x " * 9999)


@pytest.mark.parametrize("method", ["bm25", "encoder:tfidf", "both:tfidf"])
def test_whatever_is_in_a_query_is_text(animals, method):
    documents = documents_of(animals, method=method)
    for query in QUERIES:
        assert isinstance(documents.search(query), list)


def test_an_index_by_meaning_follows_the_files(animals):
    documents = documents_of(animals, method="encoder:tfidf")
    assert documents.search("zebra") == []
    (animals / "new.txt").write_text("A zebra has stripes.")
    assert documents.search("zebra")[0].text == "A zebra has stripes."


def test_reciprocal_rank_fusion():
    merged = fused([[1, 2, 3], [3, 1]])
    assert [identity for identity, _ in merged] == [1, 3, 2]
    assert dict(merged) == pytest.approx({1: 1 / 61 + 1 / 62, 3: 1 / 63 + 1 / 61, 2: 1 / 62})


def test_methods_there_are_not():
    assert DocumentSet((), "both:minilm").method_and_encoder() == ("both", "minilm")
    for wrong in ("bm52", "bm25:minilm", "encoder:", ""):
        with pytest.raises(DocumentsError):
            DocumentSet((), wrong)
    assert {DocumentSet((), method).method_and_encoder()[0] for method in METHODS} == set(METHODS)


def test_an_encoder_that_cannot_be_had(animals):
    with pytest.raises(ModelError, match="language model that runs"):
        documents_of(animals, method="encoder:lm").search("x")


def test_a_passage_with_too_little_of_the_question_is_not_given(tmp_path):
    (tmp_path / "fox.md").write_text("# Foxes\n\nA fox eats mice and frogs at night.\n")
    (tmp_path / "tides.md").write_text(
        "# Moon\n\nIt pulls the sea, which rises.\n\n# Salt\n\nIt is salt at night as well.\n"
    )
    documents = documents_of(tmp_path)

    def names(question):
        return [Path(passage.file).name for passage in documents.search(question)]

    assert names("What does a fox eat?") == ["fox.md"]
    assert names("Why is there a moon?") == ["tides.md"]
    assert names("Who was a king of France at night?") == []
    # A long question needs no larger part than a short one.
    long = " ".join(f"word{number}" for number in range(40))
    assert names(f"{long}: does a fox eat mice and frogs?") == ["fox.md"]
    assert all(passage.score > 0 for passage in documents.search("a fox, moon and salt"))


def test_function_words_count_when_there_are_no_others(tmp_path):
    (tmp_path / "play.txt").write_text("To be or not to be.")
    (tmp_path / "words.txt").write_text("Words, words, words.")
    (passage,) = documents_of(tmp_path).search("to be or not")
    assert passage.text == "To be or not to be."
