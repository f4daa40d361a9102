"""Every command of both programs: it has help, a guide names it, a test file is its own, and it
refuses wrong input in one sentence. A command that is forgotten in one of these places fails here.
"""

from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from guides import GUIDES, commands
from messages import check_message
from typer.core import TyperGroup
from typer.testing import CliRunner

import chatapp.cli
import finetune.cli
from chatapp.common.paths import database_path, settings_path
from chatapp.lab.views import VIEWS

TESTS = Path(__file__).parent.parent


class Wrong(NamedTuple):
    """Wrong input of a command, and the file, option or name that the sentence has to name.
    settings: the user's file of them. chats: what stands where the chats should."""

    arguments: str
    named: str
    settings: str = ""
    chats: str = ""


INSPECT = dict.fromkeys(("ablate", "state", "weight", "neurons"), ("0.0", "there is no text"))
INSPECT |= {"heads": ("--sort x", "'x' is not a measure"), "texts": ("nosuch", "'nosuch'")}
INSPECT |= {"neighbours": ("xyzzyx", "TOKEN is")}
WRONG = {
    "chatapp ask": Wrong("Hi --best-of 2", "--best-of"),
    "chatapp complete": Wrong("", ""),
    "chatapp run": Wrong("nosuch --input x", "nosuch"),
    "chatapp eval": Wrong("", "--test"),
    "chatapp summarize": Wrong("nosuch.txt", "nosuch.txt"),
    "chatapp perplexity": Wrong("nosuch.txt", "nosuch.txt"),
    **{
        f"chatapp inspect {name}": Wrong(*INSPECT.get(name, ("", "there is no text to inspect")))
        for name in (*list(VIEWS)[1:], "text")
    },
    "chatapp tokens": Wrong("", "--file"),
    "chatapp lesson": Wrong("check nosuch.toml", "nosuch.toml"),
    "chatapp render": Wrong("nosuch.json", "nosuch.json"),
    "chatapp bench": Wrong("--precision float3", "float3"),
    "chatapp serve": Wrong("--host 0.0.0.0", "--expose"),
    "chatapp api": Wrong("--host 0.0.0.0", "--expose"),
    "chatapp history list": Wrong("", "chats.db", chats="no database" * 100),
    "chatapp history search": Wrong("word", "chats.db", chats="no database" * 100),
    "chatapp history show": Wrong("7", "7"),
    "chatapp history export": Wrong("", "--all"),
    "chatapp history import": Wrong("nosuch.json", "nosuch.json"),
    "chatapp history delete": Wrong("7", "7"),
    "chatapp history restore": Wrong("--from nosuch.db", "nosuch.db"),
    "chatapp docs search": Wrong("word nosuch", "nosuch"),
    "chatapp experiment order": Wrong("nosuch --test nosuch.jsonl", "nosuch"),
    "chatapp experiment labels": Wrong("nosuch --test nosuch.jsonl", "nosuch"),
    "chatapp experiment pairs": Wrong("nosuch.jsonl", "nosuch.jsonl"),
    "chatapp steer make": Wrong("calm nosuch.jsonl", "nosuch.jsonl"),
    "chatapp steer list": Wrong("nosuch", "nosuch"),
    "chatapp steer sweep": Wrong("nosuch Hi", "nosuch"),
    "chatapp models get": Wrong("./nosuch", "nosuch"),
    "chatapp models remove": Wrong("nosuch --yes", "nosuch"),
    "chatapp models export": Wrong("nosuch . --force", ""),
    "chatapp models list": Wrong("", "'modle'", settings="modle = 'x'\n"),
    "chatapp models info": Wrong("./nosuch", "nosuch"),
    "finetune check": Wrong("nosuch.toml", "nosuch.toml"),
    "finetune train": Wrong("nosuch.toml", "nosuch.toml"),
    "finetune resume": Wrong("nosuch", "nosuch"),
    "finetune eval": Wrong("./nosuch", "nosuch"),
    "finetune compare": Wrong("nosuch", "nosuch"),
    "finetune sweep": Wrong("nosuch.toml seed=0,1", "nosuch.toml"),
    "finetune trace": Wrong("nosuch --reply Hi --verbatim", "nosuch"),
    "finetune predict": Wrong("nosuch", "--input"),
    "finetune feedback": Wrong("", ""),
    "finetune merge": Wrong("./nosuch out", "nosuch"),
    "finetune filter": Wrong("nosuch.txt --like nosuch.txt --output out.jsonl", "nosuch.txt"),
    "finetune push": Wrong("./nosuch name", "nosuch"),
    "finetune keys": Wrong("trian", "trian"),
    "finetune pretrain": Wrong("nosuch.toml", "nosuch.toml"),
}


def walk(command, name):
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from walk(inner, f"{name} {word}")
    else:
        yield name, command


COMMANDS = {
    name: command
    for program, app in (("chatapp", chatapp.cli.app), ("finetune", finetune.cli.app))
    for name, command in walk(typer.main.get_command(app), program)
}


def test_every_command_has_an_entry_here():
    assert list(WRONG) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_says_what_it_is_for(name):
    program, *words = name.split()
    app = {"chatapp": chatapp.cli.app, "finetune": finetune.cli.app}[program]
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    (first, *_) = (COMMANDS[name].help or "").split("\n\n")
    assert first
    assert " ".join(first.split()) in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_guide_names_it(name):
    words = tuple(name.split())
    guides = (guide for guide in GUIDES if guide.name not in ("CHANGELOG.md", "CONTRIBUTING.md"))
    named = (command.words[: len(words)] for guide in guides for command in commands(guide))
    assert words in named


@pytest.mark.parametrize("name", COMMANDS)
def test_a_test_file_is_its_own(name):
    """Of chatapp that of the module it stands in; of finetune that of its name."""
    program, *words = name.split()
    if program == "chatapp":
        callback = COMMANDS[name].callback
        *_, group, module = callback.__module__.split(".")
        names = [f"commands/**/test_{module}.py", f"commands/**/test_{group}_{module}.py"]
    else:
        names = [f"finetune/**/test_{words[0]}.py", f"finetune/**/test_finetune_{words[0]}.py"]
    assert [path for pattern in names for path in TESTS.glob(pattern)]


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_input_is_one_sentence(name, run, tmp_path, monkeypatch, pytestconfig):
    monkeypatch.chdir(tmp_path)
    wrong = WRONG[name]
    for path, text in ((settings_path(), wrong.settings), (database_path(), wrong.chats)):
        if text:
            path.parent.mkdir(parents=True)
            path.write_text(text)
    program, *words = name.split()
    words += wrong.arguments.split()
    if program == "chatapp":
        status, out, err = run(*words)
        assert err.startswith("chatapp: ")
    else:
        result = CliRunner().invoke(finetune.cli.app, words, catch_exceptions=False)
        status, out, err = result.exit_code, result.stdout, result.stderr
    assert (status, out) == (2, "")
    assert wrong.named in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    check_message(name, err, tmp_path, pytestconfig)
