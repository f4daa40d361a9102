"""Labelled rows as the sequences a head reads, and the labels of a data set."""

from dataclasses import replace

import pytest
import tiny_finetune as tiny

from chatapp.engine.backends.head import HeadEncoder, HeadSpec
from chatapp.engine.files.model_files import TokenizerFiles
from chatapp.engine.tokenizers import load_tokenizer
from chatapp.rows.reading import BadRow
from finetune.config.sections import ConfigError
from finetune.data.formats import Labelled
from finetune.objectives.heads import classes, encode_labelled

SPECS = {
    "classification": HeadSpec("classification", ("no", "yes"), "\n"),
    "entailment": HeadSpec("entailment", ("no", "yes"), "\n"),
    "similarity": HeadSpec("similarity", ("no", "yes"), " and "),
    "multiple-choice": HeadSpec("multiple-choice", (), "\n"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(TokenizerFiles.read(tiny.base(tmp_path_factory.mktemp("head") / "base")))


def row(**fields):
    return Labelled("rows.jsonl, line 1", "0" * 16, fields)


ROWS = {
    "classification": row(text="good", label="yes"),
    "entailment": row(premise="it rains", hypothesis="it is wet", label="yes"),
    "similarity": row(first="one", second="the other", label="no"),
    "multiple-choice": row(context="after 1", choices=["2", "three"], label="three"),
}


def encoded(row, spec, tokenizer, start, length, too_long):
    spec = replace(spec, length=length)
    return encode_labelled(row, spec, HeadEncoder(spec, tokenizer, start, 64), too_long)


def test_sequences_are_those_of_the_paper(tokenizer):
    end = tokenizer.end_id

    def text(ids):
        assert (ids[0], ids[-1]) == (end, end)
        return tokenizer.decode(list(ids[1:-1]))

    found = {
        task: encoded(each, SPECS[task], tokenizer, [], 50, "raise") for task, each in ROWS.items()
    }
    assert [text(ids) for ids in found["classification"].sequences] == ["good"]
    assert [text(ids) for ids in found["entailment"].sequences] == ["it rains\nit is wet"]
    assert [text(ids) for ids in found["similarity"].sequences] == [
        "one and the other",
        "the other and one",
    ]
    assert [text(ids) for ids in found["multiple-choice"].sequences] == [
        "after 1\n2",
        "after 1\nthree",
    ]
    assert {task: example.label for task, example in found.items()} == {
        "classification": 1,
        "entailment": 1,
        "similarity": 0,
        "multiple-choice": 1,
    }
    numbered = row(context="after 1", choices=["2", "three"], label="0")
    spec = SPECS["multiple-choice"]
    assert encoded(numbered, spec, tokenizer, [], 50, "raise").label == 0
    # A model that begins every text with a token of its own keeps it.
    begun = encoded(ROWS["classification"], SPECS["classification"], tokenizer, [7], 50, "raise")
    assert begun.sequences[0][0] == 7


def test_what_does_not_fit_is_refused_dropped_or_cut_at_its_end(tokenizer):
    spec = SPECS["entailment"]
    long = row(premise="it rains " * 30, hypothesis="wet", label="no")
    with pytest.raises(ConfigError, match=r"line 1: the row has \d+ tokens, the model takes 20"):
        encoded(long, spec, tokenizer, [], 20, "raise")
    assert encoded(long, spec, tokenizer, [], 20, "drop") is None
    cut = encoded(long, spec, tokenizer, [], 20, "truncate-prompt")
    (ids,) = cut.sequences
    assert len(ids) == 20
    assert tokenizer.decode(list(ids[1:-1])).endswith("\nwet")


@pytest.mark.parametrize("label", ["maybe", "3"])
@pytest.mark.parametrize("task", ["classification", "multiple-choice"])
def test_an_unknown_label_names_its_row(tokenizer, task, label):
    wrong = Labelled("rows.jsonl, line 9", "0", {**ROWS[task].fields, "label": label})
    with pytest.raises(BadRow, match=r"line 9: label is .*expected one of"):
        encoded(wrong, SPECS[task], tokenizer, [], 50, "raise")


def test_labels_are_sorted_and_numbers_by_value():
    rows = [row(label=label) for label in ("10", "9", "2", "b", "a", "2")]
    assert classes(rows) == ("2", "9", "10", "a", "b")
    words = ("World", "Sports", "Tech", "Business")
    assert classes([row(label=word) for word in words]) == tuple(sorted(words))
