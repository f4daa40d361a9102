"""The guides are right: their commands exist, and links lead somewhere."""

import io
import re
from pathlib import Path

import pytest
import typer
from guides import GUIDES, ROOT, TEACHING, Command, commands
from typer._click.exceptions import MissingParameter, UsageError
from typer.core import TyperGroup

import chatapp.cli
import finetune.cli

PROGRAMS = {
    "chatapp": (typer.main.get_command(chatapp.cli.app), chatapp.cli.main),
    "finetune": (typer.main.get_command(finetune.cli.app), finetune.cli.main),
}
COMMANDS = [
    command
    for guide in GUIDES
    for command in commands(guide)
    # These print and exit while they are parsed, one of them changing the shell's files.
    if not {"--help", "--install-completion"} & set(command.words)
]
TO_RUN = [command for command in COMMANDS if command.runs]


def resolve(command):
    """Parse the options and arguments of a command line, running nothing. Raises UsageError."""
    name = Path(command.words[0].replace("\\", "/")).name
    current = PROGRAMS[name][0]
    context = current.make_context(name, list(command.words[1:]))
    while isinstance(current, TyperGroup) and (rest := [*context._protected_args, *context.args]):
        word, current, left = current.resolve_command(context, rest)
        context = current.make_context(word, left, parent=context)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: f"{c.guide}: {' '.join(c.words)}")
def test_a_command_of_a_guide_is_understood(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    try:
        resolve(command)
    except MissingParameter:
        assert command.is_prose


def test_wrong_commands_would_be_seen():
    for words in (
        ("chatapp", "aks"),
        ("chatapp", "ask", "--temprature", "0"),
        ("finetune", "sing"),
    ):
        with pytest.raises(UsageError):
            resolve(Command("", words))
    assert len(COMMANDS) > 60
    assert TO_RUN


@pytest.mark.parametrize("command", TO_RUN, ids=lambda c: " ".join(c.words))
def test_a_marked_command_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.argv", list(command.words))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[command.words[0]][1]()
    assert ended.value.code in (0, None)
    printed = capsys.readouterr().out
    if "--output" in command.words:
        written = tmp_path / command.words[command.words.index("--output") + 1]
        assert written.stat().st_size > 1000
    else:
        assert printed.strip()


def anchors(text):
    """The anchors of the headings of a Markdown text."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide):
    text = guide.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (guide.parent / path).resolve() if path else guide
        assert target.exists(), f"{guide.name} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1800


def test_the_guides_are_short():
    guides = [TEACHING, *(ROOT / "chatapp" / "docs").glob("*.md")]
    assert len(guides) == 14
    assert sum(len(guide.read_text(encoding="utf-8").split()) for guide in guides) <= 12_000
