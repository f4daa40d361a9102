"""One answer on standard output, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import ScriptedModel
from thinking_model import thinking_model
from tiny import write_tiny_gpt2

from chatapp.common.paths import settings_path
from chatapp.engine.models import loading
from chatapp.prompting.template import CHAT, save_template

ROOT = Path(__file__).parent.parent.parent
KEYS = (
    "reply finish_reason model template seed prompt_tokens reused_tokens "
    "reply_tokens time_to_first_token tokens_per_second thoughts thought_tokens sampling"
).split()


def test_the_answer_alone_is_on_standard_output(run, use_model):
    model = use_model(ScriptedModel([" I am a model.\n"]))
    assert run("ask", "Who are you?") == (0, "I am a model.\n", "")
    assert model.prompts[0].endswith("User: Who are you?\nAssistant:")


def test_piped_text_is_appended_to_the_question(run, use_model):
    model = use_model(ScriptedModel([" Ok."]))
    run("ask", "Summarise:", stdin="two\nlines — ü\n".encode())
    run("ask", stdin=b"only this\n")
    assert model.prompts[0].endswith("User: Summarise:\n\ntwo\nlines — ü\nAssistant:")
    assert model.prompts[1].endswith("User: only this\nAssistant:")


def test_a_terminal_is_not_read_from(run, use_model):
    use_model(ScriptedModel([" Ok."]))
    result = run("ask", "Hi", stdin=b"not for you", terminal=True)
    assert (result.status, result.out) == (0, "Ok.\n")
    status, _, err = run("ask", terminal=True)
    assert (status, err) == (
        2,
        "chatapp: there is no question; pass it in quotes or on standard input\n",
    )


def test_status_shows_on_a_terminal_alone(run, use_model):
    use_model(ScriptedModel([" Ok."]))
    assert "Loading bundled" in run("ask", "Hi", terminal=True).err
    assert run("ask", "Hi").err == ""


def test_json_is_one_document(run, use_model):
    model = use_model(ScriptedModel([" Ja, 你好."]))
    assert json.loads(run("ask", "Hi", "--json").out)["seed"] == model.samplings[0].seed
    status, out, err = run("ask", "Hi", "--json", "--seed", "5")
    document = json.loads(out)
    assert list(document) == KEYS
    assert (status, err) == (0, "")
    assert document["reply"] == "Ja, 你好."
    assert (document["finish_reason"], document["seed"]) == ("stop", 5)
    assert (document["model"], document["template"]) == ("bundled", "plain")
    assert document["reply_tokens"] == 2
    assert document["prompt_tokens"] > 5


def test_the_makers_values_are_the_defaults_and_everyone_is_named(
    run, use_model, tmp_path, monkeypatch
):
    folder = write_tiny_gpt2(tmp_path / "model")
    makers = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": "much"}
    (folder / "generation_config.json").write_text(json.dumps(makers))
    model = use_model(ScriptedModel([" Ja."], folder=folder))
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text("top_p = 0.5\n")
    monkeypatch.setenv("CHATAPP_REPETITION_PENALTY", "1.1")
    status, out, err = run("ask", "Hi", "--json", "--temperature", "0.1", "--seed", "3")
    drawn = json.loads(out)["sampling"]
    assert drawn["temperature"] == {"value": 0.1, "from": "flag"}
    assert drawn["seed"] == {"value": 3, "from": "flag"}
    assert drawn["top_k"] == {"value": 20, "from": "model"}
    assert drawn["top_p"] == {"value": 0.5, "from": "settings file"}
    assert drawn["repetition_penalty"] == {"value": 1.1, "from": "environment"}
    assert drawn["min_p"] == {"value": 0.0, "from": "default"}
    assert (model.samplings[0].top_k, model.samplings[0].top_p) == (20, 0.5)
    expected = "generation_config.json: min_p is 'much'; expected a number; the value is ignored"
    assert status == 0
    assert err.endswith(f"chatapp: {folder}/{expected}\n")


def test_a_models_own_template_is_used_and_another_refused(run, use_model, tmp_path):
    save_template(CHAT, tmp_path)
    use_model(ScriptedModel([" Ok."], folder=tmp_path))
    assert json.loads(run("ask", "Hi", "--json").out)["template"] == "chat"
    status, out, err = run("ask", "Hi", "--template", "plain")
    assert (status, out) == (2, "")
    assert "'chat'" in err
    assert "'plain'" in err
    assert err.count("\n") == 1
    assert CHAT.fingerprint not in err


def test_a_terminal_obeys_nothing_of_the_answer(run, use_model):
    use_model(ScriptedModel([" [/b] \x1b]0;x\x07 \x1b[2J\x9b\r\tand\nso \ud800 \u202eon"]))
    shown = "[/b] ␛]0;x␇ ␛[2J\ufffd␍\tand\nso \ufffd \ufffdon\n"
    assert run("ask", "Hi").out == shown
    assert run("ask", "Hi", terminal=True).out == shown
    out = run("ask", "Hi", "--json").out
    assert json.loads(out)["reply"].startswith("[/b] \x1b]0;x\x07")
    assert out.isascii()
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"caf\xe9\n", "line 1: is not valid UTF-8 (perhaps Latin-1"),
        (b"one\ntwo \xff", "line 2: is not valid UTF-8"),
        (b"\x7fELF\x00\x01", "is not text: it contains NUL bytes"),
    ],
)
@pytest.mark.parametrize("command", ["ask", "complete"])
def test_standard_input_that_is_no_utf8_is_refused(run, use_model, command, stdin, words):
    model = use_model(ScriptedModel([" Ok."]))
    status, out, err = run(command, "what is", stdin=stdin)
    assert (status, out) == (2, "")
    assert words in err
    assert not model.prompts


def test_a_question_longer_than_the_window_is_refused(run, use_model):
    use_model(ScriptedModel([" Ok."], context=100))
    status, out, err = run("ask", "word " * 200)
    assert (status, out) == (2, "")
    assert "200 tokens" in err
    assert "window of 100 tokens" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_model_that_fails_gives_status_one(run, use_model, flags):
    use_model(ScriptedModel([RuntimeError("out of memory")]))
    status, out, err = run("ask", "Hi", *flags)
    assert (status, err) == (1, "chatapp: out of memory\n")
    if flags:
        assert json.loads(out)["finish_reason"] == "error"


def test_an_interrupt_while_loading_ends_quietly(run, monkeypatch):
    def interrupt(name, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_model", interrupt)
    assert run("ask", "Hi") == (130, "", "")


# As a process

TALKER = """
import sys
from chatapp.cli import main
from chatapp.engine.models import loading
from fakes import ScriptedModel
from thinking_model import thinking_model

def reply(prompt):
    print("asked", file=sys.stderr, flush=True)
    return " word" * 200

loading.load_model = lambda name, **_: ScriptedModel(reply, delay=0.1)
main()
"""

ASK = """
import sys
from chatapp.cli import main

try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@contextmanager
def talking(tmp_path, *arguments):
    """`chatapp ask` that would talk for twenty seconds, if nobody stopped it."""
    environment = {"CHATAPP_HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    with subprocess.Popen(
        [sys.executable, "-c", TALKER, "ask", "Talk", *arguments],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr.readline() == b"asked\n"
        yield process


def test_an_interrupt_prints_what_there_was(tmp_path):
    with talking(tmp_path) as process:
        start = os.read(process.stdout.fileno(), 4)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate()
    out = start + rest
    assert (process.returncode, err) == (130, b"")
    assert out.startswith(b"word")
    assert out.endswith(b"\n")
    assert len(out.split()) < 200


def test_a_closed_pipe_ends_quietly(tmp_path):
    with talking(tmp_path) as process:
        assert os.read(process.stdout.fileno(), 3) == b"wor"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_real_model_answers_the_same_twice(tmp_path):
    folder = write_tiny_gpt2(tmp_path / "model")
    flags = f"--model {folder} --seed 1 --max-tokens 20".split()
    results = [
        subprocess.run(
            [sys.executable, "-c", ASK, "ask", "Hi", *flags],
            cwd=ROOT,
            env={"CHATAPP_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        for _ in range(2)
    ]
    assert [result.returncode for result in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    assert len(results[0].stdout) > 10
    modules = set(results[0].stderr.split())
    assert "torch" in modules
    assert not modules & {"transformers", "datasets", "peft", "pandas", "textual"}


# Thinking


def test_what_was_thought_is_counted_and_not_printed(run, use_model, tmp_path):
    use_model(thinking_model(tmp_path / "model", ["<think>\nHm.\n</think>\n\nHello!"]))
    assert run("ask", "Hi") == (0, "Hello!\n", "chatapp: thought for 5 tokens\n")
    document = json.loads(run("ask", "Hi", "--json").out)
    assert document["reply"] == "Hello!"
    assert (document["thoughts"], document["thought_tokens"]) == ("Hm.", 5)
    shown = run("ask", "Hi", terminal=True)
    assert shown.out == "Hello!\n"
    assert shown.err.index("Thinking …\r\x1b[K") < shown.err.index("thought for")


def test_the_switch_for_thinking(run, use_model, tmp_path):
    model = use_model(thinking_model(tmp_path / "model", ["Hello!"]))
    run("ask", "Hi", "--no-think")
    run("ask", "Hi", "--think")
    assert [prompt.endswith("</think>\n\n") for prompt in model.prompts] == [True, False]
    use_model(ScriptedModel([" Yes."]))
    status, out, err = run("ask", "Hi", "--think")
    assert (status, out) == (2, "")
    assert err == "chatapp: the model scripted has no switch for thinking in its template\n"
