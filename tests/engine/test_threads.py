"""Threads that wait briefly, and the environment in which torch starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatapp.engine.threads import SPINS, wait_briefly

ROOT = Path(__file__).parents[2]
COMMANDS = [("chatapp", "complete", "Once"), ("finetune", "eval", "no-such-run")]

# Stands in torch's place and prints what the environment is when it is imported.
TORCH = """
import os
print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
os._exit(0)
"""


def test_threads_wait_briefly() -> None:
    environment = {"OMP_NUM_THREADS": "2"}
    wait_briefly(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": str(SPINS)}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_has_chosen_is_left(name: str) -> None:
    environment = {name: "as the user likes it"}
    wait_briefly(environment)
    assert environment == {name: "as the user likes it"}


def started(command: tuple[str, ...], path: list[Path], **changes: str) -> str:
    """All that a command prints in a process of its own, in which nobody chose a waiting."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), **changes}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_environment_is_set_when_torch_is_imported(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    home = str(tmp_path / "home")
    assert started(command, [tmp_path], CHATAPP_HOME=home).strip() == str(SPINS)
    chosen = started(command, [tmp_path], CHATAPP_HOME=home, OMP_WAIT_POLICY="active")
    assert chosen.strip() == "None"


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is what torch brings on Linux")
def test_libgomp_reads_it(tmp_path: Path) -> None:
    """It prints, when it is loaded, what it goes by."""
    home = str(tmp_path / "home")
    said = started(COMMANDS[1], [], CHATAPP_HOME=home, OMP_DISPLAY_ENV="verbose")
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in said
