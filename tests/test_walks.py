"""How many files run for what a user does: a reader follows them, so they may only become fewer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("walk", "most"), [("ask", 50), ("row", 57)])
def test_a_walk_passes_no_more_files(walk, most):
    script = Path(__file__).with_name("walks.py")
    printed = subprocess.run(
        [sys.executable, script, walk, "--calls"], capture_output=True, text=True, check=True
    ).stdout
    files = int(re.search(r"functions in (\d+) files", printed)[1])
    assert files <= most, printed
