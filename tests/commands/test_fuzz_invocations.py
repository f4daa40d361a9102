"""Random invocations of both programs: whatever the words, files and bytes, an invocation ends with
one of the documented statuses, and nobody sees a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def invoke(folder, seed, count):
    """Make random invocations in a folder."""
    paths = os.pathsep.join(map(str, (HERE.parent.parent, HERE.parent, HERE)))
    command = [sys.executable, str(HERE / "fuzzed.py"), str(folder), seed, str(count)]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["faults"] == []
    assert sum(report["statuses"].values()) == count


@pytest.mark.skipif(os.name != "posix", reason="an invocation is a fork")
def test_random_invocations(tmp_path):
    invoke(tmp_path, "gate", 8)


@pytest.mark.long
@pytest.mark.timeout(36_000)
def test_five_thousand_random_invocations(tmp_path):
    invoke(tmp_path, "long", 5_000)
