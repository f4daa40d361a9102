"""finetune push: what goes to the hub, told by a client that only notes it."""

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.run import train
from finetune.sharing import merge, push

QUIET = Console(stderr=True, quiet=True)


class FakeHub:
    """Keeps what it is given; with `problem` it refuses."""

    def __init__(self, problem=""):
        self.problem = problem
        self.made = []
        self.files = {}

    def create_repo(self, repo_id, *, private, exist_ok):
        assert exist_ok
        if self.problem:
            raise RuntimeError(self.problem)
        self.made.append((repo_id, private))

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        assert commit_message
        self.files = {name: (folder_path / name).read_bytes() for name in allow_patterns}


def test_a_run_is_pushed_without_what_is_nobody_elses_business(tmp_path):
    run = train(tiny.config(tmp_path, train={"max_steps": 1}), QUIET)
    (run / "optimizer.pt").write_bytes(b"a pickle")
    hub = FakeHub()
    names = push(str(run), "someone/tuned", hub, private=True)
    assert hub.made == [("someone/tuned", True)]
    assert names == sorted(hub.files)
    assert {"config.json", "model.safetensors", "tokenizer.json"} < set(names)
    assert {"chat_template.jinja", "chatapp_template.json"} < set(names)
    card = hub.files["README.md"].decode()
    assert "base, trained further with chatapp: objective l3, method full, 1 steps" in card
    assert "on rows.json." in card
    assert "loss, held out" in card
    assert not {"run.json", "log.jsonl", "optimizer.pt"} & set(names)
    assert not any(str(tmp_path).encode() in content for content in hub.files.values())


def test_an_adapter_goes_only_where_its_base_can_be_had(tmp_path):
    config = tiny.config(tmp_path, train={"max_steps": 1, "method": "lora"})
    run = train(config, QUIET)
    hub = FakeHub()
    with pytest.raises(ConfigError, match=r"its base, .*base, is not on the hub; .*finetune merge"):
        push(str(run), "someone/tuned", hub)
    assert not hub.made
    merge(str(run), tmp_path / "whole")
    names = push(str(tmp_path / "whole"), "someone/tuned", hub)
    assert {"model.safetensors", "README.md"} < set(names)


def test_what_the_hub_refuses_is_one_sentence(tmp_path):
    base = tiny.base(tmp_path / "base")
    with pytest.raises(ConfigError, match=r"^someone/tuned: the hub did not take it: no token$"):
        push(str(base), "someone/tuned", FakeHub("no token\nand more"))
    done = CliRunner().invoke(app, ["push", str(tmp_path / "nothing"), "someone/tuned"])
    assert (done.exit_code, "nothing" in done.stderr) == (2, True)
