"""Runs the `chatapp` command inside the test, with a home and a model of the test's own."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes import ScriptedModel

from chatapp.cli import main
from chatapp.models import loading


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


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
def use_model(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedModel], ScriptedModel]:
    """Let every command load the given model."""

    def use(model: ScriptedModel) -> ScriptedModel:
        monkeypatch.setattr(loading, "load_model", lambda name, **_: model)
        return model

    return use
