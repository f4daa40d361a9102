"""Tools and MCP servers that misbehave at random.

Whatever they do, a call ends in a bounded text, and nothing that they have started is left.
"""

import json
import random
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tool_server import BY_HAND, none_left

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.dialogue.tools import mcp_servers
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Tool, ToolError, run
from chatapp.dialogue.tools.user_tools import read_servers

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
    (folder / "mcp.json").write_text('{"mcpServers": {}}')
    monkeypatch.setenv("CHATAPP_MCP_SERVERS", str(folder / "mcp.json"))
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
    call_all(folder)
    assert none_left(folder), code


def call_all(folder):
    """Call the tools of a server; what cannot be is told in a sentence."""
    registry = find_tools()
    tools: dict[str, Tool] = {}
    refusals: list[str] = []
    try:
        tools = registry.chosen(["demo"])
    except ToolError as error:
        refusals = [str(error)]
    for problem in (*refusals, *registry.problems_of(["demo"])):
        assert len(problem) < 1_000
    for tool in list(tools.values())[:3]:
        assert len(json.dumps(tool.to_dict())) < 20_000
        check(run(tool, {}, threading.Event()))
    registry.running.close()


class Spoilt(BaseHTTPRequestHandler):
    """A server by HTTP whose answers are spoilt somewhere. dice: says where."""

    dice = random.Random(0)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        dice = self.dice
        tool = {"name": "t", "description": "Does it.", "inputSchema": {"type": "object"}}
        if dice.random() < 0.3:
            tool[dice.choice(list(tool))] = dice.choice(JUNK)
        text = {"type": "text", "text": "\x1b[2J" * dice.choice([1, 99_999])}
        about = {"serverInfo": {"name": "\x1b[2J[b]", "version": "1"}}
        about |= {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        results = {
            "initialize": about,
            "tools/list": {"tools": [tool] * dice.choice([1, 1, 300])},
            "tools/call": {"content": [text]},
        }
        result = results.get(asked.get("method"), {})
        result = dice.choice(JUNK) if dice.random() < 0.04 else result
        data = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), "result": result}).encode()
        is_whole = dice.random() > 0.04
        if not is_whole:
            data = dice.choice([b"", b"[" * 50_000, bytes(range(256)), b"x" * 11_000_000])
        self.send_response(dice.choice([200] * 90 + [202, 204, 307, 401, 500]))
        self.send_header("Location", "http://127.0.0.1:9/" + SECRET)
        kinds = ["application/json"] * 60 + ["text/event-stream", "text/html", "x" * 999]
        self.send_header("Content-Type", dice.choice(kinds))
        if is_whole:
            self.send_header("Content-Length", str(len(data) + dice.choice([0] * 60 + [7, -7])))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *words):
        pass


def attack_by_web(folder, dice):
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Site", (Spoilt,), {"dice": dice})) as site:
        site.daemon_threads, site.block_on_close = True, False
        threading.Thread(target=site.serve_forever, daemon=True).start()
        block = {"demo": {"url": f"http://127.0.0.1:{site.server_port}/"}}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": block}))
        call_all(folder)
        site.shutdown()


def attack_by_file(folder, dice):
    """The `mcpServers` file of another program: what can be used is, the rest is told."""
    fields = {"command": "x", "args": ["-y", "${A}"], "env": {"K": "v"}, "url": "http://a.b/"}
    names = ["a", "b c", "\x1b[2J", "", "x" * 300]
    for _ in range(20):
        servers = dict.fromkeys(names, dice.choice(JUNK))
        for name in dice.sample(names, 4):
            chosen = dice.sample(list(fields), 3)
            servers[name] = {key: dice.choice([fields[key], *JUNK]) for key in chosen}
        text = json.dumps(dice.choice([{"mcpServers": servers}] * 5 + JUNK))
        if dice.random() < 0.2:
            text = text[: dice.randrange(len(text) + 1)] + dice.choice(["", "\0", "{", "]"])
        (folder / "other.json").write_text(text)
        try:
            problems = read_servers(folder / "other.json")[1]
        except UserError as error:
            problems = {"": str(error)}
        for problem in problems.values():
            assert len(problem) < 1_000, text
            assert problem.isprintable(), text


ATTACKS = [attack_by_tool, attack_by_server, attack_by_web, attack_by_file]


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_tools_and_servers(folder, attack):
    dice = random.Random(35)
    for _ in range(4):
        attack(folder, dice)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hundred_hostile_tools_and_servers(folder, attack):
    dice = random.Random(2026)
    for _ in range(50):
        attack(folder, dice)
