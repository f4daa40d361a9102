"""What libraries say: where it comes from and of what kind it is, never its words."""

import subprocess
import sys
import tomllib

from test_kinds import ROOT, calls, users

SPEAKING = """
import logging, sys, threading, warnings
from chatapp.common.unforeseen import silence_libraries
silence_libraries()
words = "Bearer sk-secret \\x1b[2J"
logging.getLogger("mcp.client").error(words)
logging.basicConfig(format="%(message)s")
logging.getLogger("aiohttp").error("%s", words, stack_info=True)
try:
    raise ValueError(words)
except ValueError:
    logging.getLogger("asyncio").exception(words)
logging.getLogger("chatapp.server").warning("own words")
warnings.warn(words)
def fail():
    raise ValueError("\\x1b[2J")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
class Ended:
    def __del__(self):
        raise ValueError(words)
Ended()
"""


def test_a_librarys_words_are_on_no_terminal_and_in_no_log(home):
    done = subprocess.run(
        [sys.executable, "-c", SPEAKING], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert lines[:3] == ["aiohttp: error", "asyncio: ValueError", "own words"]
    assert len(lines) == 4, lines
    assert lines[3].startswith("chatapp: an unexpected error, ValueError: ␛[2J; the traceback is")
    assert (home / "log" / "chatapp.log").read_text().count("Traceback") == 1


def test_every_program_of_this_package_silences_libraries():
    """Nobody else sets up what is written of their messages."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    mains = {place.partition(":")[0].replace(".", "/") + ".py" for place in scripts.values()}
    assert users("silence_libraries") == mains
    own = {"chatapp/common/unforeseen.py"}
    assert users(r".*\.(addHandler|addFilter|setLogRecordFactory|captureWarnings)") == own
    shown = {file for file, _, _ in calls(r"traceback\.\w+|sys\.excepthook")}
    assert shown == own | {"chatapp/dialogue/tools/python.py"}  # of the code, in its process
