"""Rows to chats: every layout is told from the others, and no field is guessed."""

import pytest

from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row
from finetune.config.sections import TrainSource
from finetune.data.formats import detect, read_labelled
from finetune.data.split import content_key

LOCATION = "rows.jsonl, line 7"


def user(text):
    return Message("user", text)


def assistant(text):
    return Message("assistant", text)


def read(fields):
    row = Row(LOCATION, fields)
    return detect(row).read(row)


TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
PARTS = [{"type": "text", "text": letter} for letter in "hi"]
SHARED = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "hi"},
    {"from": "gpt", "value": "hello"},
]

LAYOUTS = [
    (
        "Alpaca",
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        (user("Add.\n\n1 and 2"), assistant("3")),
    ),
    ("Alpaca", {"instruction": "Add.", "output": "3"}, (user("Add."), assistant("3"))),
    (
        "Alpaca",
        {"instruction": "Add.", "input": None, "output": "3", "system": "Sum"},
        (Message("system", "Sum"), user("Add."), assistant("3")),
    ),
    (
        "Dolly",
        {"instruction": "Who?", "context": "Ann.", "response": "Ann", "category": "qa"},
        (user("Who?\n\nAnn."), assistant("Ann")),
    ),
    ("OpenAI messages", {"messages": TURNS}, (user("hi"), assistant("hello"))),
    ("OpenAI messages", {"conversations": TURNS}, (user("hi"), assistant("hello"))),
    (
        "ShareGPT",
        {"conversations": SHARED},
        (Message("system", "Be brief."), user("hi"), assistant("hello")),
    ),
    (
        "ShareGPT",
        {"conversations": SHARED[1:], "system": "Be kind."},
        (Message("system", "Be kind."), user("hi"), assistant("hello")),
    ),
    ("OpenAI messages", {"messages": TURNS, "system": ""}, (user("hi"), assistant("hello"))),
    (
        "Alpaca",
        {"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]},
        (Message("system", "s"), user("a"), assistant("b"), user("c"), assistant("d")),
    ),
    (
        "prompt/response",
        {"prompt": "c", "response": "d", "history": []},
        (user("c"), assistant("d")),
    ),
    ("ShareGPT", {"messages": SHARED[1:]}, (user("hi"), assistant("hello"))),
    ("prompt/completion", {"prompt": "a", "completion": "b"}, (user("a"), assistant("b"))),
    ("prompt/response", {"prompt": "a", "response": "b"}, (user("a"), assistant("b"))),
    ("question/answer", {"question": "a", "answer": "b", "id": 1}, (user("a"), assistant("b"))),
    ("input/output", {"input": "a", "output": "b"}, (user("a"), assistant("b"))),
    ("query/response", {"query": "a", "response": "b"}, (user("a"), assistant("b"))),
    ("problem/solution", {"problem": "a", "solution": "b"}, (user("a"), assistant("b"))),
    (
        "prompt/completion",
        {"prompt": TURNS[:1], "completion": TURNS[1:]},
        (user("hi"), assistant("hello")),
    ),
    (
        "OpenAI messages",
        {"messages": [{"role": "developer", "content": PARTS}, *TURNS]},
        (Message("system", "hi"), user("hi"), assistant("hello")),
    ),
]


@pytest.mark.parametrize(("name", "fields", "messages"), LAYOUTS)
def test_layouts(name, fields, messages):
    layout = detect(Row(LOCATION, fields))
    assert layout.name == name
    example = read(fields)
    assert (example.messages, example.text, example.location) == (messages, "", LOCATION)


def test_a_last_turn_that_nobody_answers_is_left_out():
    example = read({"messages": [*TURNS, TURNS[0]]})
    assert (example.messages, example.is_cut) == ((user("hi"), assistant("hello")), True)
    assert not read({"messages": TURNS}).is_cut


def test_plain_text():
    assert detect(Row(LOCATION, {"text": "Once."})).name == "plain text"
    assert (read({"text": "Once."}).text, read({"text": "Once."}).messages) == ("Once.", ())


def test_few_shot_prompt():
    example = read({"parts": ["2 + 2 =", " 4\n", "1 + 2 =", " 3"]})
    assert example.parts == ("2 + 2 =", " 4\n", "1 + 2 =", " 3")
    assert (example.messages, example.text) == ((), "")


@pytest.mark.parametrize("parts", ["2 + 2 =", [], ["2 + 2 ="], ["2 + 2 =", 4], ["", " 4"], None])
def test_parts_are_texts_in_turn(parts):
    with pytest.raises(BadRow, match=r"line 7: 'parts' is .*, expected texts in turn"):
        read({"parts": parts})


def test_labels_stay_strings():
    for label in ("yes", "no", "true", "null", "NA", "007", "1e5"):
        assert read({"prompt": "q", "completion": label}).messages[1].text == label


BAD = [
    ({"instruction": "a", "input": "b"}, "unknown layout", "there are 'instruction', 'input'"),
    ({}, "unknown layout", "there are none"),
    ({"messages": SHARED, "system": "s"}, "two system messages", "which is from 'system' too"),
    ({"prompt": "a", "completion": "b", "history": "x"}, "bad history", "expected pairs of texts"),
    (
        {"prompt": "a", "completion": "b", "history": [["a", "b"], ["c"]]},
        "bad history",
        "expected pairs of texts",
    ),
    (
        {"a": "b"},
        "unknown layout",
        "message_tree_id and prompt, messages, conversations, conversation, text or parts",
    ),
    ({"text": "a", "label": "yes"}, "no instruction", "data of a classification task"),
    ({"instruction": "a", "output": ""}, "empty output", "'output' is empty"),
    ({"instruction": " \n", "output": "b"}, "empty instruction", "'instruction' is empty"),
    ({"instruction": "a", "output": None}, "output is not text", "'output' is null, expected text"),
    (
        {"prompt": "2+2", "completion": 4},
        "completion is not text",
        "'completion' is the number 4, expected text; write it in quotes",
    ),
    ({"prompt": "q", "completion": True}, "completion is not text", "is true, expected text"),
    ({"prompt": ["q"], "completion": "a"}, "prompt is not text", "'prompt' is a list"),
    ({"instruction": "a", "input": 3, "output": "b"}, "input is not text", "the number 3"),
    ({"text": 3}, "text is not text", "'text' is the number 3"),
    ({"messages": []}, "no messages", "messages is an empty list, expected a list of turns"),
    ({"messages": "hi"}, "no messages", "messages is the string 'hi', expected a list of turns"),
    ({"messages": ["hi"]}, "bad turn", "messages, turn 1 is the string 'hi', expected an object"),
    (
        {"messages": [{"role": "robot", "content": "x"}]},
        "unknown role",
        "'role' is the string 'robot', expected system, developer, user, human, assistant, gpt,",
    ),
    ({"messages": [{"content": "x"}]}, "unknown role", "'role' is null"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "unknown role", "'role' is a list"),
    (
        {"conversations": [{"from": "narrator", "value": "x"}]},
        "unknown from",
        "gpt, function_call, tool, function or observation",
    ),
    ({"messages": [{"role": "user"}]}, "bad turn", "turn 1: 'content' is null, expected text"),
    ({"messages": [{"role": "user", "content": " "}]}, "empty turn", "'content' is empty"),
    (
        {"messages": [*TURNS, TURNS[1]]},
        "roles do not alternate",
        "turn 3 is from 'assistant', expected 'user'",
    ),
    (
        {"conversations": [*SHARED, SHARED[0], *SHARED[1:]]},
        "roles do not alternate",
        "turn 4 is from 'system', expected 'user'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, TURNS[1]]},
        "no text",
        "turn 1: 'content', part 1 is of the type the string 'image_url', expected 'text'",
    ),
    ({"messages": TURNS[:1]}, "no last reply", "ends with a turn from 'user'"),
    ({"conversations": SHARED[:1]}, "no last reply", "ends with a turn from 'system'"),
    ({"messages": [TURNS[0], {**TURNS[1], "weight": 0}]}, "no label", "every reply has 'weight' 0"),
    ({"messages": [{**TURNS[0], "weight": 2}, TURNS[1]]}, "bad weight", "expected 0, 1 or none"),
    ({"text": "a", "parent_id": None}, "a message alone", "ends in .trees.jsonl.gz"),
]


@pytest.mark.parametrize(("fields", "reason", "words"), BAD)
def test_a_bad_row_says_what_is_missing_and_what_was_found(fields, reason, words):
    with pytest.raises(BadRow) as caught:
        read(fields)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(LOCATION)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_of_another_layout_than_the_first_is_named():
    layout = detect(Row(LOCATION, {"instruction": "a", "output": "b"}))
    with pytest.raises(BadRow, match="line 9: 'output' is missing; there are 'prompt'"):
        layout.read(Row("rows.jsonl, line 9", {"prompt": "a", "instruction": "b"}))
    chat = detect(Row(LOCATION, {"messages": TURNS}))
    with pytest.raises(BadRow, match="messages is missing, expected a list of turns"):
        chat.read(Row(LOCATION, {"text": "a"}))


def test_keys_are_of_the_content_alone():
    alpaca = read({"instruction": "a", "output": "b", "id": "1"})
    assert alpaca.key == read({"prompt": "a", "completion": "b"}).key
    assert alpaca.key != read({"prompt": "a", "completion": "c"}).key
    assert len(alpaca.key) == 16
    # Written down, so that a split never moves between versions and machines.
    assert content_key([["user", "a"], ["assistant", "b"]]) == alpaca.key == "c99a374cab27ed14"


def labelled(path, text, roles, **source):
    path.write_text(text, encoding="utf-8")
    bad_rows = source.pop("bad_rows", "raise")
    return list(read_labelled(TrainSource(path=str(path), **source), roles, bad_rows))


def test_labelled_rows(tmp_path):
    (row,) = labelled(
        tmp_path / "a.csv", "review,stars\nGood,yes\n", ("text", "label"),
        columns={"text": "review", "label": "stars"},
    )  # fmt: skip
    assert row.fields == {"text": "Good", "label": "yes"}
    assert row.location.endswith("a.csv, line 2")
    rows = '{"context": "c", "choices": ["x", "y"], "label": 1}'
    (choice,) = labelled(tmp_path / "a.jsonl", rows, ("context", "choices", "label"))
    assert choice.fields == {"context": "c", "choices": ["x", "y"], "label": "1"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"}', "'label' is missing"),
        ('{"text": "a", "label": true}', "'label' is true"),
        ('{"text": 3, "label": "a"}', "'text' is the number 3"),
        ("{", "not valid JSON"),
    ],
)
def test_bad_labelled_rows_are_raised_or_given_out(tmp_path, line, words):
    text = line + '\n{"text": "a", "label": 0.5}\n'
    with pytest.raises(BadRow, match=words):
        labelled(tmp_path / "a.jsonl", text, ("text", "label"))
    bad, good = labelled(tmp_path / "a.jsonl", text, ("text", "label"), bad_rows="skip")
    assert isinstance(bad, BadRow)
    assert good.fields["label"] == "0.5"


def test_choices_must_be_several_texts(tmp_path):
    for choices in ('["x"]', '["x", ""]', '["x", 3]', '"x"'):
        line = f'{{"context": "c", "choices": {choices}, "label": "x"}}'
        with pytest.raises(BadRow, match="choices"):
            labelled(tmp_path / "a.jsonl", line, ("context", "choices", "label"))


def test_of_a_prompt_as_turns_only_the_completion_is_learnt():
    prompt = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    row = Row("rows.jsonl, line 1", {"prompt": prompt, "completion": [reply := prompt[1]]})
    messages = detect(row).read(row).messages
    assert [m.text for m in messages] == ["user", "assistant", "user", reply["content"]]
    assert [m.learnt for m in messages if m.role == "assistant"] == [False, True]
