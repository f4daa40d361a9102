"""The reference of a configuration's keys is the configuration itself."""

import json
from typing import get_args

import pytest
from typer.testing import CliRunner

from finetune.cli import app
from finetune.config.keys import keys, lines
from finetune.config.objectives import OBJECTIVES
from finetune.config.sections import ConfigError, FinetuneConfig, PretrainConfig, lay_over

TASKS = [{"name": "last_words", "test": "passages.jsonl"}]
CONFIG = FinetuneConfig.model_validate(
    {"output": "run", "data": {"train": "a"}, "head": {"task": "classification"}, "tasks": TASKS}
)
PRETRAIN = PretrainConfig.model_validate(
    {"output": "run", "data": {"train": "book.txt"}, "tasks": TASKS}
)

REQUIRED = {
    "regex": {"pattern": "e"},
    "format": {"form": "line"},
    "model": {"run": "run"},
    "function": {"function": "mine.py:score"},
    "distillation": {"teacher": "bundled"},
}
"""What a check or an objective cannot do without."""


def objective(key):
    """The least that a table has in which the key can be set."""
    if not key.name.startswith("objective.rewards.") and key.kind != "grpo":
        return {"kind": key.kind, **REQUIRED.get(key.kind, {})}
    check = "exact_match" if key.kind == "grpo" else key.kind
    return {"kind": "grpo", "rewards": [{"kind": check, **REQUIRED.get(check, {})}]}


BOTH = [(CONFIG, key) for key in keys()] + [(PRETRAIN, key) for key in keys("pretrain")]


@pytest.mark.parametrize(("config", "key"), BOTH)
def test_every_key_says_what_it_does_and_can_be_set(config, key):
    assert key.values
    assert key.meaning
    config = config.model_copy(update={"tasks": []}) if key.name == "tasks" else config
    if key.kind:
        plain = {**CONFIG.model_dump(exclude={"objective"}), "objective": objective(key)}
        config = FinetuneConfig.model_validate(plain)
    if key.default:
        changed = lay_over(config, [f"{key.name.replace('.N.', '.0.')}={key.default}"])
        assert changed == config


def test_no_key_is_left_out():
    def names(data, prefix):
        if isinstance(data, dict) and not prefix.endswith("columns."):
            return {name for k, v in data.items() for name in names(v, f"{prefix}{k}.")}
        if isinstance(data, list) and data and isinstance(data[0], dict):
            return names(data[0], f"{prefix}N.") | {prefix[:-1]}
        return {prefix[:-1]}

    of_default_kind = {key.name for key in keys() if key.kind in ("", CONFIG.objective.kind)}
    assert of_default_kind == names(CONFIG.model_dump(), "")


def test_each_kind_of_objective_has_keys_of_its_own():
    tables = (table for table in OBJECTIVES if "kind" in table.model_fields)
    kinds = [get_args(table.model_fields["kind"].annotation)[0] for table in tables]
    checks = {"exact_match", "numeric_match", "length", *REQUIRED}
    assert {key.kind for key in keys("objective")} - {""} == {*kinds, *checks}
    assert "objective.beta" in {key.name for key in keys() if key.kind == "dpo"}
    assert lines(keys("objective"))[:2] == [
        'objective.kind = "l3"',
        f"    {' | '.join(map(json.dumps, kinds))}: the loss to minimize",
    ]


def test_a_section_and_one_that_there_is_not():
    assert [key.name for key in keys("adapter")] == [
        "adapter.rank", "adapter.alpha", "adapter.dropout", "adapter.targets",
        "adapter.modules_to_save", "adapter.base_precision",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no section 'tran'; did you mean 'train'"):
        keys("tran")


def test_the_command():
    done = CliRunner().invoke(app, ["keys", "train"])
    assert "train.batch_size = 8\n    integer, 1 or more: examples per micro-batch" in done.stdout
    assert lines(keys("head"))[0] == "head.task = …"
    document = json.loads(CliRunner().invoke(app, ["keys", "--json"]).stdout)
    assert {"name", "values", "default", "meaning", "kind"} == document[0].keys()
    assert CliRunner().invoke(app, ["keys", "nonsense"]).exit_code == 2


def test_a_section_of_pretrain():
    assert [key.name for key in keys("pretrain.shape")] == [
        f"shape.{name}" for name in PretrainConfig.model_fields["shape"].annotation.model_fields
    ]
    with pytest.raises(ConfigError, match=r"there is no section 'shap'.*shape"):
        keys("pretrain.shap")
