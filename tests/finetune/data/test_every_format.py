"""Every data format of the tables, used: a row of each is read, encoded and trained on."""

import csv
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import tiny_finetune as tiny
from rich.console import Console

from chatapp.rows.reading import READERS
from finetune.data.batches import response_labels
from finetune.data.formats import LAYOUTS
from finetune.run import train
from finetune.training.setup import set_up_run

Rows = Sequence[Mapping[str, Any]]


def row_of(layout, number):
    """A row by the names that a layout needs."""
    question, reply = f"after {number}?", f"{number + 1} comes."
    match layout.name:
        case "OpenAI messages":
            turns = [("user", question), ("assistant", reply)]
            return {layout.needs[0]: [{"role": role, "content": text} for role, text in turns]}
        case "ShareGPT":
            turns = [("human", question), ("gpt", reply)]
            return {layout.needs[0]: [{"from": role, "value": text} for role, text in turns]}
        case "xLAM":
            return {"query": question, "answers": [{"name": "add", "arguments": {"a": number}}]}
        case "OASST tree":
            prompt = {"text": question, "replies": [{"text": reply, "rank": 0, "replies": []}]}
            return {"message_tree_id": str(number), "prompt": prompt}
        case "Human: and Assistant:":
            return {"text": f"\n\nHuman: {question}\n\nAssistant: {reply}"}
        case "few-shot prompt":
            return {"parts": [f"after {number}", f" {number + 1}"]}
    return {name: f"{name} {number}" for name in layout.needs}


def written(path, rows):
    """Rows as a file of the kind that its name says."""
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(rows))
        case ".jsonl" | ".ndjson":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as file:
                table = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
                table.writerows([list(rows[0]), *(row.values() for row in rows)])
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        case ".txt":
            path.write_text("What comes after the number?")
        case kind:
            raise AssertionError(f"say in `written` how a file of the kind {kind} is written")
    return path


def trained_tables(folder, files):
    """One step on all rows of the files: of each file its layout, and how many rows were kept."""
    config = tiny.config(
        folder,
        data={"train": [str(file) for file in files], "held_out": 0.0},
        train={"max_steps": 1, "batch_size": 64},
    )
    data = set_up_run(config).data
    assert data.report is not None
    assert all(response_labels(each).any() for each in data.train.examples)
    run = train(config, Console(stderr=True, quiet=True))
    assert isfinite(tiny.trace(run)[1])
    return [(table.layout, table.kept) for table in data.report.tables]


def test_every_layout_is_read_encoded_and_trained_on(tmp_path):
    files = [
        written(tmp_path / f"{number}.jsonl", [row_of(each, number), row_of(each, number + 50)])
        for number, each in enumerate(LAYOUTS)
    ]
    assert trained_tables(tmp_path, files) == [(layout.name, 2) for layout in LAYOUTS]


def test_every_kind_of_file_is_read_encoded_and_trained_on(tmp_path):
    files = [
        written(tmp_path / f"one{suffix}", [{"prompt": f"say {suffix}", "completion": "yes"}])
        for suffix in READERS
    ]
    layouts = ["plain text" if suffix == ".txt" else "prompt/completion" for suffix in READERS]
    assert trained_tables(tmp_path, files) == [(layout, 1) for layout in layouts]


def test_the_guide_names_every_layout():
    guide = (Path(__file__).parents[3] / "finetune" / "README.md").read_text(encoding="utf-8")
    table = [line.split("|")[1].strip() for line in guide.splitlines() if line.startswith("| ")]
    named = {name for cell in table for name in cell.split(", ")}
    missing = {layout.name for layout in LAYOUTS} - named
    assert not missing, f"name {missing} in the table of finetune/README.md"
