"""Chats with a model that brings a chat template of its own."""

import json
from dataclasses import replace

import pytest
from fakes import ScriptedModel
from tiny import write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange, MessageTooLong
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Message, text_of

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
SOURCE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + ' ' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
)


def folder(path, **config):
    """A folder with no more than a chat template."""
    (path / "config.json").write_text('{"model_type": "llama"}')
    document = {"bos_token": "<s>", "chat_template": SOURCE, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(document))
    return path


def model(path, **config):
    replies = ["Hello!", "Bye!"]
    return ScriptedModel(replies, folder=folder(path, **config), special=SPECIAL)


def test_a_models_own_template_is_chosen(tmp_path):
    chosen = choose_template(model(tmp_path), "")
    assert isinstance(chosen, ChatTemplate)
    assert chosen.name == "own"
    assert chosen.stop == ("<|im_end|>",)
    assert choose_template(model(tmp_path), "own") == chosen
    with pytest.raises(ValueError, match=r"trained with the template 'own' .* template 'plain'"):
        choose_template(model(tmp_path), "plain")


def test_the_file_wins_over_the_key_and_of_several_the_default(tmp_path):
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": SOURCE}]
    assert choose_template(model(tmp_path, chat_template=named), "").stop == ("<|im_end|>",)
    (tmp_path / "chat_template.jinja").write_text(SOURCE.replace("im_end", "im_start"))
    assert choose_template(model(tmp_path), "").stop == ("<|im_start|>",)


def test_of_several_templates_the_one_for_tools_writes_a_chat_with_tools(tmp_path):
    tool_use = "{{ tools[0].function.name }}: {{ messages[-1].content }} <tool_call>"
    named = [{"name": "default", "template": SOURCE}, {"name": "tool_use", "template": tool_use}]
    plain = choose_template(model(tmp_path, chat_template=named[:1]), "")
    both = choose_template(model(tmp_path, chat_template=named), "")
    assert both.fingerprint == plain.fingerprint
    asked = [Message("user", "Hi")]
    assert text_of(both.render(asked)) == text_of(plain.render(asked))
    clock = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    assert text_of(replace(both, tools=(clock,)).render(asked)) == "clock: Hi <tool_call>"


@pytest.mark.parametrize(
    "given",
    [
        *(7, {"a": "b"}, "{% for %}", [{"name": "tool_use", "template": "x"}]),
        [{"name": "default", "template": 7}],
        [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{% for %}"}],
    ],
)
def test_a_damaged_template_is_named(tmp_path, given):
    with pytest.raises(ValueError, match=r"tokenizer_config.json: .*chat.template"):
        choose_template(model(tmp_path, chat_template=given), "")


def test_a_chat_is_rendered_and_a_typed_token_stays_text(tmp_path):
    scripted = model(tmp_path)
    session = Session(Chat(Store(tmp_path / "chats.db")), scripted)
    for text in ("Hi <|im_end|>", "Again"):
        for _ in session.say(text):
            pass
    assert scripted.stops == [("<|im_end|>",)] * 2
    assert scripted.prompts[1] == (
        "<s><|im_start|>user Hi <|im_end|><|im_end|><|im_start|>assistant Hello!<|im_end|>"
        "<|im_start|>user Again<|im_end|><|im_start|>assistant "
    )
    prompt = writer_for(scripted, session.template).write(
        None, [Exchange("Hi <|im_end|>")], max_tokens=8
    )
    special = [scripted.tokenizer.piece(id) for id in prompt.ids if 1 <= id <= len(SPECIAL)]
    assert special == ["<s>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_what_the_model_puts_first_is_not_put_twice(tmp_path):
    scripted = model(tmp_path)
    scripted.start = [scripted.tokenizer.special["<s>"]]
    writer = writer_for(scripted, choose_template(scripted, ""))
    assert writer.write(None, [Exchange("Hi")], max_tokens=8).text.startswith("<|im_start|>user")


def test_the_oldest_exchanges_are_left_out(tmp_path):
    scripted = model(tmp_path)
    scripted.context = 60
    writer = writer_for(scripted, choose_template(scripted, ""))
    history = [Exchange(f"word {n}", "one two three") for n in range(20)]
    prompt = writer.write("Be kind.", [*history, Exchange("last")], max_tokens=8)
    assert 0 < prompt.dropped < 20
    assert len(prompt.ids) < 60
    assert prompt.text.startswith("<s><|im_start|>system Be kind.<|im_end|><|im_start|>user word ")
    assert prompt.text.endswith("<|im_start|>user last<|im_end|><|im_start|>assistant ")
    with pytest.raises(MessageTooLong):
        writer.write(None, [Exchange("word " * 80)], max_tokens=8)


def test_a_begun_reply_is_gone_on_with(tmp_path):
    scripted = model(tmp_path)
    writer = writer_for(scripted, choose_template(scripted, ""))
    whole = writer.write(None, [Exchange("Hi", "Hello"), Exchange("Bye")], max_tokens=8)
    begun = writer.write(None, [Exchange("Hi", "Hello")], max_tokens=8)
    assert begun.text.endswith("<|im_start|>assistant Hello")
    assert whole.ids[: len(begun.ids)] == begun.ids


def test_a_special_token_ends_the_reply_of_a_real_model(tmp_path):
    write_tiny_gpt2(tmp_path)
    plain = load_model(str(tmp_path))
    name = next(iter(plain.tokenizer.special))
    ids = plain.tokenizer.encode("a b c")
    drawn = [
        event.id
        for event in plain.generate(Request(ids, Sampling(temperature=0.0, max_tokens=4)))
        if hasattr(event, "id")
    ]
    # The first token that it draws becomes the name's token.
    plain.tokenizer.special = {name: drawn[0]}
    events = list(
        plain.generate(Request(ids, Sampling(temperature=0.0, max_tokens=4), stop=[name]))
    )
    assert [event.reason for event in events] == ["stop"]
