"""Searching: by words, by meaning, by both, and what is in a query or in a document."""

from pathlib import Path

import pytest

from chatapp.engine.errors import ModelError
from chatapp.passages.files import DocumentsError
from chatapp.passages.search import METHODS, Documents, fused, method_and_encoder


@pytest.fixture
def animals(folder: Path) -> Path:
    (folder / "sea.md").write_text(
        "# Sea\n\n## Walrus\n\nIt eats clams.\n\n## Whales\n\nThey sing and eat krill.\n"
    )
    (folder / "land.txt").write_text("A horse eats hay.\n\nDogs bark at horses.")
    return folder


@pytest.mark.parametrize("method", ["bm25", "encoder:tfidf", "both:tfidf"])
def test_every_method_finds_the_passage_and_says_how_near(animals: Path, method: str) -> None:
    best, *others = Documents([str(animals)], method=method).search("What do whales eat?", 3)
    assert (Path(best.file).name, best.place) == ("sea.md", "Sea › Whales, line 7")
    assert "krill" in best.text
    assert best.score > 0
    assert all(other.score <= best.score for other in others)


def test_names_and_headings_are_searched_too(animals: Path) -> None:
    documents = Documents([str(animals)])
    assert Path(documents.search("land", 1)[0].file).name == "land.txt"
    assert documents.search("dog barks", 1)[0].text.endswith("Dogs bark at horses.")


def test_a_limit_and_nothing_found(animals: Path) -> None:
    documents = Documents([str(animals)])
    assert len(documents.search("eat", 1)) == 1
    assert documents.search("zebra", 5) == []


@pytest.mark.parametrize("method", ["bm25", "encoder:tfidf", "both:tfidf"])
@pytest.mark.parametrize(
    "query",
    ["", '"', "NEAR(a b)", "a AND", "* OR title:x", "\0", "\ud800", "-" * 99, "x " * 9999],
    ids=range(9),
)
def test_whatever_is_in_a_query_is_text(animals: Path, method: str, query: str) -> None:
    assert isinstance(Documents([str(animals)], method=method).search(query, 3), list)


def test_an_index_by_meaning_follows_the_files(animals: Path) -> None:
    documents = Documents([str(animals)], method="encoder:tfidf")
    assert documents.search("zebra", 1) == []
    (animals / "new.txt").write_text("A zebra has stripes.")
    assert documents.search("zebra", 1)[0].text == "A zebra has stripes."


def test_reciprocal_rank_fusion() -> None:
    merged = fused([[1, 2, 3], [3, 1]])
    assert [identity for identity, _ in merged] == [1, 3, 2]
    assert dict(merged) == pytest.approx({1: 1 / 61 + 1 / 62, 3: 1 / 63 + 1 / 61, 2: 1 / 62})


def test_methods_there_are_not() -> None:
    assert method_and_encoder("both:minilm") == ("both", "minilm")
    for wrong in ("bm52", "bm25:minilm", "encoder:", ""):
        with pytest.raises(DocumentsError):
            method_and_encoder(wrong)
    assert {method_and_encoder(method)[0] for method in METHODS} == set(METHODS)


def test_an_encoder_that_cannot_be_had(animals: Path) -> None:
    with pytest.raises(ModelError, match="language model that runs"):
        Documents([str(animals)], method="encoder:lm").search("x", 1)
