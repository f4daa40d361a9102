"""The plugin for llm: its command replies with our models, goes on with a chat, and logs it."""

import json

import pytest
from click.testing import CliRunner

import chatapp

llm = pytest.importorskip("llm")


@pytest.fixture
def ask(tmp_path, monkeypatch):
    from llm.cli import cli
    from llm.plugins import load_plugins, pm

    from chatapp import llm_plugin

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    load_plugins()
    if not any(plugin is llm_plugin for plugin in pm.get_plugins()):
        pm.register(llm_plugin)
    runner = CliRunner()

    def run(*words):
        result = runner.invoke(cli, [str(word) for word in words], input="")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


GREEDY = ("-o", "temperature", 0)


def test_it_replies_as_the_chat_does_and_goes_on_with_a_conversation(ask):
    chat = chatapp.load("bundled", precision="auto").chat(temperature=0)
    first = str(chat.say("My name is Clara."))
    second = str(chat.say("What is my name?"))
    assert ask("My name is Clara.", "-m", "bundled", *GREEDY).output == first + "\n"
    going_on = ask("-c", "What is my name?", *GREEDY, "--no-stream")
    assert going_on.output == second + "\n"
    logged = json.loads(ask("logs", "--json", "-n", 0).output)
    assert [row["response"] for row in logged] == [first, second]
    assert logged[0]["model"] == "bundled"
    assert logged[1]["input_tokens"] > logged[0]["input_tokens"] > 0
    assert logged[0]["output_tokens"] > 0


def test_it_says_which_messages_the_window_has_no_room_for(ask):
    ask("word " * 600, "-m", "bundled", "-o", "max_tokens", 2)
    going_on = ask("-c", "word " * 600, "-o", "max_tokens", 2)
    assert going_on.stderr == "messages out of context: 2\n"
    (log,) = json.loads(ask("logs", "--json", "-n", 1).output)
    assert log["response_json"]["left_out"] == 2


def test_options_instructions_and_schemas_reach_the_model(ask):
    words = ("Tell me a story.", "-m", "bundled", "-o", "seed", 3, "-o", "max_tokens", 5)
    assert len({ask(*words).output for _ in range(2)}) == 1
    assert json.loads(ask("logs", "--json").output)[0]["response_json"]["seed"] == 3
    chat = chatapp.load("bundled", precision="auto").chat("Be brief.", seed=3, max_tokens=5)
    assert ask(*words, "-s", "Be brief.").output == f"{chat.say('Tell me a story.')}\n"
    schema = {"type": "object", "properties": {"age": {"enum": [7, 8]}}, "required": ["age"]}
    closed = json.dumps(schema | {"additionalProperties": False})
    reply = ask("Give JSON.", "-m", "bundled", *GREEDY, "--schema", closed).output
    assert json.loads(reply) in ({"age": 7}, {"age": 8})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Hi", "-m", "bundled", "-o", "temperature", "hot"), "temperature"),
        (("Hi", "-m", "bundled", "-o", "top_p", "7"), "less than or equal to 1"),
        (("word " * 1500, "-m", "bundled"), "tokens"),
        ((" ", "-m", "bundled"), "empty"),
        (("Hi", "-m", "gpt2-xl"), "gpt2-xl"),
    ],
)
def test_a_mistake_is_a_sentence(ask, words, sentence, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = ask(*words)
    assert result.exit_code != 0
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_its_models_are_listed_without_loading_anything(ask):
    listed = ask("models").output
    assert {"Chatapp: bundled", "Chatapp: smollm2"} <= set(listed.splitlines())
