"""A child process for foreign bytes ends when its time is over, also when its caller was killed."""

import subprocess
import sys

from tool_server import ends

STUCK = """
import os, re
def answer(request):
    yield os.getpid()
    re.match(r"(a*)*b", "a" * 200)  # which holds the interpreter's lock
"""
CALLER = """
import sys
sys.path.insert(0, sys.argv[1])
from chatapp.common.limited_process import LimitedProcess
for item in LimitedProcess("stuck", "answer", memory=10**9).stream(None, 1.0):
    print(item, flush=True)
    if len(sys.argv) > 2:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_ends_whose_caller_was_killed(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-c", CALLER, str(tmp_path), "kill"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    assert ends(int(printed))


def test_a_child_ends_that_takes_too_long(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    command = [sys.executable, "-c", CALLER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "LimitPassedError: time" in done.stderr
    assert ends(int(done.stdout))
