"""The tool `python`: code of a model, kind and hostile."""

import ctypes
import json
import re
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tool_server import DAEMON

from chatapp.common.foreign import printable
from chatapp.dialogue.tools import python
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Outcome, PermissionRequest, run


def outcome(code, cancel=None):
    result = run(find_tools().tools["python"], {"code": code}, cancel or threading.Event())
    assert result.text == printable(result.text)
    assert not list(Path(tempfile.gettempdir()).iterdir())
    return result


@pytest.fixture(autouse=True)
def own_folder(folder, tmp_path, monkeypatch):
    """Where the folders of calls are made: nothing else is there."""
    (tmp_path / "calls").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a'); print('b')", "a\nb"),
        ("x = 6\nx * 7", "42"),
        ("'é 東'", "'é 東'"),
        ("print('\\x1b[2Jred\\x9b')", "red"),
        ("x = 1", "nothing was printed"),
        ("", "nothing was printed"),
        ("input()", "EOFError"),
        ("import sys; print('late'); sys.exit(0)", "late"),
        ("import os; print(os.listdir())", "[]"),
        ("print(__name__)", "__main__"),
    ],
)
def test_code_runs_as_in_an_interpreter(code, text):
    result = outcome(code)
    assert text in result.text
    assert result.ending == ("failed" if "Error" in text else "done")


def test_a_mistake_comes_with_its_line():
    result = outcome("def half(x):\n    return x / 0\n\nhalf(3)")
    assert result.ending == "failed"
    assert "line 2, in half     return x / 0 " in result.text
    assert "ZeroDivisionError: division by zero" in result.text
    assert "run_given" not in result.text
    assert "SyntaxError" in outcome("print(").text


def test_it_gets_no_variables(monkeypatch, own_folder):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    given = json.loads(outcome("import json, os; print(json.dumps(dict(os.environ)))").text)
    assert given.keys() <= {"PATH", "HOME", "TMPDIR", "LANG", "LC_CTYPE", "CHATAPP_CALL"}
    assert given["HOME"].startswith(str(own_folder))
    # Nor do the processes above it, as far as that is the tool's.
    above = outcome("import os; print(open(f'/proc/{os.getppid()}/environ').read())").text
    assert "sk-secret" not in above


def test_memory_ends_at_its_limit():
    assert "MemoryError" in outcome("x = bytearray(2 * 2**30)").text
    assert "MemoryError" in outcome("x = []\nwhile True: x.append(bytearray(2**26))").text


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such filter")
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import ctypes, os\nif ctypes.CDLL(None).fork() < 0: os.open('/', os.O_WRONLY)",
        f"{DAEMON}\nprint('done')",
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)",
        "import os; os.posix_spawn('/bin/sleep', ['sleep', '600'], {})",
        "import multiprocessing; multiprocessing.Pool(2)",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
        "import os; os.kill(os.getppid(), 0)",
        "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (9, 9))",
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, os.getppid(), 0, 0): print(os.strerror(ctypes.get_errno()))",
        "import fcntl, os; fcntl.fcntl(os.pipe()[0], 8, os.getppid())",  # F_SETOWN
        "import fcntl, os, struct; fcntl.ioctl(0, 0x8901, struct.pack('i', os.getppid()))",
        "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)",
        "import os; os.sched_setaffinity(os.getppid(), {0})",
        "import os; os.memfd_create('x')",
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.shmget(77, 4096, 0o1666) < 0: print(os.strerror(ctypes.get_errno()))",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    ],
)
def test_it_reaches_no_other_process_and_no_network(code, own_folder):
    assert re.search("not permitted|not allowed|Is a directory|denied", outcome(code).text)
    assert not [
        process
        for process in psutil.process_iter(["cwd"])
        if str(process.info["cwd"]).startswith(str(own_folder))
    ]


HAS_LANDLOCK = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


@pytest.mark.skipif(not HAS_LANDLOCK, reason="the kernel has no Landlock, as the guide says")
@pytest.mark.parametrize(
    "code",
    [
        "import os; open(f'/proc/{os.getppid()}/oom_score_adj', 'w')",
        "import os; open(f'/proc/{os.getppid()}/environ')",
        "from multiprocessing import shared_memory\n"
        "shared_memory.SharedMemory(create=True, size=10)",
        "open('/dev/shm/left', 'w')",
        "open(OWN)",
        "open(OWN, 'a')",
        "import os; os.remove(OWN)",
        "import os; os.link(OWN, 'mine')",
        "import os; os.listdir(os.path.dirname(OWN))",
        "import os; os.mkdir(os.path.dirname(OWN) + '/new')",
    ],
)
def test_it_reaches_no_file_of_its_user(code, tmp_path, monkeypatch):
    own = tmp_path / "own.txt"
    own.write_text("mine")
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    assert re.search(
        "PermissionError|cross-device", outcome(code.replace("OWN", repr(str(own)))).text
    )
    assert own.read_text() == "mine"
    free = "import os, tempfile\nos.mkdir('a'); open('a/b', 'w').write('x'); os.rename('a/b', 'c')"
    assert outcome(f"{free}\nwith tempfile.TemporaryFile() as f: f.write(b'y')").ending == "done"


def test_threads_and_packages_work():
    threads = "import threading\nthread = threading.Thread(target=print, args=('thread',))\n"
    assert outcome(f"{threads}thread.start(); thread.join()").text == "thread"
    assert outcome("import numpy\nint(numpy.arange(5).sum())").text == "10"
    assert outcome("import resource\nresource.getrlimit(resource.RLIMIT_AS)[0]").text == str(2**30)


def test_a_hundred_megabytes_are_cut():
    text = outcome("while True: print('x' * 10_000)").text
    assert LONGEST_RESULT < len(text) < LONGEST_RESULT + 100
    text = outcome("open('big', 'wb').write(bytes(100 * 2**20))").text
    assert "File too large" in text


@pytest.mark.parametrize("ends_by", ["time", "the user"])
def test_code_without_end_is_ended(monkeypatch, ends_by):
    monkeypatch.setattr(python, "_SECONDS", 1.0 if ends_by == "time" else 60.0)
    cancel = threading.Event()
    if ends_by == "the user":
        threading.Timer(0.5, cancel.set).start()
    started = time.monotonic()
    result = outcome("import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass", cancel)
    assert time.monotonic() - started < 30
    expected = "it took longer than 1 seconds" if ends_by == "time" else "it was stopped"
    assert expected in result.text


def test_the_whole_code_is_shown():
    code = "import os\n" + "print('a line of it')\n" * 40 + "os.remove('\u202e')"
    request = PermissionRequest(find_tools().tools["python"], {"code": code})
    lines = request.text().splitlines()
    assert lines[1:3] == ['  "code": ', "  │ import os"]
    assert lines.count("  │ print('a line of it')") == 40
    assert lines[-1] == "  │ os.remove('\\u202e')"
    assert not request.is_cut


def test_deeply_nested_folders_are_removed():
    code = """
import os
for _ in range(2000):
    os.mkdir("a"); os.symlink("/", "root"); open("file", "w").close()
    os.chdir("a")
os.chmod(".", 0)
"""
    assert outcome(code).ending == "done"


def test_an_error_of_a_library_is_a_result():
    def broken(arguments, cancel):
        raise RecursionError("too deep")

    tool = replace(find_tools().tools["python"], run=broken)
    assert run(tool, {"code": ""}, threading.Event()) == Outcome(
        "failed", "error: RecursionError: too deep"
    )
