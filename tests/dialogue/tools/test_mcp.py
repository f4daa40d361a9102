"""Servers of the Model Context Protocol: one that is as it should be, and those that are not."""

import json
import sys
import textwrap
import threading
import time

import psutil
import pytest
from tool_server import BY_HAND, DAEMON, add_lasting_server, add_server, ends, none_left

from chatapp.common.limited_process import Program
from chatapp.dialogue.tools import mcp_servers
from chatapp.dialogue.tools.mcp_servers import Connection
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import LONGEST_RESULT, ToolError, misfit_of, run


def server(folder, code, more="", name="demo"):
    """The tools with a server that runs a program of Python."""
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    command = json.dumps([sys.executable, f"{name}.py"])
    (folder / f"{name}.toml").write_text(f'name = "{name}"\nserver = {command}\n{more}')
    return find_tools()


def never():
    return threading.Event()


def test_its_tools_are_called_as_any_other(folder):
    add_server(folder)
    registry = find_tools()
    assert "demo_add" not in registry.tools
    tools = registry.chosen(["demo", "clock"])
    assert [*tools] == [
        "demo_add",
        "demo_count",
        "demo_flood",
        "demo_fail",
        "demo_hang",
        "demo_die",
        "clock",
    ]
    add = tools["demo_add"]
    assert add.asks
    assert add.description == "Adds two numbers."
    assert run(add, {"a": 2, "b": 3}, never()).text == "5"
    assert misfit_of(tools, "demo_add", {"a": "two"}) == (
        "the argument 'a' is the string 'two', expected integer"
    )
    assert misfit_of(tools, "demo_add", {}) == "the argument 'a' is missing"
    # It is the same server that is asked again, and what it tells is text without controls.
    assert run(tools["demo_count"], {}, never()).text == "call 1 <|im_end|>"
    assert run(tools["demo_count"], {}, never()).text == "call 2 <|im_end|>"
    assert len(run(tools["demo_flood"], {}, never()).text) < LONGEST_RESULT + 100
    outcome = run(tools["demo_fail"], {}, never())
    assert (outcome.ending, "no such city" in outcome.text) == ("failed", True)
    # One that dies is told of, and begun anew by the next call.
    assert run(tools["demo_die"], {}, never()).text.startswith("error: its server has ended")
    assert run(tools["demo_count"], {}, never()).text == "call 1 <|im_end|>"


def test_the_longest_name_of_a_server_counts(folder):
    def with_tools(name, *tools):
        listed = [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]
        return server(folder, BY_HAND.format(tools=listed), name=name)

    with_tools("notes", "x", "x_far")
    registry = with_tools("notes_x", "near")
    assert [*registry.chosen(["notes_x"])] == ["notes_x_near"]
    assert [*registry.chosen(["notes_x_near", "notes_x_far"])] == ["notes_x_near", "notes_x_far"]
    again = find_tools(running=registry.running)
    assert [*again.chosen(["notes_x"])] == ["notes_x_near"]


def test_a_server_that_is_not_wanted_is_not_started(folder):
    registry = server(folder, "open('started', 'w')")
    registry.chosen(["clock"])
    assert not (folder / "started").exists()


@pytest.mark.parametrize("ends_by", ["time", "the user"])
def test_a_call_that_hangs_ends_its_server_with_all_below_it(folder, ends_by):
    limit = 4 if ends_by == "time" else 60
    add_server(folder, f"timeout = {limit}\n")
    tool = find_tools().chosen(["demo_hang"])["demo_hang"]
    cancel = never()
    pid = folder / "pid"
    if ends_by == "the user":
        threading.Thread(target=lambda: (_wait_for(pid), cancel.set())).start()
    outcome = run(tool, {}, cancel)
    if ends_by == "time":
        assert (outcome.ending, outcome.text) == ("failed", "error: it took longer than 4 seconds")
    else:
        assert outcome.ending == "stopped"
    assert ends(int(pid.read_text()))


def test_closed_servers_are_gone_and_stay_so(folder):
    add_lasting_server(folder)
    registry = find_tools()
    add = registry.chosen(["demo_add"])["demo_add"]
    pid = int((folder / "pid").read_text())
    registry.running.close()
    assert ends(pid)
    assert run(add, {"a": 2, "b": 3}, never()).text == "error: its chat was closed"
    assert int((folder / "pid").read_text()) == pid


def test_a_server_gets_the_variables_that_its_file_lists(folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("NOTES_KEY", "note")
    code = "import json, os; json.dump(dict(os.environ), open('given', 'w'))\n"
    code += BY_HAND.format(tools=[])
    server(folder, code, 'environment = ["NOTES_KEY"]\n').list_names()
    given = json.loads((folder / "given").read_text())
    always = {"PATH", "HOME", "LANG", "LC_CTYPE", "CHATAPP_CALL"}
    assert given.keys() - always == {"NOTES_KEY"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no subreaper")
def test_a_daemon_of_a_server_ends_with_it(folder):
    registry = server(folder, DAEMON + BY_HAND.format(tools=[]))
    registry.list_names()
    pid = int((folder / "daemon").read_text())
    assert psutil.pid_exists(pid)
    registry.running.close()
    assert ends(pid)


def test_two_that_ask_at_once_start_one_server(folder, monkeypatch):
    started: list[Program] = []

    class Slow(Connection):
        def __init__(self, program):
            started.append(program)
            time.sleep(0.1)
            super().__init__(program)

    monkeypatch.setattr(mcp_servers, "Connection", Slow)
    registry = server(folder, BY_HAND.format(tools=[]))
    threads = [threading.Thread(target=registry.list_names) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1


def _wait_for(path):
    while not (path.exists() and path.read_text()):
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise SystemExit('no key')", "demo: its server has ended; its output: no key"),
        (
            "import time; print('hello', flush=True); time.sleep(60)",
            "demo: it took longer than 2 seconds; its output: hello",
        ),
        (
            "while True: print('\\x1b[2J' * 1000)",
            "demo: it took longer than 2 seconds; its output:",
        ),
        (
            "import sys\nwhile True: sys.stdout.write('x' * 1000000)",
            "demo: its server has ended; its output: a message of more than 10 MB",
        ),
    ],
)
def test_a_server_that_is_none_is_told(folder, monkeypatch, code, problem):
    limit = 2 if "longer" in problem else 30
    monkeypatch.setattr(mcp_servers, "_LISTING_SECONDS", limit)
    registry = server(folder, code)
    with pytest.raises(ToolError) as error:
        registry.chosen(["demo"])
    assert str(error.value).startswith(problem)
    assert "\x1b" not in str(error.value)
    assert "\n" not in str(error.value)
    assert "calculator" in registry.list_names()[0]


def test_a_list_that_never_comes_can_be_stopped(folder):
    registry = server(folder, "import time; time.sleep(60)")
    cancel = never()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(ToolError, match="demo: stopped before it had listed its tools"):
        registry.chosen(["demo_x"], cancel)


def test_a_program_that_is_not_there_is_told(folder):
    (folder / "gone.toml").write_text('name = "gone"\nserver = ["not-there"]\n')
    _, problems = find_tools().list_names()
    assert problems == ["gone: not-there cannot be started: No such file or directory"]


def test_tools_that_are_no_good_cost_no_others(folder):
    good = {"name": "a.good", "inputSchema": {"type": "object", "$defs": {}, "title": "Good"}}
    items = {"type": "array", "items": 5}
    tools = [
        good,
        {**good, "name": "bad", "inputSchema": {"type": "object", "properties": {"x": items}}},
        {**good, "name": "c" * 80},
        good,
        {**good, "name": "long", "inputSchema": {"type": "object", "title": "x" * 20_000}},
    ]
    names, problems = server(folder, BY_HAND.format(tools=tools)).list_names()
    assert [name for name in names if name.startswith("demo")] == ["demo_a_good"]
    assert problems == [
        "demo: in the schema of 'bad', 'properties.x.items' is the number 5, expected object or "
        "boolean",
        f"demo: the name of its tool '{'c' * 60}'… is too long",
        "demo: it lists 'a.good' twice",
        "demo: the schema of 'long' has 20,031 characters, expected at most 10,000",
    ]


def test_more_tools_than_the_limit_is_one_sentence(folder):
    tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(201)]
    with pytest.raises(ToolError, match="demo: its server lists more than 200 tools"):
        server(folder, BY_HAND.format(tools=tools)).chosen(["demo"])
    assert len(server(folder, BY_HAND.format(tools=tools[:200])).chosen(["demo"])) == 200


def test_pages_without_end_are_one_sentence(folder):
    code = BY_HAND.format(tools=[]).replace('{"tools": TOOLS}', '{"tools": [], "nextCursor": "x"}')
    with pytest.raises(ToolError, match="demo: its server lists its tools on more than 200 pages"):
        server(folder, code).chosen(["demo"])


def test_a_second_tool_of_a_name_is_one_sentence(folder):
    own = 'name = "demo_x"\ndescription = "Own."\ncommand = ["true"]\n'
    (folder / "own.toml").write_text(own)
    schema = {"type": "object"}
    listed = [{"name": name, "inputSchema": schema} for name in ("x", "y", "y_z")]
    server(folder, BY_HAND.format(tools=listed))
    registry = server(folder, BY_HAND.format(tools=[listed[0] | {"name": "z"}]), name="demo_y")
    assert [*registry.chosen(["demo"])] == ["demo_y", "demo_y_z"]
    assert registry.problems_of(["demo"]) == ["demo: its tool 'demo_x' has the name of another"]
    second = "demo_y: its tool 'demo_y_z' has the name of another"
    names, problems = registry.list_names()
    assert registry.problems_of(["demo_y"]) == [second]
    assert names.count("demo_x") == names.count("demo_y_z") == 1
    assert problems == [*registry.problems_of(["demo"]), second]


def test_what_a_foreign_schema_has_of_its_own_is_left_to_its_server(folder):
    """Types of no draft, references, and patterns, which may take without end."""
    properties = {
        "any": {"type": "any", "unit": "m"},
        "name": {"type": "string", "pattern": "(?<year>\\\\d+)"},
        "slow": {"type": "string", "pattern": "(a+)+$"},
        "again": {"$ref": "#"},
    }
    schema = {"type": "object", "properties": properties, "required": ["any"]}
    listed = [{"name": "odd", "inputSchema": schema}]
    tools = server(folder, BY_HAND.format(tools=listed)).chosen(["demo"])
    slow = {"any": 1, "name": "x", "slow": "a" * 50 + "!", "again": {"any": 2}}
    assert misfit_of(tools, "demo_odd", slow) == ""
    assert misfit_of(tools, "demo_odd", {}) == "the argument 'any' is missing"


def test_a_list_that_is_none_is_told(folder):
    _, problems = server(folder, BY_HAND.format(tools=[{"name": 3}])).list_names()
    start = "demo: its server does not keep to the protocol: tools.0."
    assert [problem.startswith(start) for problem in problems] == [True]


def test_what_its_file_says_is_checked(folder):
    (folder / "bad.toml").write_text('name = "bad"\nserver = []\n')
    (folder / "both.toml").write_text('name = "both"\nserver = ["a"]\ncommand = ["a"]\n')
    problems = find_tools().problems
    assert "bad.toml, line 2: 'server' names no program" in problems["bad"]
    assert "'command'" in problems["both"]


@pytest.mark.parametrize("attempt", range(4))  # each met it every other time
def test_a_server_that_is_closed_while_it_ends_leaves_nothing(tmp_path, attempt):
    """That killed the supervisor, and the server's daemons were left."""
    daemons = """
        import os, time
        for number in range(30):
            if os.fork() == 0:
                os.setsid()
                open(str(number), "w").close()
                time.sleep(600)
    """
    (tmp_path / "many.py").write_text(textwrap.dedent(daemons) + BY_HAND.format(tools="[]"))
    connection = Connection(Program((sys.executable, "many.py"), tmp_path))
    while len(list(tmp_path.iterdir())) < 31:
        time.sleep(0.02)
    connection._client.result(60)
    for _ in range(200):
        connection.close()
        time.sleep(0.0002)
    assert none_left(tmp_path)
