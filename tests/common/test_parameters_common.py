"""A sampling parameter is described once, and everything else follows from that."""

import json
import math
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.common.parameters import PARAMETERS, Choices, Sampling, parameter
from chatapp.common.paths import presets_path, settings_path
from chatapp.common.settings import load_settings, read_presets, save_preset
from chatapp.common.userfiles import UserError
from chatapp.dialogue.variants import Variant
from chatapp.engine.backends.remote.http import Client, Server
from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.files.model_files import ModelFiles, read_generation_config
from chatapp.rows.examples import PromptError
from chatapp.server.prompts import BadRequestError
from chatapp.server.prompts import sampling_of as sampling_of_request
from chatapp.server.server import _body_of
from chatapp.tasks.answering import sampling_of
from chatapp.tasks.files.documents import LIMIT
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.settings import SHOTS
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.screens.parameters import HINTS, _texts
from finetune.cli import app as finetune_app
from finetune.config.objectives import GrpoSettings
from finetune.config.sections import FinetuneConfig, load_config


@pytest.fixture(scope="module")
def help_of_ask():
    text = CliRunner().invoke(app, ["ask", "--help"], env={"COLUMNS": "400"}).output
    return " ".join(text.split())


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_appears_everywhere(name, help_of_ask, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    of = PARAMETERS[name]
    value = of.kind(3) if of.kind is int else 0.25
    changed = Sampling().changed(name, str(value))  # /set
    assert getattr(changed, name) == value != of.default
    assert re.search(rf"--{name.replace('_', '-')} <\w+> {of.help}\.", help_of_ask, re.IGNORECASE)

    monkeypatch.setenv(f"CHATAPP_{name.upper()}", "")  # and is as before in the end
    for place in ("flag", "settings file", "environment"):
        assert PLACES[place](name, value, tmp_path).sampling == changed  # type: ignore[attr-defined]
        settings_path().unlink(missing_ok=True)

    no_models = SimpleNamespace(controls=SimpleNamespace(models=SimpleNamespace(names=list)))
    (command,) = [entry for entry in ChatScreen.ACTIONS if entry.command == "set"]
    assert name in command.values(no_models)
    assert f"{name}=" in ChatScreen.differences(no_models)
    assert HINTS[name] == of.help  # F2
    assert _texts(changed)[name] == str(value)
    variant = Variant("bundled", "auto", "", Sampling()).changed(f"{name}={value}")
    assert variant.sampling == changed
    assert f"{name} {value}" in variant.words()

    save_preset(presets_path(), "mine", changed)
    assert read_presets(presets_path()) == {"mine": changed}
    prompt = tmp_path / "task.toml"
    prompt.write_text(f"[generate]\n{name} = {value}")
    assert getattr(sampling_of(load_prompt(prompt)), name) == value
    if of.config_field:
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
        (tmp_path / "generation_config.json").write_text(json.dumps({of.config_field: value}))
        makers = read_generation_config(ModelFiles.read(tmp_path))
        assert makers.sampling.get(name) == value


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


GRPO = """
output = "run"
data.train = "x"
objective = {{kind = "grpo", rewards = [{{kind = "exact_match"}}], {} = {}}}
"""


def _body(name, value):
    body = {"messages": [{"role": "user", "content": "Hi"}], name: value}
    return _body_of(json.dumps(body).encode(), "/chat/completions")


PLACES = {
    "/set, /compare, F2, lessons": lambda name, value, _: Sampling().changed(name, str(value)),
    "settings file": lambda name, value, _: (
        write(settings_path(), f"{name} = {value}") and load_settings()
    ),
    "environment": lambda name, value, _: (
        os.environ.update({f"CHATAPP_{name.upper()}": str(value)}) or load_settings()
    ),
    "flag": lambda name, value, _: load_settings({name: str(value)}),
    "preset": lambda name, value, file: read_presets(
        write(file, json.dumps({"mine": {name: value}}))
    ),
    "prompt file": lambda name, value, file: load_prompt(
        write(file, f"[generate]\n{name} = {value}")
    ),
    "request": lambda name, value, _: sampling_of_request(_body(name, value), Choices(), 9),
    "finetune": lambda name, value, file: load_config(
        FinetuneConfig, write(file, GRPO.format(name, value)), []
    ),
}
ELSEWHERE = {
    "request": ["top_k", "seed"],  # -1 is off there, and a seed
    "finetune": sorted(PARAMETERS.keys() - GrpoSettings.model_fields.keys()),
}
"""Parameters that a place has with another range, or not at all."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_bad_value_is_refused_with_the_same_range_everywhere(place, name, tmp_path, monkeypatch):
    if name in ELSEWHERE.get(place, []):
        return
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    monkeypatch.setenv(f"CHATAPP_{name.upper()}", "")  # and is as before in the end
    of = PARAMETERS[name]
    if (place, name) == ("finetune", "temperature"):  # greedy replies to a prompt are all the same
        of = replace(of, above_low=True)
    low = of.low if of.above_low else of.low - 1
    high = of.high if of.below_high else of.high + 1
    for value in (low, *([] if math.isinf(high) else [high])):
        with pytest.raises((ValueError, UserError, BadRequestError)) as error:
            PLACES[place](name, value, tmp_path / "it.toml")
        assert name in str(error.value)
        assert f"expected {of.range_in_words}" in str(error.value)
    kind = "a number" if of.kind is float else "a whole number"
    if place in ("flag", "environment"):
        with pytest.raises(UserError, match=f"{name} is 'hot'; expected {kind}"):
            PLACES[place](name, "hot", tmp_path)


OPTIONS = {
    "run a --seed": PARAMETERS["seed"],
    "eval a --seed": PARAMETERS["seed"],
    "experiment labels a --test b --seed": PARAMETERS["seed"],
    "steer sweep a b --max-tokens": PARAMETERS["max_tokens"],
    "docs search a b --limit": LIMIT,
    "[select]\nk =": SHOTS,
    "[select]\nseed =": PARAMETERS["seed"],
    '[documents]\npaths = ["a.txt"]\nlimit =': LIMIT,
    "experiment order a --test b --shots": replace(SHOTS, low=1),
    "finetune eval a --max-tokens": PARAMETERS["max_tokens"],
    "finetune filter a --like b --output c --seed": PARAMETERS["seed"],
}


@pytest.mark.parametrize("place", OPTIONS)
def test_an_option_or_key_has_the_range_of_its_parameter(place, tmp_path):
    of, words = OPTIONS[place], place.split()
    if place.startswith("["):
        with pytest.raises(PromptError, match=f"expected {re.escape(of.range_in_words)}"):
            load_prompt(write(tmp_path / "it.toml", f"{place} {of.low - 1}"))
        return
    program = finetune_app if words[0] == "finetune" else app
    words = words[words[0] == "finetune" :]
    done = CliRunner().invoke(program, [*words, str(of.low - 1)], env={"COLUMNS": "400"})
    assert done.exit_code == 2
    assert f"{of.name} is {of.low - 1}; expected {of.range_in_words}" in done.output


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_server_is_asked_for_it_or_the_user_is_told(name):
    of = PARAMETERS[name]
    value = of.kind(3) if of.kind is int else 0.25
    remote = RemoteModel(Client(Server("http://here/v1")), name="x", context=99)
    changed = Sampling(**{name: value})
    body = remote._options(changed, changed.max_tokens)
    assert {body[field] for field in of.request_fields} == ({value} if of.request_fields else set())
    told = remote._options_in_words(changed)
    if of.is_heeded_here or not (of.is_extension or not of.request_fields):
        assert told == ""
    elif of.request_fields:
        assert f"Not every server follows {name}" in told
    else:
        assert told == f"The server does not support {name}."


def test_a_range_is_said_in_words_and_kept():
    words = {name: each.range_in_words for name, each in PARAMETERS.items()}
    assert words["temperature"] == "from 0 to 100"
    assert words["top_k"] == "0 (off) or more"
    assert words["top_p"] == "above 0 and at most 1 (off)"
    assert words["min_p"] == "from 0 (off) to below 1"
    assert words["repetition_penalty"] == "above 0 and at most 100; 1 is off"
    Sampling(temperature=100, top_p=1, min_p=0, repetition_penalty=100, seed=2**63 - 1)
    with pytest.raises(ValueError, match="temperature is nan; expected from 0 to 100"):
        Sampling(temperature=math.nan)


def test_only_the_seed_may_be_left_open():
    assert parameter("seed").parsed("") is None
    assert parameter("seed").checked(None) is None
    with pytest.raises(ValueError, match="top_k is ''; expected a whole number"):
        parameter("top_k").parsed("")
    with pytest.raises(ValueError, match="top_k is None; expected a whole number"):
        Sampling.of({"top_k": None})


def test_what_switches_a_parameter_off_is_in_its_range():
    off = {name: each.off for name, each in PARAMETERS.items() if each.off is not None}
    assert len(off) == 8
    Sampling.of(off)
