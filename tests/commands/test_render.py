"""`chatapp render`: the prompt of a chat, and files that hold none."""

import json

import pytest

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def test_the_prompt_of_a_chat(run, tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([*CHAT, {"role": "user", "content": "Bye"}]))
    text = run("render", str(file), "--model", "bundled").out
    assert text == "User: Hi\nAssistant: Hello<|endoftext|>\nUser: Bye\nAssistant:\n"
    document = json.loads(run("render", str(file), "--model", "bundled", "--json").out)
    assert "".join(segment["text"] for segment in document["segments"]) == text[:-1]
    assert document["text"] == text[:-1]
    assert len(document["ids"]) > 8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("{}", "is a table, expected a list of messages"),
        ("[]", "is a list, expected a list of messages"),
        ("[1]", "message 1 is the number 1, expected a table"),
        ('[{"role": "cat", "content": ""}]', "message 1: role is the string 'cat', expected"),
        ('[{"role": "user", "content": 1}]', "message 1: content is the number 1, expected a str"),
        (json.dumps([CHAT[1]]), "message 1 of the chat is from 'assistant'"),
    ],
)
def test_what_is_no_chat_is_refused(run, tmp_path, content, words):
    file = tmp_path / "chat.json"
    file.write_text(content)
    status, out, err = run("render", str(file))
    assert (status, out) == (2, "")
    assert words in err
