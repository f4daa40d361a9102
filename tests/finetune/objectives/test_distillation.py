"""Distillation: its divergence, its step however cut, the student's own replies, whole runs."""

import json

import numpy as np
import pytest
import tiny_finetune as tiny
import tiny_pairs
import torch
from rich.console import Console

from finetune.config.objectives import DistillationSettings
from finetune.config.sections import ConfigError
from finetune.data.batches import Rows, pack
from finetune.objectives import distillation
from finetune.objectives.distillation import Distillation
from finetune.run import resume, train
from finetune.training.draws import OwnReplies
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)
LENGTHS = [9, 14, 8, 20, 6, 10, 13, 7]


def settings(**changes):
    return DistillationSettings.model_validate(
        {"kind": "distillation", "teacher": "teacher", **changes}
    )


def by_hand(student, teacher, beta):
    """The divergence of two distributions, by its definition."""
    if beta == 0:
        return (teacher * (teacher / student).log()).sum()
    if beta == 1:
        return (student * (student / teacher).log()).sum()
    mixture = beta * teacher + (1 - beta) * student
    of_teacher = (teacher * (teacher / mixture).log()).sum()
    return beta * of_teacher + (1 - beta) * (student * (student / mixture).log()).sum()


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("beta", "temperature"), [(0.0, 1.0), (0.3, 2.0), (1.0, 0.7)])
def test_a_step_is_that_of_the_formula_however_it_is_cut(
    tmp_path, monkeypatch, packed, beta, temperature
):
    monkeypatch.setattr(distillation, "_CHUNK_LOGITS", 5 * tiny.VOCABULARY)
    student, teacher = tiny.gpt2(0), tiny.gpt2(2, n_embd=24)
    examples = tiny.examples(LENGTHS, seed=1)
    losses = []
    for example in examples:
        ids, labels = torch.tensor(example.ids.astype("int64")), example.spans[1:] == 2
        with torch.no_grad():
            wanted = (teacher(input_ids=ids[None]).logits[0, :-1] / temperature).softmax(1)
        given = (student(input_ids=ids[None]).logits[0, :-1] / temperature).softmax(1)
        losses += [by_hand(q, p, beta) for q, p in zip(given[labels], wanted[labels], strict=True)]
    rows = Rows(examples, "prompt", pack(LENGTHS, 48, 0) if packed else None)
    objective = Distillation(
        config=settings(beta=beta, temperature=temperature), teacher=teacher, window=64
    )
    sizes = ((len(rows), 1), (1, len(rows)))
    loss = torch.stack(losses).mean()
    tiny_pairs.assert_same_step(tmp_path, student, rows, objective, loss, sizes)
    assert all(weight.grad is None for weight in teacher.parameters())


# --- whole runs --------------------------------------------------------------------------


def config(folder, data=None, **objective):
    """A run whose teacher is another tiny model."""
    if not (folder / "teacher").exists():
        tiny.base(folder / "teacher", seed=7)
    return tiny.config(
        folder,
        data={"held_out": 0.2, **(data or {})},
        objective={
            "kind": "distillation", "teacher": str(folder / "teacher"), "max_tokens": 6, **objective
        },
        train={"batch_size": 2, "accumulate": 2, "max_steps": 6, "save_every": 4},
    )  # fmt: skip


def test_another_teacher_is_not_continued_with(tmp_path):
    made = config(tmp_path)
    once = made.train.model_copy(update={"max_steps": 1})
    train(made.model_copy(update={"train": once}), QUIET, "cpu")
    (tmp_path / "teacher").rename(tmp_path / "moved")
    changes = ["train.max_steps=2", f"objective.teacher={tmp_path / 'moved'}"]
    resume(tmp_path / "run", changes, QUIET, "cpu")
    tiny.base(tmp_path / "other", seed=8)
    changes = ["train.max_steps=3", f"objective.teacher={tmp_path / 'other'}"]
    with pytest.raises(ConfigError, match="data changed since the run was begun: objective"):
        resume(tmp_path / "run", changes, QUIET, "cpu")


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path):
    tiny.base(tmp_path / "teacher")
    tokens = json.loads((tmp_path / "teacher" / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "teacher" / "tokenizer.json").write_text(json.dumps(tokens))
    words = r"teacher has another vocabulary than .*: token \d+ is 'b' instead of 'a'$"
    with pytest.raises(ConfigError, match=words):
        set_up_run(config(tmp_path))


# --- the student's own replies -----------------------------------------------------------


def drawn(setup, cut, step):
    """The batches of a step on the first rows, in micro-batches of these sizes."""
    rows, batches, first = setup.data.train, [], 0
    for size in cut:
        batches.append(setup.data.collate([rows[first + index] for index in range(size)]))
        first += size
    return OwnReplies(setup)(batches, rows, step)


def sequences(batches):
    """The labelled tokens of each row."""
    return [
        ids[labels].tolist()
        for batch in batches
        for ids, labels in zip(batch["input_ids"], batch["response_mask"], strict=True)
    ]


def test_a_share_of_the_replies_is_drawn_whatever_the_micro_batches(tmp_path):
    setup = set_up_run(config(tmp_path, own_replies=0.5))
    rows = setup.data.train
    own = sequences(drawn(setup, [12], 0))
    given = [rows[index]["input_ids"][rows[index]["response_mask"]].tolist() for index in range(12)]
    changed = np.mean([one != other for one, other in zip(own, given, strict=True)])
    assert 0.2 < changed < 0.8
    assert sequences(drawn(setup, [4, 5, 3], 0)) == own
    assert sequences(drawn(setup, [12], 1)) != own
    assert all(len(reply) <= 6 for reply, row in zip(own, given, strict=True) if reply != row)


def test_a_text_without_a_prompt_keeps_its_own_words(tmp_path):
    made = config(tmp_path, own_replies=1.0)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"after {n} comes."}) + "\n" for n in range(6)))
    data = made.data.model_validate({"train": str(texts), "held_out": 0.0})
    setup = set_up_run(made.model_copy(update={"data": data}))
    given = [setup.data.train[index] for index in range(3)]
    expected = [row["input_ids"][row["response_mask"]].tolist() for row in given]
    assert sequences(drawn(setup, [3], 0)) == expected
