"""Personas, and what can be chosen by name: the user's own before what the program brings."""

import pytest

from chatapp.rows.examples import PromptError
from chatapp.tasks.files import library
from chatapp.tasks.files.promptfile import Persona, PromptFile, describe, load_for_chat, load_prompt


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The folder of the user's own prompts."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "prompts"
    (folder / "personas").mkdir(parents=True)
    return folder


def test_every_persona_of_the_library_can_be_used():
    assert library.personas().keys() >= {"pirate", "teacher", "poet", "sceptic"}
    for path in library.personas().values():
        persona = load_for_chat(path)
        assert isinstance(persona, Persona)
        assert 0 < len(persona.description) <= 64
        assert persona.description == describe(path)
        assert "dialogue" in persona.system


def test_what_a_chat_can_be_held_with_takes_a_message():
    found = library.for_chats()
    assert list(found)[:4] == ["pirate", "poet", "sceptic", "teacher"]
    assert "spam" in found
    assert "unicorns" not in found
    assert "unicorns" in library.tasks()
    assert isinstance(load_for_chat(found["spam"]), PromptFile)


def test_the_users_own_files_come_after_and_instead(own):
    (own / "personas" / "pirate.toml").write_text('system = "Arr."')
    (own / "personas" / "notes.md").write_text("no persona")
    (own / "odd name.toml").write_text('instruction = "Do it."')
    (own / "pool.jsonl").write_text('{"input": "a", "output": "b"}\n')
    found = library.for_chats()
    assert found["pirate"].is_relative_to(own)
    assert found["odd name"] == own / "odd name.toml"
    assert not found.keys() & {"pool", "notes", "personas"}
    assert library.tasks()["odd name"] == own / "odd name.toml"


def test_a_persona_says_who_the_model_is(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('system = "  Be brief. "\ntemplate = "alpaca"\n')
    assert load_for_chat(path) == Persona(path, "", "Be brief.", "alpaca")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('system = ""', "line 1: 'system' is the string '', expected a text that is not empty"),
        ("system = 3", "line 1: 'system' is the number 3, expected a string"),
        (
            'system = "a"\ntemplat = "b"',
            "line 2: 'templat' is not a key of a persona; did you mean",
        ),
        ('\nsystem = "a"\ntemplate = "b"', "line 3: 'template' is 'b'; there are plain, alpaca"),
        ('instruktion = "a"', "line 1: 'instruktion' is not a key of a prompt file"),
        ("system = [", "is not valid TOML"),
        ("examples_file = 'no.jsonl'", "there is no file"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path, source, words):
    path = tmp_path / "x.toml"
    path.write_text(source)
    with pytest.raises(PromptError, match=r"x\.toml") as caught:
        load_for_chat(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_persona_is_no_prompt_file():
    with pytest.raises(
        PromptError, match=r"pirate\.toml, line 2: 'system' is the key of a persona"
    ):
        load_prompt(library.personas()["pirate"])


def test_a_text_to_complete_takes_no_message(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("Once upon a time")
    with pytest.raises(PromptError, match=r"x\.txt: is a text to complete and takes no message"):
        load_for_chat(path)


def test_a_name_that_no_file_can_have():
    for name in ("a\ud800.toml", "a\0.toml"):
        with pytest.raises(PromptError, match="is not a valid path"):
            load_for_chat(library.find(name))


def test_a_folder_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", "/" + "x" * 300)
    with pytest.raises(PromptError, match=r"prompts.*: cannot be read: File name too long"):
        library.for_chats()
