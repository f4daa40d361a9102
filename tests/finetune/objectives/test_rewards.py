"""Rewards of replies: the checks, and functions of the user's own, which are code that runs."""

import gc
import subprocess
import sys
import time
from io import StringIO

import psutil
import pytest
from rich.console import Console
from tiny_grpo import config, settings, trust
from tool_server import ends

from chatapp.prompting.messages import Message
from finetune.config.sections import ConfigError, Interrupted
from finetune.data.prompts import EncodedPrompt
from finetune.objectives.grpo import Grpo
from finetune.objectives.rewards import DrawnReply, RewardError, Rewards
from finetune.run import examine, show, train

QUIET = Console(stderr=True, quiet=True)

PROMPT = EncodedPrompt(
    [1], "What is 7 - 5?", (Message("user", "What is 7 - 5?"),), "It is 2", "", b""
)


@pytest.mark.parametrize(
    ("check", "text", "reward"),
    [
        ({"kind": "exact_match"}, " It  is 2\n", 1),
        ({"kind": "exact_match"}, "It is 2.", 0),
        ({"kind": "exact_match", "weight": 2.5}, "It is 2", 2.5),
        ({"kind": "numeric_match"}, "7 - 5 = 2.0, so 2.", 1),
        ({"kind": "numeric_match"}, "2 or 3", 0),
        ({"kind": "numeric_match"}, "two", 0),
        ({"kind": "regex", "pattern": r"^It\b"}, "It", 1),
        ({"kind": "regex", "pattern": r"^It\b"}, "So It", 0),
        ({"kind": "length", "most": 4}, "abcd", 1),
        ({"kind": "length", "most": 4}, "abcdef", 0.5),
        ({"kind": "length", "most": 4}, "abcdefghij", 0),
        ({"kind": "length", "least": 4, "most": 9}, "a", 0.25),
        ({"kind": "format", "form": "number"}, "-1,200.5", 1),
        ({"kind": "format", "form": "number"}, "12 apples", 0),
        ({"kind": "format", "form": "json"}, '{"a": 1}', 1),
        ({"kind": "format", "form": "json"}, "3", 0),
        ({"kind": "format", "form": "json"}, "[" * 100000, 0),
        ({"kind": "format", "form": "line"}, "one", 1),
        ({"kind": "format", "form": "line"}, "one\ntwo", 0),
        ({"kind": "format", "form": "line"}, "", 0),
    ],
)
def test_checks(check, text, reward):
    rewards = Rewards(settings(rewards=[check]).rewards)
    assert rewards.of(PROMPT, DrawnReply([1] * len(text), text.strip())) == reward


FUNCTIONS = """
import time
def good(prompt, reply, reference):
    print("not an answer")
    return len(reply) + (reference == "It is 2") + prompt.startswith("What")
def raises(prompt, reply, reference): raise KeyError("gone")
def text(prompt, reply, reference): return "fine"
def nan(prompt, reply, reference): return float("nan")
def huge(prompt, reply, reference): return 10**400
def slow(prompt, reply, reference): time.sleep(60)
def leaves(prompt, reply, reference): import os; os._exit(3)
number = 3
"""


def of_function(folder, name):
    (folder / "mine.py").write_text(FUNCTIONS)
    check = {
        "kind": "function",
        "function": f"{folder / 'mine.py'}:{name}",
        "timeout": 0.5 if name == "slow" else 60.0,
    }
    return Rewards(settings(rewards=[check]).rewards)


def test_a_function_of_the_users_own(tmp_path):
    rewards = of_function(tmp_path, "good")
    assert rewards.of(PROMPT, DrawnReply([1], "abc")) == 5.0
    assert rewards.functions[0].endswith("mine.py:good")


def test_the_process_of_a_function_ends_with_its_rewards(tmp_path):
    before = psutil.Process().children()
    rewards = of_function(tmp_path, "good")
    (process,) = set(psutil.Process().children()) - set(before)
    del rewards
    gc.collect()
    assert not process.is_running()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", r"mine\.py:raises raised KeyError: 'gone', for the reply 'abc' to 'What is 7"),
        ("text", r"gave 'fine', expected a number"),
        ("nan", r"gave nan, expected a number"),
        ("huge", r"gave inf, expected a number"),
        ("slow", r"took longer than 0.5 seconds"),
        ("leaves", r"ended its process"),
    ],
)
def test_a_function_that_misbehaves_is_one_sentence(tmp_path, name, words):
    rewards = of_function(tmp_path, name)
    for _ in range(2):  # the next call begins anew
        with pytest.raises(RewardError, match=words):
            rewards.of(PROMPT, DrawnReply([1], "abc"))


def test_what_a_function_prints_reaches_no_terminal_raw(tmp_path, capfd):
    (tmp_path / "mine.py").write_text(
        "import os, sys\n"
        "def score(prompt, reply, reference):\n"
        "    os.write(2, b'a\\x1b[2Jb\\n'); print('c\\x9bd', flush=True); return 1\n"
    )
    check = {"kind": "function", "function": f"{tmp_path / 'mine.py'}:score"}
    rewards = Rewards(settings(rewards=[check]).rewards)
    rewards.of(PROMPT, DrawnReply([1], "abc"))
    shown = ""
    while shown.count("\n") < 2:
        shown += capfd.readouterr().err
    assert shown == "a␛[2Jb\nc\ufffdd\n"


def test_a_function_that_floods_its_answers_fills_no_memory(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def score(prompt, reply, reference):\n"
        "    for fd in range(3, 20):\n"
        "        try:\n"
        "            for _ in range(3000): os.write(fd, b'x' * 99_999 + b'\\n')\n"
        "        except OSError: pass\n"
        "    return 1\n"
    )
    check = {"kind": "function", "function": f"{tmp_path / 'mine.py'}:score"}
    rewards = Rewards(settings(rewards=[check]).rewards)
    before = psutil.Process().memory_info().rss
    with pytest.raises(RewardError, match="wrote between the answers"):
        rewards.of(PROMPT, DrawnReply([1], "abc"))
    time.sleep(1)  # in which 300 MB would come
    assert psutil.Process().memory_info().rss - before < 10**8


WITH_DAEMON = """
import os, subprocess, sys
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
def score(prompt, reply, reference):
    with open(os.path.join(os.path.dirname(__file__), "pids"), "a") as file:
        print(os.getpid(), daemon.pid, file=file)
    return 1.0
"""


def test_a_function_gets_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    (tmp_path / "mine.py").write_text(
        "import os\ndef score(*_): return float('OPENAI_API_KEY' in os.environ)\n"
    )
    check = {"kind": "function", "function": f"{tmp_path / 'mine.py'}:score"}
    assert Rewards(settings(rewards=[check]).rewards).of(PROMPT, DrawnReply([1], "abc")) == 0.0


@pytest.mark.parametrize("end", ["done", "interrupted"])
def test_nothing_that_a_function_started_is_left_after_a_run(tmp_path, monkeypatch, end):
    trust(tmp_path, monkeypatch)
    (tmp_path / "mine.py").write_text(WITH_DAEMON)
    made = config(tmp_path, [{"kind": "function", "function": f"{tmp_path / 'mine.py'}:score"}])
    if end == "interrupted":
        monkeypatch.setattr(Grpo, "losses", interrupt)
        with pytest.raises(Interrupted):
            train(made, QUIET, "cpu")
    else:
        train(made, QUIET, "cpu")
    pids = {int(pid) for pid in (tmp_path / "pids").read_text().split()}
    assert all(ends(pid) for pid in pids)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_nothing_that_a_function_started_is_left_after_a_kill(tmp_path):
    (tmp_path / "mine.py").write_text(WITH_DAEMON)
    code = (
        "import sys, time; from finetune.objectives.rewards import RewardFunction\n"
        "RewardFunction(sys.argv[1], 60)('', '', ''); print('ready', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, f"{tmp_path / 'mine.py'}:score"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    assert all(ends(int(pid)) for pid in (tmp_path / "pids").read_text().split())


class Terminal(StringIO):
    """Standard input or error of somebody at a terminal."""

    def isatty(self):
        return True


def with_code(folder):
    """A configuration whose reward function leaves a file behind when its module runs."""
    (folder / "mine.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w')\ndef score(prompt, reply, reference): return 1.0\n"
    )
    return config(folder, [{"kind": "function", "function": f"{folder / 'mine.py'}:score"}])


def test_check_runs_no_code_unless_it_is_wanted(tmp_path, monkeypatch):
    made = with_code(tmp_path)
    console = Console(file=StringIO(), record=True, width=300)
    show(examine(made, "cpu"), console)
    assert not (tmp_path / "ran").exists()
    assert "mine.py:score: code, which does not run in a check" in console.export_text()
    assert examine(made, "cpu").document()["reference_reward"] is None
    with pytest.raises(ConfigError, match=r"mine\.py is code that would run as you"):
        examine(made, "cpu", runs_code=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("\n", False), ("", False)])
def test_code_runs_after_a_yes_on_a_terminal(tmp_path, monkeypatch, answer, runs):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", terminal)
    made = with_code(tmp_path)
    if runs:
        examine(made, "cpu", runs_code=True)
    else:
        with pytest.raises(ConfigError, match=r"mine\.py may not run"):
            train(made, QUIET, "cpu")
    assert f"runs the code in {tmp_path / 'mine.py'} as you" in terminal.getvalue()
    assert (tmp_path / "ran").exists() == runs


def test_code_of_a_trusted_folder_runs(tmp_path, monkeypatch):
    made = with_code(tmp_path)
    trust(tmp_path / "elsewhere", monkeypatch)
    with pytest.raises(ConfigError, match="would run as you"):
        train(made, QUIET, "cpu")
    trust(tmp_path, monkeypatch)
    examine(made, "cpu", runs_code=True)
    assert (tmp_path / "ran").exists()


def test_a_function_that_is_not_there_is_one_sentence(tmp_path):
    for name in ("gone", "number"):
        with pytest.raises(ConfigError, match=rf"rewards: .*mine\.py:{name} cannot be loaded: "):
            of_function(tmp_path, name)
    for place in ("mine.py", "mine:f", "mine.py:no name"):
        with pytest.raises(ValueError, match=r"expected file\.py:function"):
            settings(rewards=[{"kind": "function", "function": place}])
