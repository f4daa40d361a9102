"""Rows of feedback: every layout is read, and every bad row is one sentence."""

import json

import pytest
from fakes import WordTokenizer

from chatapp.prompting.template import CHAT
from chatapp.rows.reading import BadRow, Row
from finetune.config.sections import ConfigError, Data
from finetune.data.encoding import ExampleEncoder, Span
from finetune.data.preferences import (
    FEEDBACK,
    EncodedVerdict,
    Preference,
    detect_feedback,
    detect_preference,
    encode_row,
)
from finetune.data.preparation import encode_rows

USER = {"role": "user", "content": "Who?"}
ME = {"role": "assistant", "content": "Me."}
YOU = {"role": "assistant", "content": "You."}
TEXTS = {"chosen": "Me.", "rejected": "You."}


def row(**fields):
    return Row("rows.jsonl, line 3", fields)


def turns(example):
    return [(message.role, message.text) for message in example.messages]


OPENAI = {
    "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
    "preferred_output": [ME],
    "non_preferred_output": [YOU],
}
ULTRA_FEEDBACK = {
    "prompt": "Who?",
    "chosen": [USER, ME],
    "rejected": [USER, YOU],
    "messages": [USER, ME],
    "score_chosen": 8.5,
    "score_rejected": 3.0,
}
PREFERENCES = [
    OPENAI,
    ULTRA_FEEDBACK,
    {"prompt": "Who?", **TEXTS},
    {"question": "Who?", **TEXTS},
    {"instruction": "Who?", "input": "", "output": "ignored", **TEXTS},
    {"prompt": [USER], "chosen": [ME], "rejected": [YOU]},
    {"prompt": [USER], **TEXTS},
    {"chosen": [USER, ME], "rejected": [USER, YOU]},
    {
        "chosen": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}],
        "rejected": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "You."}],
    },
]


@pytest.mark.parametrize("fields", PREFERENCES, ids=lambda fields: "-".join(fields))
def test_preferences_of_every_layout(fields):
    read = detect_preference(row(**fields)).read(row(**fields))
    assert turns(read.chosen) == [("user", "Who?"), ("assistant", "Me.")]
    assert turns(read.rejected) == [("user", "Who?"), ("assistant", "You.")]


def test_an_input_stands_below_its_instruction_and_turns_before():
    fields = {"instruction": "Shout.", "input": "hi", "system": "Be brief.", **TEXTS}
    read = detect_preference(row(**fields)).read(row(**fields))
    assert turns(read.chosen)[:2] == [("system", "Be brief."), ("user", "Shout.\n\nhi")]


@pytest.mark.parametrize(
    ("chosen", "rejected", "parts"),
    [
        ("Q: Who?\nA: Me.", "Q: Who?\nA: You.", ("Q: Who?\nA:", " Me.", " You.")),
        ("Q: Who?\nA: Yes", "Q: Who?\nA: Yellow", ("Q: Who?\nA:", " Yes", " Yellow")),
    ],
)
def test_texts_share_whole_words_and_are_learnt_as_they_stand(chosen, rejected, parts):
    fields = {"chosen": chosen, "rejected": rejected}
    read = detect_preference(row(**fields)).read(row(**fields))
    assert read.chosen.parts == (parts[0], parts[1])
    assert read.rejected.parts == (parts[0], parts[2])


def test_a_margin_is_kept():
    fields = {"prompt": "Who?", **TEXTS, "margin": 1.5}
    read = detect_preference(row(**fields)).read(row(**fields))
    assert read.margin == 1.5


@pytest.mark.parametrize(
    ("label", "desirable"), [(True, True), (0, False), ("true", True), ("False", False)]
)
def test_verdicts(label, desirable):
    fields = {"prompt": [USER], "completion": [ME], "label": label}
    read = detect_feedback(row(**fields)).read(row(**fields))
    assert read.desirable is desirable
    assert turns(read.reply) == [("user", "Who?"), ("assistant", "Me.")]


BAD_PREFERENCES = [
    ({"prompt": "Who?", "chosen": "Me.", "rejected": " Me. "}, "are the same text"),
    ({"chosen": [USER, ME], "rejected": [USER, ME]}, "are the same text"),
    ({"chosen": "same", "rejected": "same"}, "are the same text"),
    ({"prompt": "Who?", "chosen": "", "rejected": "You."}, "'chosen' is empty"),
    ({"prompt": "Who?", "chosen": "Me.", "rejected": "  "}, "'rejected' is empty"),
    ({"prompt": "Who?", "chosen": "Me."}, "'rejected' is missing"),
    ({"prompt": "Who?", "rejected": "Me."}, "'chosen' is missing"),
    ({"prompt": "", **TEXTS}, "'prompt' is empty"),
    ({"prompt": [], **TEXTS}, "prompt is an empty list"),
    ({"prompt": None, **TEXTS}, "'prompt' is null, expected text"),
    ({"prompt": 3, **TEXTS}, "'prompt' is the number 3, expected text"),
    ({"prompt": [ME], **TEXTS}, "expected 'user'"),
    ({"prompt": "Who?", "chosen": 3, "rejected": "You."}, "'chosen' is the number 3"),
    ({"prompt": [USER], "chosen": [ME, YOU], "rejected": [YOU]}, "expected one from 'assistant'"),
    ({"prompt": [USER], "chosen": [USER], "rejected": [YOU]}, "expected one from 'assistant'"),
    ({"chosen": "Me.", "rejected": "You."}, "there is no prompt"),
    ({"chosen": [ME], "rejected": [YOU]}, "there is no prompt"),
    ({"chosen": "Q: A", "rejected": "Q:"}, "nothing after the prompt"),
    ({"chosen": [USER, ME], "rejected": [ME, YOU]}, "there is no prompt"),
    ({"prompt": "Who?", **TEXTS, "margin": -1}, "'margin' is the number -1"),
    ({"prompt": "Who?", **TEXTS, "margin": "much"}, "'margin' is the string 'much'"),
    (ULTRA_FEEDBACK | {"prompt": "Why?"}, "'prompt' is not the prompt"),
    (OPENAI | {"input": "x"}, "'input' is the string 'x'"),
    (OPENAI | {"preferred_output": None}, "'chosen' is null"),
]
BAD_VERDICTS = [
    ({"prompt": "Who?", "completion": "Me."}, "'label' is missing"),
    ({"prompt": "Who?", "completion": "Me.", "label": "fine"}, "expected true or false"),
    ({"prompt": "Who?", "completion": "Me.", "label": 0.5}, "expected true or false"),
    ({"prompt": "Who?", "completion": "Me.", "label": None}, "expected true or false"),
    ({"prompt": "Who?", "completion": "", "label": True}, "'completion' is empty"),
    ({"completion": "Me.", "label": True}, "there is no prompt"),
    ({"prompt": "Who?", "label": True}, "expected a prompt, 'completion' and 'label'"),
]


@pytest.mark.parametrize(("fields", "words"), BAD_PREFERENCES)
def test_a_bad_preference_is_one_sentence(fields, words):
    for detect in (detect_preference, detect_feedback):
        with pytest.raises(BadRow) as error:
            detect(row(**fields)).read(row(**fields))
        assert words in str(error.value)
        assert str(error.value).startswith("rows.jsonl, line 3: ")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("fields", "words"), BAD_VERDICTS)
def test_a_bad_verdict_is_one_sentence(fields, words):
    with pytest.raises(BadRow) as error:
        detect_feedback(row(**fields)).read(row(**fields))
    assert words in str(error.value)
    assert str(error.value).startswith("rows.jsonl, line 3: ")


def encoder(length=100, too_long="raise"):
    return ExampleEncoder(CHAT, WordTokenizer(), length, too_long)


def preference(**fields):
    read = detect_preference(row(**fields)).read(row(**fields))
    assert isinstance(read, Preference)
    return read


def test_of_a_chat_the_last_reply_alone_is_learnt():
    history = [USER, YOU, {"role": "user", "content": "Really who?"}]
    (pair,) = encode_row(encoder(), preference(prompt=history, chosen=[ME], rejected=[YOU]))
    for encoded in (pair.chosen, pair.rejected):
        learnt = (encoded.spans == Span.RESPONSE).nonzero()[0]
        assert learnt.tolist() == list(range(learnt[0], len(encoded.ids)))
    count = (pair.chosen.spans != Span.RESPONSE).sum()
    assert pair.chosen.ids[:count].tolist() == pair.rejected.ids[:count].tolist()


@pytest.mark.parametrize("too_long", ["truncate-prompt", "truncate-history"])
def test_both_replies_stay_behind_the_same_prompt_however_it_is_cut(too_long):
    long = {"role": "user", "content": " ".join(f"word{n}" for n in range(40))}
    history = [long, YOU, USER] if too_long == "truncate-history" else [long]
    fields = {"prompt": history, "chosen": "One two three four five six.", "rejected": "No."}
    (whole,) = encode_row(encoder(200), preference(**fields))
    limit = 45 if too_long == "truncate-prompt" else 60
    shortening = encoder(limit if len(whole.chosen.ids) > limit else 40, too_long)
    (pair,) = encode_row(shortening, preference(**fields))
    assert len(pair.chosen.ids) <= shortening.length
    prompts = [e.ids[e.spans != Span.RESPONSE].tolist() for e in (pair.chosen, pair.rejected)]
    assert prompts[0] == prompts[1]
    assert sum(shortening.truncated.values()) == 1


def prepared(path, rows, **data):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    settings = Data.model_validate({"train": str(path), **data})
    return encode_rows(settings, FEEDBACK, encoder(), 0)


def test_a_prompt_never_stands_on_both_sides(tmp_path):
    rows = [
        {"prompt": f"Who is {n}?", "chosen": f"Me {m}.", "rejected": f"You {m}."}
        for n in range(30)
        for m in range(3)
    ]
    made = prepared(tmp_path / "rows.jsonl", rows, held_out=0.3)
    sides = [{each.split_key for each in part} for part in (made.train, made.held_out["held_out"])]
    assert not sides[0] & sides[1]
    assert len(made.train) + len(made.held_out["held_out"]) == 90
    assert len(made.held_out["held_out"]) % 3 == 0


def test_bad_rows_are_counted_and_the_others_kept(tmp_path):
    good = {"prompt": "Who?", **TEXTS}
    rows = [good, {**good, "rejected": "Me."}, {**good, "chosen": ""}]
    made = prepared(tmp_path / "rows.jsonl", rows, held_out=0.0, bad_rows="skip")
    assert len(made.train) == 1
    assert dict(made.report.dropped) == {"equal replies": 1, "empty chosen": 1}
    with pytest.raises(ConfigError, match=r"line 2: .* the same text.*data.bad_rows"):
        prepared(tmp_path / "rows.jsonl", rows, held_out=0.0)


def test_a_preference_is_two_verdicts():
    (pair,) = encode_row(encoder(), preference(prompt="Who?", **TEXTS))
    verdicts = pair.verdicts
    assert [each.desirable for each in verdicts] == [True, False]
    assert all(isinstance(each, EncodedVerdict) for each in verdicts)
