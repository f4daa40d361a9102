"""Where a reply is from is found in a process of its own: copies first, and on demand the rows."""

import sys
from pathlib import Path

import pytest
from fakes import ScriptedModel
from tui_driver import Driver, OpenApp

from chatapp.tui.chat import messages
from chatapp.tui.screens.trace import TraceScreen, trace_command

ECHOES = """
import sys
print("the run is trained again 4 times", file=sys.stderr)
print("answer to", sys.argv[1:])
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


async def press_i(driver: Driver) -> None:
    await driver.say("Where?")
    await driver.press("ctrl+up", "i")


def test_a_reply_that_begins_with_a_dash_is_no_option() -> None:
    made = trace_command(Path("runs/a"), "--json", "--verbatim")
    assert made[1:] == ["-m", "finetune", "trace", "runs/a", "--reply=--json", "--verbatim"]


async def test_copies_come_first_and_rows_on_demand(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-c", ECHOES, *map(str, arguments)]

    monkeypatch.setattr(messages, "trace_command", command)
    async with open_app(ScriptedModel(["[b]here"], name=str(run))) as driver:
        await press_i(driver)
        await driver.until(lambda: "Enter ranks" in driver.screen_text)
        assert isinstance(driver.app.screen, TraceScreen)
        assert "'[b]here'" in driver.screen_text
        assert "'--verbatim']" in driver.screen_text
        await driver.press("enter")
        await driver.until(lambda: "'--prompt=Where?']" in driver.screen_text)
        assert "trained again 4 times" in driver.screen_text
        await driver.press("enter")  # it has been done
        assert "--verbatim" not in driver.screen_text
        await driver.press("escape")
        assert driver.app.screen is driver.chat


async def test_a_model_that_is_no_run_is_named(open_app: OpenApp, run: Path) -> None:
    async with open_app(ScriptedModel(["here"], name=str(run))) as driver:
        await press_i(driver)
        await driver.until(lambda: "Esc closes" in driver.screen_text)
        assert "expected the folder of a run" in driver.sentences


async def test_a_reply_of_a_server(open_app: OpenApp) -> None:
    async with open_app(ScriptedModel(["here"], name="http://localhost:1")) as driver:
        await press_i(driver)
        await driver.until(lambda: "the files of a model on a server" in driver.problem)
        assert driver.app.screen is driver.chat
