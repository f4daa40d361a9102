"""Every objective of the table, used: checked, trained, resumed, measured and loaded again."""

import io
import json
from math import isfinite

import pytest
import tiny_finetune as tiny
import tiny_masked
from ranges import check_ranges
from rich.console import Console

from chatapp.engine.backends.head import REWARD, HeadModel, HeadSpec
from chatapp.engine.backends.masked import MaskedModel
from chatapp.engine.models.loading import load_model, load_reward_model
from chatapp.engine.models.resolving import find_model
from finetune.config.objectives import (
    OBJECTIVES,
    DistillationSettings,
    GrpoSettings,
    Head,
    MaskedSettings,
)
from finetune.evaluation import evaluate
from finetune.objectives.objective import objective_class
from finetune.run import examine, resume, show, train
from finetune.training.answers import greedy_replies

QUIET = Console(stderr=True, quiet=True)

REQUIRED = {
    GrpoSettings: {"rewards": [{"kind": "length"}], "replies": 2, "max_tokens": 4},
    DistillationSettings: {"teacher": "base", "own_replies": 0.5, "max_tokens": 4},
    Head: {"task": "classification"},
}
"""The keys that a table cannot do without."""


def rows(path):
    """Rows with the fields of every kind: chats, preferences, verdicts and labelled texts."""
    made = [
        {
            **{"prompt": f"after {n}?", "completion": f"{n + 1} comes."},
            **{"chosen": f"{n + 1} comes.", "rejected": f"number {n}"},
            **{"text": f"after {n}", "label": ("no", "yes")[n % 2]},
        }
        for n in range(24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def sections(table):
    """The least that a configuration says to have an objective."""
    given = REQUIRED.get(table, {})
    if "kind" not in table.model_fields:
        return {"head": given}
    (kind,) = table.model_fields["kind"].annotation.__args__  # of Literal["kind"]
    return {"objective": {"kind": kind, **given}}


@pytest.mark.parametrize("table", OBJECTIVES, ids=lambda table: table.__name__)
def test_an_objective_is_checked_trained_resumed_measured_and_loaded(tmp_path, monkeypatch, table):
    monkeypatch.chdir(tmp_path)  # which has the folder "base"
    if table is MaskedSettings:
        tiny_masked.save(tmp_path / "base")
    config = tiny.config(
        tmp_path,
        data={"train": str(rows(tmp_path / "all.jsonl")), "held_out": 0.3},
        train={"max_steps": 2, "save_every": 1, "batch_size": 4},
        **sections(table),
    )
    kind = objective_class(config)
    assert OBJECTIVES[table] == f"{kind.__module__.rpartition('.')[2]}:{kind.__name__}"

    examination = examine(config)
    document = examination.document()
    assert (document["steps"], document["kept"]) == (2, 24)
    json.dumps(document)
    out = io.StringIO()
    show(examination, Console(file=out, width=120))
    setup = examination.setup
    for heading in ("Rows", *setup.objective.preview(setup.data, setup.tokenizer, True), "Cost"):
        assert f"{heading}\n  " in out.getvalue()

    run = train(config, QUIET)
    resume(run, ["train.max_steps=3"], QUIET)
    log = tiny.rows_of(run)
    minimised = setup.objective.names[0]
    losses = {row["step"]: row[minimised] for row in log if minimised in row}
    assert losses.keys() == {1, 2, 3}
    assert all(map(isfinite, losses.values()))

    (measured,) = evaluate(str(run), str(run), "", 1, 4, lambda *_: None).sets.values()
    assert measured.examples
    assert measured.figures
    assert all(map(isfinite, measured.figures.values()))
    assert len(measured.answers) == kind.replies
    json.dumps(measured.document())
    check_ranges([log, measured.figures])
    assert answers(str(run))


def answers(run):
    """What the finished run gives as any model of its kind: a reply, probabilities or a score."""
    files = find_model(run)
    if files.is_masked:
        return MaskedModel.load(files, name=run).encode("a [MASK]")
    if not (files.path / "head.json").is_file():
        model = load_model(run)
        (reply,) = greedy_replies(model, (), [model.tokenizer.encode("after 1?")], 4)
        return not reply.error
    if HeadSpec.load(files.path).task == REWARD:
        return isfinite(load_reward_model(run).score([5, 6]))
    head = HeadModel.load(run, files)
    (output,) = head.outputs([head.encoder.sequences(["after 1"])])
    return sum(output) == pytest.approx(1)
