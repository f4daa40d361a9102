"""Runs the `chatapp` command inside the test, with a home and models of the test's own."""

import io
import sys
from pathlib import Path

import pytest
from fakes import ScriptedModel
from program import Result, Run, UseModel
from tiny import write_tiny_gpt2

from chatapp.cli import main
from chatapp.engine.errors import ModelError
from chatapp.engine.models import loading


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `chatapp` with arguments; `terminal`: whether all its streams seem to be one."""

    def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Result:
        stream = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["chatapp", *arguments])
        monkeypatch.setattr(sys, "stdin", stream)
        for each in (sys.stdin, sys.stdout, sys.stderr):
            monkeypatch.setattr(each, "isatty", lambda: terminal)
        with pytest.raises(SystemExit) as end:
            main()
        status = end.value.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(status if isinstance(status, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def use_model(monkeypatch: pytest.MonkeyPatch) -> UseModel:
    """Let every command load the given model by its name; there is no model of another name."""
    models: dict[str, ScriptedModel] = {}

    def load_model(name: str, **_: object) -> ScriptedModel:
        if name not in models:
            raise ModelError(f"{name}: the test has no such model")
        return models[name]

    def use(model: ScriptedModel, name: str = "bundled") -> ScriptedModel:
        monkeypatch.setattr(loading, "load_model", load_model)
        models[name] = model
        return model

    return use


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a tiny GPT-2 is."""
    return str(write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=256))
