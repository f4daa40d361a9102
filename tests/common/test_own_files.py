"""Files that this program writes: several of it lose nothing, and nobody else reads them."""

import os
import stat
import subprocess
import sys

import pytest
from test_kinds import ROOT

from chatapp.common.settings import load_settings
from chatapp.common.userfiles import hold
from chatapp.engine.models.resolving import used_models

CHANGING = """
import sys
from chatapp.common.settings import keep_settings
from chatapp.engine.models.resolving import note_model
for value in range(20):
    keep_settings({sys.argv[1]: value / 20 + 0.01})
    note_model(f"{sys.argv[2]}/{sys.argv[1]}")
"""


def test_two_programs_that_change_a_file_lose_nothing(home, tmp_path):
    names = ["temperature", "top_p", "min_p"]
    for name in names:
        (tmp_path / name).mkdir()
    programs = [
        subprocess.Popen([sys.executable, "-c", CHANGING, name, tmp_path], cwd=ROOT)
        for name in names
    ]
    assert [program.wait(60) for program in programs] == [0, 0, 0]
    sampling = load_settings().sampling
    assert {getattr(sampling, name) for name in names} == {0.96}
    assert {path.name for path in used_models()} >= set(names)
    assert not [*(home / "config").glob(".*")]


def test_a_lock_is_released_by_the_end_of_its_process(tmp_path):
    code = f"from chatapp.common.userfiles import hold; from pathlib import Path; import os; \
held = hold(Path({str(tmp_path / 'a.lock')!r})); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(OSError, match="another process is writing it"):
            hold(tmp_path / "a.lock")
        other.kill()
        other.wait()
        hold(tmp_path / "a.lock").release()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no modes")
def test_what_the_program_makes_is_for_this_user_alone(home):
    """Folders of mode 700 above every file, whatever the user's umask; a secret file of 600."""
    code = """
import os
os.umask(0)
from pathlib import Path
from chatapp.common import paths
from chatapp.common.settings import keep_settings
from chatapp.common.unforeseen import describe_unforeseen
from chatapp.dialogue.drafts import Drafts
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.backup import back_up
from chatapp.engine.models.running import OwnServer, Running, note
keep_settings({"temperature": 0.5})
describe_unforeseen(ValueError())
Store(paths.database_path()).close()
back_up(paths.database_path(), every=0)
drafts = Drafts(paths.drafts_dir())
drafts.keep("draft"); drafts.finish(9)
note(Running(1, OwnServer("http://localhost"), ()))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    made = {path: stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}
    folders = {path: mode for path, mode in made.items() if path.is_dir()}
    assert set(folders.values()) == {0o700}
    assert {path.name for path in folders} >= {"config", "data", "log", "backups"}
    secret = [path for path in made if path.name in ("background.json", "chats.db")]
    assert {made[path] for path in secret} == {0o600}
