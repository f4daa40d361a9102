"""Tools and MCP servers that misbehave at random.

Whatever they do, a call ends in a bounded text, and nothing that they have started is left.
"""

import json
import random
import sys
import threading
from typing import Any

import pytest
from tool_server import BY_HAND, none_left

from chatapp.common.foreign import printable
from chatapp.dialogue.tools import mcp_servers
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Tool, ToolError, run

SECRET = "sk-not-for-tools"

ACTS = [
    "print('\\x1b[2J\\x1b]0;title\\x07 done', flush=True)",
    "sys.stdout.buffer.write(bytes(range(256)) * 50)",
    "sys.stderr.write('e' * 300_000)",
    "sys.stdout.write('x' * 3_000_000)",
    "print(os.environ)",
    "print(open(f'/proc/{os.getppid()}/environ', 'rb').read())",
    "os.close(1); os.close(2)",
    "subprocess.Popen(['sleep', '600'])",
    "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "subprocess.Popen(['sleep', '600'], start_new_session=True, env={})",
    "os.fork() or os.setsid() or os.fork() or time.sleep(600)",
    "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15)]",
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.kill(-os.getpgid(0), signal.SIGKILL)",
    "time.sleep(600)",
    "sys.exit(dice)",
    "os.abort()",
    "sys.stdin.read(); print('read')",
    "[os.fork() for _ in range(3)]",
    "raise RuntimeError('\\x9b31m' * 1000)",
    "os.execvp('sh', ['sh', '-c', 'trap \"\" TERM INT; (sleep 600 &) ; sleep 600'])",
]
"""One statement each; a program consists of some of them."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(mcp_servers, "_LISTING_SECONDS", 1.0)
    folder = tmp_path / "config" / "tools"
    folder.mkdir(parents=True)
    return folder


def program(dice):
    """The text of a program that does some of it."""
    acts = [f"dice = {dice.randrange(1, 256)}", *dice.sample(ACTS, dice.randrange(1, 5))]
    if dice.random() < 0.1:  # nothing that has left its environment can be found after that
        acts = ["os.kill(os.getppid(), signal.SIGKILL)", "time.sleep(600)"]
    return "import os, signal, subprocess, sys, time\n" + "\n".join(acts) + "\n"


def add_tool(folder, code, dice):
    (folder / "own.py").write_text(code)
    command = json.dumps([sys.executable, "own.py"])
    (folder / "own.toml").write_text(
        f'name = "own"\ndescription = "Own."\ncommand = {command}\n'
        f"timeout = 0.5\noutput_limit = {dice.choice([10, 1_000, LONGEST_RESULT])}\n"
    )
    return find_tools().tools["own"]


JUNK: list[Any] = [
    None,
    True,
    -1,
    1e400,
    "",
    "x" * 20_000,
    "\x1b[2J\u202e",
    [],
    [[]],
    {},
    {"$ref": "#"},
]
JUNK += [{"type": "object", "properties": {"a": {"type": ["string", 3]}}}, {"allOf": [{}] * 2_000}]


def answers(dice):
    """The text of a server whose answers are spoilt somewhere."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [
        {"name": f"t{number}", "description": "Does it.", "inputSchema": schema}
        for number in range(dice.choice([1, 3, 300]))
    ]
    spoilt = dice.choice(tools)
    spoilt[dice.choice(["name", "description", "inputSchema"])] = dice.choice(JUNK)
    code = BY_HAND.format(tools=f"json.loads({json.dumps(tools)!r})")
    for old, new in dice.sample(
        [
            ('"2025-06-18"', repr(dice.choice(JUNK[:7]))),
            ('"id": asked["id"]', '"id": "other"'),
            ('"result": answer', f'"result": json.loads({json.dumps(dice.choice(JUNK))!r})'),
            ("flush=True)", f"flush=True); {dice.choice(ACTS)}".replace("dice", "3")),
            ('print("a line of a log")', 'print("{" * 100_000)'),
            ('{"tools": TOOLS}', '{"tools": TOOLS, "nextCursor": "again"}'),
            ('"no"', repr("\x1b[2J" * 1_000)),
        ],
        2,
    ):
        code = code.replace(old, new)
    return "import os, signal, subprocess, time\n" + code


def check(outcome):
    assert len(outcome.text) <= LONGEST_RESULT + 100
    assert outcome.text == printable(outcome.text)
    assert SECRET not in outcome.text.replace("OPENAI_API_KEY", "")
    assert outcome.ending in ("done", "failed", "stopped")


def attack_by_tool(folder, dice):
    code = program(dice)
    tool = add_tool(folder, code, dice)
    check(run(tool, {}, threading.Event()))
    assert none_left(folder), code


def attack_by_server(folder, dice):
    code = answers(dice)
    (folder / "demo.py").write_text(code)
    command = json.dumps([sys.executable, "demo.py"])
    (folder / "demo.toml").write_text(f'name = "demo"\nserver = {command}\ntimeout = 0.5\n')
    registry = find_tools()
    tools: dict[str, Tool] = {}
    refusals: list[str] = []
    try:
        tools = registry.chosen(["demo"])
    except ToolError as error:
        refusals = [str(error)]
    for problem in (*refusals, *registry.problems_of(["demo"])):
        assert len(problem) < 1_000, code
    for tool in list(tools.values())[:3]:
        assert len(json.dumps(tool.to_dict())) < 20_000
        check(run(tool, {}, threading.Event()))
    registry.running.close()
    assert none_left(folder), code


@pytest.mark.parametrize("attack", [attack_by_tool, attack_by_server])
def test_hostile_tools_and_servers(folder, attack):
    dice = random.Random(35)
    for _ in range(4):
        attack(folder, dice)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("attack", [attack_by_tool, attack_by_server])
def test_a_hundred_hostile_tools_and_servers(folder, attack):
    dice = random.Random(2026)
    for _ in range(50):
        attack(folder, dice)
