"""Documents to tokens: the chat's own tokens, nothing lost, errors with their place."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.prompting.messages import END_OF_TEXT, Message, Segment, text_of
from chatapp.prompting.template import CHAT, PLAIN
from finetune.config.sections import ConfigError
from finetune.data.corpus import cut_windows, document_key, encode_documents, read_documents
from finetune.data.corpus import train_tokenizer as train
from finetune.data.split import is_held_out

TALK = {
    "messages": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "See you 12 times."},
    ]
}
TOKENIZER = train([[Segment("instruction", "Hello there, User: 12 and Assistant: 34\n" * 9)]], 300)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_dialogue_document_is_the_prompt_of_a_chat(tmp_path):
    (document,) = read_documents(write(tmp_path / "talk.jsonl", TALK), CHAT)
    prompt = CHAT.render([Message(m["role"], m["content"]) for m in TALK["messages"][:3]])
    assert document[: len(prompt)] == prompt
    (ids,) = encode_documents([document], TOKENIZER)
    (prompt_ids,) = encode_documents([prompt], TOKENIZER)
    assert ids[: len(prompt_ids) - 1].tolist() == prompt_ids[:-1].tolist()
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text_of(document) + END_OF_TEXT.text
    # One end-of-text token a reply: the last reply's is the document's.
    assert ids.tolist().count(0) == 2
    assert ids[-1] == 0


def test_plain_text_and_blank_lines(tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("Once upon a time.\n\nThe end.")
    assert [text_of(d) for d in read_documents(story, CHAT)] == ["Once upon a time.\n\nThe end."]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('\ufeff{"text": "a"}\r\n\r\n{"text": "b"}')
    assert [text_of(d) for d in read_documents(rows, CHAT)] == ["a", "b"]


def test_a_few_shot_prompt_is_its_text(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"parts": ["2 + 2 =", " 4\n", "1 + 2 =", " 3"]})
    assert [text_of(d) for d in read_documents(path, CHAT)] == ["2 + 2 = 4\n1 + 2 = 3"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"text": 3}', "'text' is the number 3"),
        ('{"messages": [{"role": "user"}]}', "'content' is null"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "'role' is the string 'robot'"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "expected 'user'"),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path, line, words):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 2: ") as caught:
        list(read_documents(path, CHAT))
    assert words in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        list(read_documents(tmp_path / "nowhere.txt", PLAIN))


def test_digits_stand_alone_and_text_is_never_special():
    (ids,) = encode_documents([[Segment("instruction", " 1234<|endoftext|>")]], TOKENIZER)
    pieces = [TOKENIZER.id_to_token(int(i)) for i in ids]
    assert pieces[:5] == ["Ġ", "1", "2", "3", "4"]
    assert ids.tolist().count(0) == 1


@given(st.lists(st.text(max_size=40), max_size=4))
def test_every_text_survives(texts):
    document = [Segment("instruction", text) for text in texts]
    (ids,) = encode_documents([document], TOKENIZER)
    assert TOKENIZER.decode(ids[:-1], skip_special_tokens=False) == "".join(texts)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5))
def test_packing_keeps_every_token_but_the_rest(count, length, seed):
    documents = [np.arange(n % 5 + 1, dtype=np.int32) + 100 * n for n in range(count)]
    windows = cut_windows(documents, length, seed)
    total = sum(map(len, documents))
    assert windows.shape == (total // length, length)
    packed = windows.ravel().tolist()
    everything = np.concatenate(documents).tolist()
    assert set(packed) <= set(everything)
    assert len(set(packed)) == len(packed)


def test_held_out_by_text_alone():
    documents = [[Segment("user", f"question {i}")] for i in range(2000)]
    share = sum(is_held_out(document_key(d), 0.1) for d in documents) / len(documents)
    assert 0.07 < share < 0.13
    assert not any(is_held_out(document_key(d), 0.0) for d in documents)
