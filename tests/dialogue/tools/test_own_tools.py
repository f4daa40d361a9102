"""The user's own tools: their files, how they run, and how they are ended."""

import json
import math
import os
import sys
import textwrap
import threading
import time

import psutil
import pytest
from tool_server import DAEMON, none_left

from chatapp.common.foreign import clean
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.schemas import fault, misfit
from chatapp.dialogue.tools.tool import LONGEST_RESULT, call_in_words, misfit_of, run

GOOD = 'name = "echo"\ndescription = "Says it."\ncommand = ["cat"]\n'


def program(folder, code, more=""):
    """A tool that runs a program of Python."""
    (folder / "program.py").write_text(textwrap.dedent(code))
    command = json.dumps([sys.executable, "program.py"])
    (folder / "own.toml").write_text(
        f'name = "own"\ndescription = "A program."\ncommand = {command}\n{more}'
        '[parameters.properties.text]\ntype = "string"\n'
    )
    return find_tools().tools["own"]


def test_arguments_come_as_json_and_through_no_shell(folder):
    tool = program(folder, "import sys; print(sys.argv[1:], sys.stdin.read())")
    assert tool.asks
    text = "$(touch hacked); `id` '\"\n&& true | cat é"
    outcome = run(tool, {"text": text}, threading.Event())
    assert outcome.ending == "done"
    assert outcome.text == "[] " + json.dumps({"text": text}, ensure_ascii=False)
    assert not (folder / "hacked").exists()


def test_it_runs_in_the_folder_of_its_file_or_in_its_own(folder, tmp_path):
    code = "import os; print(os.getcwd())"
    assert run(program(folder, code), {}, threading.Event()).text == str(folder)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text("print('there')")
    tool = program(folder, code, f"folder = {json.dumps(str(tmp_path / 'elsewhere'))}\n")
    assert run(tool, {}, threading.Event()).text == "there"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("name = ", "line 1: is not valid TOML"),
        ('name = "echo"', "'description' is missing"),
        (
            GOOD + 'comand = ["x"]',
            "line 4: 'comand' is not a key of a tool; did you mean 'command'?",
        ),
        (GOOD.replace('["cat"]', '"cat"'), "line 3: 'command' is the string 'cat'"),
        (GOOD.replace('["cat"]', "[]"), "line 3: 'command' names no program"),
        (GOOD.replace("echo", "a b"), "line 1: 'name' may have letters"),
        (GOOD + "timeout = nan", "line 4: 'timeout' is nan, expected more than 0"),
        (GOOD + "timeout = 0.0", "line 4: 'timeout' is 0, expected more than 0"),
        (GOOD + "output_limit = 0", "line 4: 'output_limit' is 0, expected 1 to 20,000"),
        (GOOD + 'environment = "KEY"', "line 4: 'environment' is the string 'KEY'"),
        (GOOD + '[parameters]\ntype = "array"', "line 5: 'parameters.type' is 'array'"),
        (
            GOOD + '[parameters.properties.x]\ntype = "text"',
            "line 5: 'parameters.properties.x.type' is the string 'text', expected one of",
        ),
        (
            GOOD + '[parameters.properties.x]\ntyp = "string"',
            "'parameters.properties.x.typ' is not a key of a schema; did you mean 'type'?",
        ),
        (
            GOOD + '[parameters.properties.x]\ntype = ["string", "nul"]',
            "line 5: 'parameters.properties.x.type[2]' is the string 'nul', expected one of array,",
        ),
        (
            GOOD + '[parameters.properties.x]\npattern = "("',
            "line 5: 'parameters.properties.x.pattern' is the string '(', expected format 'regex'",
        ),
        (
            GOOD + '[parameters.properties.x]\n"$ref" = "https://example.org/x.json"',
            "'parameters.properties.x.$ref' is the string 'https://example.org/x.json', expected",
        ),
        (GOOD + '[parameters]\nrequired = ["x"]', "line 5: 'parameters.required' names 'x'"),
        (GOOD.replace("echo", "clock"), "'name' is 'clock', which another tool has"),
    ],
)
def test_a_bad_file_is_told_and_costs_no_other_tool(folder, source, problem):
    (folder / "bad.toml").write_text(source)
    (folder / "good.toml").write_text(GOOD.replace("echo", "good"))
    registry = find_tools()
    assert "good" in registry.tools
    (sentence,) = registry.problems.values()
    assert sentence.startswith(str(folder / "bad.toml"))
    assert problem in sentence
    assert "\n" not in sentence


def test_an_oversized_schema_is_one_sentence(folder):
    long = f'[parameters.properties.x]\ndescription = "{"x" * 10_000}"\n'
    (folder / "bad.toml").write_text(GOOD + long)
    assert "echo" not in find_tools().tools
    problem = "bad.toml: 'parameters' has 10,091 characters as JSON, expected at most 10,000"
    assert find_tools().problems["bad"].endswith(problem)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "the argument 'city' is missing"),
        ({"city": 5}, "the argument 'city' is the number 5, expected string"),
        ({"city": "x", "twon": 1}, "there is no argument 'twon'"),
        ({"city": "x", "days": 9}, "the argument 'days' is the number 9, expected 7 or less"),
        ({"city": "x", "days": True}, "the argument 'days' is true, expected integer"),
        ({"city": "x", "unit": "K"}, "the argument 'unit' is the string 'K', expected one of C, F"),
        ({"city": "x", "tags": ["a", 1]}, "the argument 'tags[2]' is the number 1"),
        ({"city": "x", "zip": 5}, "the argument 'zip' is the number 5, expected string or null"),
        ({"city": "x", "zip": "a"}, "the argument 'zip' is the string 'a', expected pattern '^"),
        ({"city": "x", "trips": [{"to": "y"}, {}]}, "the argument 'trips[2].to' is missing"),
        ({"city": "x", "zip": None, "trips": [{"to": "y"}]}, ""),
        ({"city": "x", "days": 7, "unit": "C", "tags": []}, ""),
    ],
)
def test_arguments_that_do_not_fit_are_told(folder, arguments, problem):
    (folder / "weather.toml").write_text(
        'name = "weather"\ndescription = "The weather."\ncommand = ["false"]\n'
        '[parameters]\nrequired = ["city"]\n'
        '[parameters.properties]\ncity = {type = "string"}\nunit = {enum = ["C", "F"]}\n'
        'days = {type = "integer", minimum = 1, maximum = 7}\n'
        'tags = {type = "array", items = {type = "string"}}\n'
        'zip = {anyOf = [{type = "string", pattern = "^[0-9]+$"}, {type = "null"}]}\n'
        'trips = {type = "array", items = {"$ref" = "#/$defs/trip"}}\n'
        '[parameters."$defs".trip]\nrequired = ["to"]\nproperties = {to = {type = "string"}}\n'
    )
    assert misfit_of(find_tools().tools, "weather", arguments).startswith(problem)


def test_a_tool_that_hangs_is_ended_with_all_below_it(folder):
    tool = program(
        folder,
        """
        import os, subprocess, sys, time
        child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", child])
        subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
        open("pid", "w").write(str(os.getpid()))
        time.sleep(600)
        """,
        "timeout = 1.5\n",
    )
    outcome = run(tool, {}, threading.Event())
    assert outcome.text == "error: it took longer than 1.5 seconds"
    assert none_left(folder)


def test_a_stopped_tool_is_ended_with_all_below_it(folder):
    tool = program(
        folder,
        """
        import os, subprocess, time
        subprocess.Popen(["sleep", "600"])
        open("pid.new", "w").write(str(os.getpid()))
        os.rename("pid.new", "pid")
        time.sleep(600)
        """,
    )
    cancel = threading.Event()
    threading.Thread(target=_stop_when_there, args=(folder / "pid", cancel)).start()
    assert run(tool, {}, cancel).ending == "stopped"
    assert none_left(folder)


def _stop_when_there(path, cancel):
    while not path.exists():
        time.sleep(0.01)
    cancel.set()


def test_what_a_tool_leaves_running_ends_with_it(folder):
    tool = program(folder, "import subprocess; subprocess.Popen(['sleep', '600']); print('done')")
    assert run(tool, {}, threading.Event()).text == "done"
    assert none_left(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no subreaper")
@pytest.mark.parametrize("ends_by", ["itself", "time", "the user", "a flood"])
def test_a_daemon_with_its_own_session_ends_with_the_call(folder, ends_by):
    ending = {"itself": "print('done')", "a flood": "while True: print('x' * 1000)"}
    limit = 2 if ends_by == "time" else 60
    code = DAEMON + ending.get(ends_by, "time.sleep(600)")
    tool = program(folder, code, f"timeout = {limit}\n")
    cancel = threading.Event()
    if ends_by == "the user":
        threading.Thread(target=_stop_when_there, args=(folder / "daemon", cancel)).start()
    run(tool, {}, cancel)
    pid = int((folder / "daemon").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_tool_that_kills_its_supervisor_ends_with_its_call(folder):
    tool = program(
        folder,
        """
        import os, signal, subprocess, time
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
        """,
    )
    outcome = run(tool, {}, threading.Event())
    assert outcome.text == "error: its supervisor was killed"
    assert none_left(folder)


@pytest.mark.parametrize("listed", [False, True])
def test_a_tool_gets_the_variables_that_its_file_lists(folder, monkeypatch, listed):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("WEATHER_KEY", "rain")
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    more = 'environment = ["WEATHER_KEY", "NOT_SET"]\n' if listed else ""
    tool = program(folder, "import json, os; print(json.dumps(dict(os.environ)))", more)
    given = json.loads(run(tool, {}, threading.Event()).text)
    always = {"PATH", "HOME", "LANG", "LC_CTYPE", "CHATAPP_CALL"}  # LC_CTYPE: Python's own
    assert given.keys() - always == ({"WEATHER_KEY"} if listed else set())
    assert given["PATH"] == os.environ["PATH"]


def test_a_hundred_megabytes_are_cut(folder):
    tool = program(
        folder, "import sys\nfor _ in range(100): sys.stdout.write('x' * 10**6)\nopen('end', 'w')"
    )
    before = psutil.Process().memory_info().rss
    outcome = run(tool, {}, threading.Event())
    assert outcome.text == "x" * LONGEST_RESULT + "\n[cut after 20,000 characters]"
    assert psutil.Process().memory_info().rss - before < 50 * 2**20
    assert not (folder / "end").exists()


def test_a_tool_that_fails_says_why(folder):
    tool = program(folder, "import sys; sys.exit('no such \\x1b[31mcity')")
    outcome = run(tool, {}, threading.Event())
    assert (outcome.ending, outcome.text) == (
        "failed",
        "error: it failed with exit status 1: no such city",
    )
    killed = program(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(killed, {}, threading.Event()).text == "error: it was ended by signal 9"
    (folder / "own.toml").write_text(GOOD.replace("cat", "no-such-program"))
    absent = run(find_tools().tools["echo"], {}, threading.Event())
    assert absent.text == "error: no-such-program cannot be started: No such file or directory"


def test_large_arguments_do_not_wait_for_each_other(folder):
    tool = program(
        folder, "import sys; sys.stdout.write('y' * 10**5); print(len(sys.stdin.read()))"
    )
    assert run(tool, {"text": "é" * 10**6}, threading.Event()).ending == "done"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2J\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x7fd\x9be", "abcde"),
        ("one\r\ntwo\tthree\n", "one\ntwo\tthree"),
        ("\u202eevil\ud800", "\ufffdevil\ufffd"),
        ("\x1b", ""),
        ("\x1bPq#0;2;0\x1b\\done", "done"),
    ],
)
def test_what_a_terminal_obeys_is_left_out(text, expected):
    assert clean(text) == expected


def test_a_call_in_words_is_one_printable_line():
    words = call_in_words("x\ny\x1b", {"city": "A\n\x1b[31mb", "days": 3, "tags": ["x"]})
    assert words == 'x y␛(city=A ␛[31mb, days=3, tags=["x"])'


@pytest.mark.parametrize("what", ["tool", "server"])
def test_where_no_group_of_processes_can_be_ended_no_program_runs(folder, monkeypatch, what):
    monkeypatch.delattr(os, "killpg")  # as on Windows
    refusal = "programs of tools, servers and rewards run on Linux and macOS alone"
    if what == "tool":
        tool = program(folder, "open('ran', 'w')")
        assert run(tool, {}, threading.Event()).text == f"error: {refusal}"
        assert not (folder / "ran").exists()
        calculator = run(find_tools().tools["calculator"], {"expression": "2+2"}, threading.Event())
        assert calculator.ending == "done"
    else:
        (folder / "mine.toml").write_text('name = "mine"\nserver = ["touch", "ran"]\n')
        _, problems = find_tools().list_names(threading.Event())
        assert problems == [f"mine: {refusal}"]
        assert not (folder / "ran").exists()


def test_arguments_are_checked_in_bounded_time():
    parts = {"d0": {"type": "string"}}
    for number in range(1, 41):
        same = {"$ref": f"#/$defs/d{number - 1}"}
        parts[f"d{number}"] = {"allOf": [same, same]}
    schema = {"$defs": parts, "properties": {"a": {"$ref": "#/$defs/d40"}}}
    assert "cannot be applied" in misfit({"a": "b"}, schema)
    assert fault({"anyOf": [{"type": "string"}] * 10_000})[1]


@pytest.mark.parametrize(("limit", "number"), [(math.nan, 1), (1e-320, math.inf)])
def test_limits_that_no_number_can_be_held_to_are_the_schemas_fault(limit, number):
    """Not that of the arguments; what a server lists, the server applies itself."""
    schema = {"properties": {"a": {"type": "number", "multipleOf": limit}}}
    assert misfit({"a": number}, schema) == "the schema of its arguments cannot be applied"
    assert misfit({"a": number}, schema, is_foreign=True) == ""
