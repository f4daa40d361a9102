"""finetune filter: what is like the good text is kept, unread by its own classifier."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.data import quality
from finetune.data.quality import PARETO, filter_pool

TALES = ("once upon a time", "the king and the queen", "a small fox in the wood", "they lived")
ERRORS = ("cannot open file", "null pointer at line", "build failed with status", "retry the")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """These few texts have few words: they are learnt in few steps, with few weights."""
    monkeypatch.setattr(quality, "_BUCKETS", 2**12)
    monkeypatch.setattr(quality, "_LEAST_STEPS", 60)


def texts(phrases, count, seed):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(phrases, 12)) + f" {n}" for n in range(count)]


def write_pool(folder):
    """A pool of forty tales and forty messages, and a good text of other tales."""
    rows = [{"text": text, "kind": "tale"} for text in texts(TALES, 40, 1)]
    rows += [{"text": text, "kind": "error"} for text in texts(ERRORS, 40, 2)]
    np.random.default_rng(0).shuffle(rows)
    (folder / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "good.txt").write_text("\n\n".join(text * 5 for text in texts(TALES, 20, 3)))
    return str(folder / "pool.jsonl"), str(folder / "good.txt")


def kept(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_likest_are_kept_as_they_were(tmp_path):
    pool, good = write_pool(tmp_path)
    command = ["filter", pool, "--like", good, "--output", str(tmp_path / "out.jsonl"), "--json"]
    result = CliRunner().invoke(app, [*command, "--share", "0.5"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kept"] == 40
    assert {row["kind"] for row in kept(tmp_path / "out.jsonl")} == {"tale"}
    assert all(row in kept(Path(pool)) for row in kept(tmp_path / "out.jsonl"))
    first = (tmp_path / "out.jsonl").read_bytes()
    CliRunner().invoke(app, command)
    assert (tmp_path / "out.jsonl").read_bytes() == first


def test_pareto_keeps_by_the_rule_of_gpt_3(tmp_path):
    pool, good = write_pool(tmp_path)
    out = tmp_path / "out.jsonl"
    chosen = filter_pool(pool, good, out, share=0.5, pareto=True, seed=5)
    draws = np.random.default_rng(5).pareto(PARETO, 80)
    assert chosen.kept.tolist() == (draws > 1 - chosen.scores).tolist()
    kinds = [row["kind"] for row in kept(out)]
    assert kinds.count("tale") > kinds.count("error")


def test_a_document_is_not_scored_by_what_it_taught(tmp_path):
    """In a pool of nothing else, a copy of good text scores as high as good text."""
    texts_of_pool = texts(TALES, 60, 1)
    (tmp_path / "pool.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts_of_pool)
    )
    (tmp_path / "good.jsonl").write_text((tmp_path / "pool.jsonl").read_text())
    chosen = filter_pool(
        str(tmp_path / "pool.jsonl"), str(tmp_path / "good.jsonl"), tmp_path / "out.jsonl",
        share=0.5, pareto=False, seed=0,
    )  # fmt: skip
    assert chosen.scores.mean() > 0.5


def test_a_plain_text_is_cut_at_paragraphs(tmp_path):
    pool, good = write_pool(tmp_path)
    (tmp_path / "book.txt").write_text("\n\n".join(row["text"] for row in kept(Path(pool))))
    chosen = filter_pool(
        str(tmp_path / "book.txt"), good, tmp_path / "out.jsonl", share=0.5, pareto=False, seed=0
    )
    book = (tmp_path / "book.txt").read_text()
    assert "\n\n".join(document.text for document in chosen.documents) == book
    (tmp_path / "good.txt").write_text("one\n\n" * 3)
    with pytest.raises(ConfigError, match=r"good\.txt: has 1 documents; expected at least 4"):
        filter_pool(good, pool, tmp_path / "out.jsonl", share=0.5, pareto=False, seed=0)
