"""A sampling parameter is described once, and everything else follows from that."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.common.parameters import PARAMETERS, Sampling, parameter
from chatapp.common.paths import presets_path, settings_path
from chatapp.common.presets import read_presets, save_preset
from chatapp.common.settings import load_settings
from chatapp.dialogue.variants import Variant
from chatapp.engine.backends.remote.http import Client, Server
from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.files.model_files import ModelFiles, read_generation_config
from chatapp.tasks.answering import sampling_of
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.screens.parameters import HINTS, _texts


@pytest.fixture(scope="module")
def help_of_ask() -> str:
    text = CliRunner().invoke(app, ["ask", "--help"], env={"COLUMNS": "400"}).output
    return " ".join(text.split())


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_appears_everywhere(
    name: str, help_of_ask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    of = PARAMETERS[name]
    value = of.kind(3) if of.kind is int else 0.25
    changed = Sampling().changed(name, str(value))  # /set
    assert getattr(changed, name) == value != of.default
    assert re.search(rf"--{name.replace('_', '-')} <\w+> {of.help}\.", help_of_ask, re.IGNORECASE)

    settings_path().parent.mkdir(parents=True)
    settings_path().write_text(f"{name} = {value}")
    assert load_settings().sampling == changed
    settings_path().unlink()
    monkeypatch.setenv(f"CHATAPP_{name.upper()}", str(value))
    assert load_settings().sampling == changed
    monkeypatch.delenv(f"CHATAPP_{name.upper()}")
    assert load_settings({name: value}).sampling == changed

    no_models: Any = SimpleNamespace(controls=SimpleNamespace(models=SimpleNamespace(names=list)))
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_server_is_asked_for_it_or_the_user_is_told(name: str) -> None:
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", "from 0 to 100"),
        ("top_k", "0 (off) or more"),
        ("top_p", "above 0 and at most 1 (off)"),
        ("min_p", "from 0 (off) to below 1"),
        ("repetition_penalty", "above 0 and at most 100; 1 is off"),
        ("seed", "from 0 to 9223372036854775807"),
        ("max_tokens", "1 or more"),
    ],
)
def test_a_range_is_said_in_words_and_kept(name: str, words: str) -> None:
    assert PARAMETERS[name].range_in_words == words
    for value in (-1, float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value}; expected {words}")):
            PARAMETERS[name].check_range(value)


def test_bounds_belong_to_a_range_or_not() -> None:
    Sampling(temperature=100, top_p=1, min_p=0, repetition_penalty=100, seed=2**63 - 1)
    for name, bound in (("top_p", 0), ("min_p", 1), ("repetition_penalty", 0), ("seed", 2**63)):
        with pytest.raises(ValueError, match=f"^{name} is {bound}; expected"):
            Sampling(**{name: bound})


def test_only_the_seed_may_be_left_open() -> None:
    assert parameter("seed").parsed("") is None
    assert parameter("seed").checked(None) is None
    with pytest.raises(ValueError, match="top_k is ''; expected a whole number"):
        parameter("top_k").parsed("")
    with pytest.raises(ValueError, match="top_k is None; expected a whole number"):
        Sampling.of({"top_k": None})


def test_what_switches_a_parameter_off_is_in_its_range() -> None:
    off = {name: each.off for name, each in PARAMETERS.items() if each.off is not None}
    assert off == {
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "no_repeat_ngram": 0,
        "max_repeats": 0,
    }
    Sampling.of(off)
