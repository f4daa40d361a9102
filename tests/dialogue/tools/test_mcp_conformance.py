"""The conformance suite of the Model Context Protocol for clients, by npm.

It runs where the program `conformance` is in PATH or in CHATAPP_CONFORMANCE: `npm install
@modelcontextprotocol/conformance@0.1.13` for Node 20, later versions for Node 22.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import conformance_client
import pytest

PROGRAM = os.environ.get("CHATAPP_CONFORMANCE") or shutil.which("conformance")


@pytest.mark.skipif(PROGRAM is None, reason="the conformance suite is not installed")
@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry"])
def test_the_client_conforms(tmp_path, scenario):
    client = f"{sys.executable} {conformance_client.__file__}"
    result = subprocess.run(
        [str(PROGRAM), "client", "--command", client, "--scenario", scenario],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 failed" in result.stdout + result.stderr
