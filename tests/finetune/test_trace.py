"""Copies of training text in a reply, against counting by hand."""

import json
import math
import random

import pytest

from finetune.config.sections import ConfigError
from finetune.measuring import verbatim
from finetune.measuring.verbatim import find_copies

WORDS = ["a", "b", "c", "D", ","]


def pretrained(folder, texts):
    """The folder of a run on these texts, without a model."""
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run = folder / "run"
    run.mkdir()
    record = {"data": {"train": [{"path": str(data)}]}, "digests": {str(data): str(hash(data))}}
    (run / "pretrain.json").write_text(json.dumps(record))
    return run


def occurrences(texts, span):
    """The row of each occurrence."""
    return [
        number
        for number, words in enumerate(texts)
        for at in range(len(words) - len(span) + 1)
        if words[at : at + len(span)] == span
    ]


@pytest.mark.parametrize("part", [7, 60, 10_000])
def test_spans_counts_and_rows_are_those_of_a_search(tmp_path, monkeypatch, part):
    monkeypatch.setattr(verbatim, "_PART", part)
    draw = random.Random(part)
    texts = [draw.choices(WORDS, k=draw.randint(1, 6)) for _ in range(40)]
    run = pretrained(tmp_path, [" ".join(text) for text in texts])
    for _ in range(20):
        query = draw.choices([*WORDS, "unknown"], k=9)
        longest = []  # of each place
        for at in range(len(query)):
            ends = [e for e in range(at, 10) if e == at or occurrences(texts, query[at:e])]
            longest.append((at, max(ends)))
        expected = [
            (" ".join(query[at:end]), *(f(occurrences(texts, query[at:end])) for f in (len, min)))
            for number, (at, end) in enumerate(longest)
            if end - at >= 2 and end > max((e for _, e in longest[:number]), default=0)
        ]
        text = " ".join(query)
        copies = find_copies(run, text, shortest=2).copies
        found = [
            (text[copy.start : copy.end], copy.count, int(copy.row.split("line ")[1]) - 1)
            for copy in copies
        ]
        assert found == expected


def test_the_baseline_is_a_distribution(tmp_path):
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=12)) for _ in range(30)]
    run = pretrained(tmp_path, texts)
    before = "a b , c D"
    whole = math.exp(-find_copies(run, before).ngram_nats)
    after = [math.exp(-find_copies(run, f"{before} {w}").ngram_nats) for w in [*WORDS, "unknown"]]
    # Text that ends after the context takes the rest, as it is counted among what was seen.
    assert sum(after) / whole == pytest.approx(1, abs=0.35)
    assert sum(after) / whole <= 1 + 1e-9


def test_other_files_are_indexed_anew(tmp_path):
    run = pretrained(tmp_path, ["one two three four five"])
    assert [copy.words for copy in find_copies(run, "two three four five six").copies] == [4]
    record = json.loads((run / "pretrain.json").read_text())
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "six seven eight nine"}) + "\n")
    (run / "pretrain.json").write_text(json.dumps(record | {"digests": {"texts.jsonl": "other"}}))
    assert find_copies(run, "two three four five six").copies == []


def test_what_has_no_words_or_is_no_run_is_refused(tmp_path):
    run = pretrained(tmp_path, ["one two three four five"])
    with pytest.raises(ConfigError, match="no words"):
        find_copies(run, " \n")
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        find_copies(tmp_path, "one")
