"""The use from Python that the guide shows."""

import json
import re
from pathlib import Path

import pytest
import tiny_finetune as tiny

import finetune
from chatapp.common.userfiles import UserError

GUIDE = Path(finetune.__file__).with_name("README.md")


def snippet():
    (found,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_snippet_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny.base(tmp_path / "base")
    made = [{"text": f"after {i}", "label": "good" if i % 2 else "bad"} for i in range(60)]
    Path("tone.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    source = snippet()
    for old, new in (('"bundled"', '"base"'), ('"max_steps": 100', '"max_steps": 3')):
        assert old in source
        source = source.replace(old, new)
    names = {}
    exec(source, names)
    score, answers = capsys.readouterr().out.splitlines()
    assert 0 <= float(score) <= 1
    assert answers.count("'output'") == 2
    # A module of the same name would take a function's place once it is imported.
    assert all(
        callable(getattr(finetune, name)) for name in ("check", "train", "evaluate", "predict")
    )
    config = {"model": "base", "output": "other", "data": {"train": "tone.jsonl"}}
    assert finetune.check({**config, "head": {"task": "classification"}})["kept"] == 60
    with pytest.raises(UserError, match="holds a run already"):
        finetune.train(
            {"output": str(names["run"]), "data": {"train": "tone.jsonl"}}, "train.epochs=1"
        )
    with pytest.raises(UserError, match="the configuration"):
        finetune.train({"output": "other", "data": {"trian": "tone.jsonl"}})


def test_a_file_is_a_configuration_too(tmp_path):
    config = tiny.written(tiny.config(tmp_path), tmp_path / "config.toml")
    run = finetune.train(config, "train.max_steps=2")
    document = finetune.evaluate(run, replies=2, max_tokens=4)
    assert json.loads((run / "result.json").read_text())["steps"] == 2
    (measured,) = document["sets"].values()
    assert len(measured["replies"]) == 2
