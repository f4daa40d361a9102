"""What every dialogue template promises, for every chat there could be."""

import itertools
import json
from dataclasses import fields, replace

import pytest
from fakes import reworded
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp.prompting.chat_template import ChatTemplate, ChatTemplateError
from chatapp.prompting.messages import END_OF_TEXT, Message, text_of
from chatapp.prompting.template import (
    ALPACA,
    CHAT,
    PLAIN,
    TEMPLATE_FILE,
    TEMPLATES,
    ShippedTemplate,
    Wording,
    load_template,
    named,
    save_template,
)

# The private characters of two planes stand for texts while a template runs.
PARTS = st.text(st.characters(exclude_categories=("Cs", "Co")), max_size=8)
MARKERS = PARTS.filter(lambda text: bool(text.strip()) and not text.endswith(" "))
ANY_WORDING = st.builds(
    Wording,
    name=PARTS,
    instruction=PARTS,
    after_instruction=PARTS,
    user_marker=MARKERS,
    assistant_marker=MARKERS,
    lead=st.sampled_from(["", " ", "\n"]),
    after_user=PARTS,
    after_reply=PARTS,
    stop=st.lists(st.text(min_size=1, max_size=8), max_size=3).map(tuple),
    end_of_reply=st.booleans(),
)
TEMPLATE = st.sampled_from(list(TEMPLATES.values())) | ANY_WORDING.map(ShippedTemplate.of)
TEXT = st.text(max_size=20)
SPOKEN = TEXT.filter(lambda text: bool(text.strip()))


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    """An optional system message, then whole exchanges, at least one."""
    system = [Message("system", draw(TEXT))] if draw(st.booleans()) else []
    exchanges = draw(st.lists(st.tuples(SPOKEN, SPOKEN), min_size=1, max_size=4))
    for question, reply in exchanges:
        system += [Message("user", question), Message("assistant", reply)]
    return system


# Rendering


def test_the_plain_template_is_the_one_every_gpt2_knows():
    chat = [Message("user", " Hi! "), Message("assistant", "Hello."), Message("user", "Bye")]
    assert text_of(PLAIN.render(chat)) == (
        "The following is a dialogue between a user and an intelligent AI chatbot.\n\n"
        "User: Hi!\nAssistant: Hello.\nUser: Bye\nAssistant:"
    )


def test_the_alpaca_template_is_the_published_one():
    assert text_of(ALPACA.render([Message("user", "List three fruits.")])) == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nList three fruits.\n\n### Response:"
    )


def test_a_finished_reply_ends_in_the_end_of_text_token_where_the_model_learnt_it():
    chat = [Message("user", "Hi"), Message("assistant", "Hello")]
    assert END_OF_TEXT in CHAT.render(chat)
    assert END_OF_TEXT not in CHAT.render(chat, open_reply=True)
    assert END_OF_TEXT not in PLAIN.render(chat)


def test_a_chats_own_instructions_replace_the_templates():
    chat = [Message("system", " Rhyme. "), Message("user", "Hi")]
    assert text_of(PLAIN.render(chat)).startswith("Rhyme.\n\nUser: Hi")
    assert text_of(PLAIN.render([Message("system", ""), *chat[1:]])).startswith("User: Hi")


@pytest.mark.parametrize(
    ("chat", "sentence"),
    [
        ([Message("assistant", "a")], "message 1 of the chat is from 'assistant', expected 'user'"),
        (
            [Message("user", "a"), Message("system", "b")],
            "message 2 of the chat is from 'system', expected 'assistant'",
        ),
    ],
)
def test_roles_that_do_not_alternate_are_refused(chat, sentence):
    with pytest.raises(ValueError, match=f"^template 'plain': .*{sentence}$"):
        PLAIN.render(chat)


@settings(max_examples=40)
@given(TEMPLATE, chats(), TEXT)
def test_a_prompt_is_a_prefix_of_itself_with_its_reply_and_another_turn(template, chat, text):
    prompt = template.render(chat[:-1])
    opened = template.render(chat, open_reply=True)
    closed = template.render(chat)
    assert opened[: len(prompt)] == prompt
    assert closed[: len(opened)] == opened
    assert template.render([*chat, Message("user", text)])[: len(closed)] == closed


@settings(max_examples=40)
@given(TEMPLATE, chats())
def test_no_prompt_ends_in_a_space(template, chat):
    assert not text_of(template.render(chat[:-1])).endswith(" ")
    if chat[-1].text.strip():
        assert not text_of(template.render(chat, open_reply=True)).endswith(" ")


@settings(max_examples=40)
@given(TEMPLATE, chats())
def test_every_text_of_the_chat_is_a_segment_of_its_own_kind(template, chat):
    turns = [message for message in chat if message.role != "system"]
    segments = [part for part in template.render(chat) if part.kind in ("user", "assistant")]
    assert [(part.kind, part.text) for part in segments] == [
        (message.role, template.wording.lead + message.text.strip()) for message in turns
    ]


@settings(max_examples=60)
@given(TEMPLATE, st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXT)))
def test_a_chat_in_pieces_is_what_the_program_writes_whole(template, rows):
    chat = [Message(role, text) for role, text in rows if role != "system"]
    chat = [Message("system", text) for role, text in rows[:1] if role == "system"] + chat
    for messages, is_open in itertools.product((chat, *alternating(rows)), (False, True)):
        try:
            whole = ChatTemplate.render(template, stripped(messages), open_reply=is_open)
        except ChatTemplateError:
            with pytest.raises(ChatTemplateError):
                template.render(messages, open_reply=is_open)
        else:
            assert template.render(messages, open_reply=is_open) == whole


def alternating(rows):
    """Two chats of the texts, with and without a system message."""
    texts = [text for _, text in rows]
    roles = itertools.cycle(["user", "assistant"])
    yield [Message(role, text) for role, text in zip(roles, texts, strict=False)]
    roles = itertools.chain(["system"], itertools.cycle(["user", "assistant"]))
    yield [Message(role, text) for role, text in zip(roles, texts, strict=False)]


def stripped(chat):
    return [replace(message, text=message.text.strip()) for message in chat]


@pytest.mark.parametrize("marker", ["", "  ", "User: "])
def test_a_marker_that_breaks_the_rules_is_refused(marker):
    with pytest.raises(ValueError, match="a marker must hold text and not end in a space"):
        reworded(PLAIN, user_marker=marker)
    with pytest.raises(ValueError, match="a marker must hold text and not end in a space"):
        reworded(PLAIN, assistant_marker=marker)


# Identity


@settings(max_examples=40)
@given(ANY_WORDING)
def test_a_template_survives_json(wording):
    assert Wording.from_dict(json.loads(json.dumps(wording.to_dict()))) == wording


@given(ANY_WORDING, ANY_WORDING, st.sampled_from([each.name for each in fields(Wording)]))
def test_every_field_but_the_name_is_in_the_fingerprint(one, other, field):
    changed = replace(one, **{field: getattr(other, field)})
    assert (changed.fingerprint == one.fingerprint) == (field == "name" or changed == one)


def test_built_in_templates_are_found_by_name_and_differ():
    assert [named(name) for name in ("plain", "alpaca", "chat")] == [PLAIN, ALPACA, CHAT]
    assert len({template.fingerprint for template in TEMPLATES.values()}) == len(TEMPLATES)
    with pytest.raises(ValueError, match="no template 'plian'; there are plain, alpaca, chat"):
        named("plian")


# Files


def test_a_template_is_saved_with_a_model(tmp_path):
    assert load_template(tmp_path) is None
    template = reworded(ALPACA, instruction="Schreib eine Antwort, die paßt.")
    save_template(template, tmp_path)
    assert load_template(tmp_path) == template


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lead": 3}, "'lead' is the number 3, expected a string"),
        ({"stop": "x"}, "'stop' is the string 'x', expected a list"),
        ({"stop": ["x", 3]}, r"'stop\[2\]' is the number 3, expected a string"),
        ({"stop": [""]}, "'stop' holds an empty text"),
        ({"end_of_reply": "yes"}, "'end_of_reply' is the string 'yes', expected true or false"),
        ({"colour": "red"}, "'colour' is not a key of a template; there are name, instruction"),
        ({"user_marker": "User: "}, "a marker must hold text and not end in a space"),
        ({"lead": ""}, "fields of template 'plain' were changed after it was saved"),
    ],
)
def test_a_changed_file_is_refused_by_name(tmp_path, change, sentence):
    path = tmp_path / TEMPLATE_FILE
    path.write_text(json.dumps(PLAIN.to_dict() | change))
    with pytest.raises(ValueError, match=sentence) as error:
        load_template(tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"name": "x"}'])
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    (tmp_path / TEMPLATE_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=TEMPLATE_FILE) as error:
        load_template(tmp_path)
    assert "\n" not in str(error.value)
