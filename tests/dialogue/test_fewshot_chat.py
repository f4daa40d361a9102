"""Chats held with a prompt file: what is sent, which examples, what fits, and what is kept."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedModel
from sessions import session_with
from thinking_model import thinking_model

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Started
from chatapp.dialogue.reading import draft, read, usage
from chatapp.dialogue.session import Session
from chatapp.dialogue.store.rows import Basis
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.dialogue.writers.prompt import Shot
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling
from chatapp.prompting.messages import text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, save_template
from chatapp.rows.examples import PromptError
from chatapp.tasks.answering import Answerer
from chatapp.tasks.files.promptfile import load_prompt, selector_for

COLOURS = [("red rose", "warm"), ("blue sea", "cold"), ("red fire", "hot"), ("white ice", "icy")]
DIALOGUE = [("Hello.", "Welcome to Caracas."), ("Is it big?", "Yes, very big.")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path):
    """Writes a prompt file with its examples; gives its path."""

    def write(examples, rest="", name="task.toml"):
        rows = ", ".join(f'{{input = "{first}", output = "{then}"}}' for first, then in examples)
        path = tmp_path / name
        path.write_text(
            'instruction = "Say it."\ninput_prefix = "Q: "\noutput_prefix = "A:"\n'
            'separator = "\\n"\nstop = ["\\n"]\n'
            + (f"examples = [{rows}]\n" if rows else "")
            + rest
        )
        return str(path)

    return write


NEAREST = '[select]\nmethod = "knn"\nk = 2\nencoder = "tfidf"\n'


def say(session, text):
    *_, finished = session.say(text)
    assert isinstance(finished, Finished)
    return finished


def held_with(store, model, prompt, **options):
    return session_with(store, model, CHAT, prompt=prompt, **options)


# What is sent


def test_the_chat_goes_on_after_fixed_demonstrations(store, file):
    model = ScriptedModel([" It is in the north.", " Nine."])
    session = held_with(store, model, file(DIALOGUE))
    say(session, " Where is it? ")
    say(session, "How many?")
    opening = "Say it.\nQ: Hello.\nA: Welcome to Caracas.\nQ: Is it big?\nA: Yes, very big.\n"
    first = f"{opening}Q: Where is it?\nA:"
    assert model.prompts == [first, f"{first} It is in the north.\nQ: How many?\nA:"]
    assert model.stops == [("\n",)] * 2
    assert model.finished[1].reused_tokens == len(model.tokenizer.encode(model.prompts[0])) + 5
    assert [message.text for message in session.chat.messages][1::2] == [
        "It is in the north.",
        "Nine.",
    ]


def test_demonstrations_are_chosen_for_each_message(store, file):
    model = ScriptedModel([" pink"])
    session = held_with(store, model, file(COLOURS, NEAREST))
    say(session, "red wine")
    say(session, "blue ice")
    assert model.prompts == [
        "Say it.\nQ: red fire\nA: hot\nQ: red rose\nA: warm\nQ: red wine\nA:",
        "Say it.\nQ: white ice\nA: icy\nQ: blue sea\nA: cold\nQ: blue ice\nA:",
    ]
    reading = read(session, session.chat.messages[1].id)
    assert [(shot.input, shot.output) for shot in reading.prompt.shots] == COLOURS[:3:2]
    first, second = (shot.similarity for shot in reading.prompt.shots)
    assert 1 > first >= second > 0
    assert reading.prompt.dropped_shots == reading.left_out == ()
    assert reading.prompt.text == model.prompts[0]
    assert text_of(reading.segments) == " pink"


@pytest.mark.parametrize("method", ["fixed", "random", "bm25", "knn", "mmr"])
def test_the_prompt_is_that_of_run(store, file, method):
    name = file(COLOURS, f'[select]\nmethod = "{method}"\nk = 3\nencoder = "tfidf"\n')
    prompt = load_prompt(Path(name))
    model = ScriptedModel([" x"])
    question = Answerer(model, prompt, selector_for(prompt, model)).prepare("red sea")
    session = held_with(store, model, name)
    say(session, "red sea")
    assert model.prompts == [text_of(question.segments)]
    shots = read(session, session.chat.messages[1].id).prompt.shots
    pool = prompt.pool
    assert shots == tuple(
        Shot(pool.inputs[each.index], pool.outputs[each.index], each.similarity)
        for each in question.examples
    )


class Judge(ScriptedModel):
    """Finds a label the likelier, the oftener it stands in the prompt."""

    def score(self, pairs):
        return [[context.count(label[0]) - 5.0] for context, label in pairs]


LABELLED = [("good", "yes"), ("bad", "no"), ("fine and good", "yes"), ("very bad", "no")]


def labelled(file, rest):
    name = file(LABELLED)
    Path(name).write_text(f'labels = ["no", "yes"]\n{Path(name).read_text()}{rest}')
    return name


@pytest.mark.parametrize("scoring", ["direct", "calibrated", "channel"])
def test_the_reply_is_the_label_that_run_would_give(store, file, scoring):
    name = labelled(file, f'{NEAREST.replace("2", "3")}[score]\nmethod = "{scoring}"\n')
    model = Judge([" never said"])
    prompt = load_prompt(Path(name))
    answerer = Answerer(model, prompt, selector_for(prompt, model))
    for text in ("good fish", "bad fish"):
        (answer,) = answerer.answer([answerer.prepare(text)])
        session = held_with(store, model, name)
        finished = say(session, text)
        assert session.chat.messages[1].text == answer.output
        assert session.chat.messages[1].status == "complete"
        share = answer.probabilities[answer.output]
        assert finished.message.startswith(f"{answer.output} {100 * share:.1f}% · ")
        assert finished.reply_tokens == 1
        assert store.generations(session.chat.id or 0)[0].reply_tokens == 1
    assert model.prompts == []


def test_messages_with_labels_stand_alone(store, file):
    session = held_with(store, Judge([]), labelled(file, ""))
    say(session, "good fish")
    say(session, "bad fish")
    assert "good fish" not in read(session, session.chat.messages[-1].id).prompt.text
    assert draft(session, "good fish").prompt.choose is not None


def test_instructions_of_the_chat_come_before_those_of_the_file(store, file):
    model = ScriptedModel([" x"])
    session = held_with(store, model, file(COLOURS[:1]), system=" Be brief. ")
    say(session, "Hi")
    session.chat.use_basis(replace(session.chat.basis, system=""))
    session.regenerate(2)
    list(session.regenerate(2))
    session.chat.use_basis(replace(session.chat.basis, system=None))
    list(session.regenerate(2))
    rest = "Q: red rose\nA: warm\nQ: Hi\nA:"
    assert model.prompts == [f"Be brief.\n{rest}", rest, f"Say it.\n{rest}"]


# What fits


def test_examples_that_do_not_fit_are_named(store, file):
    long = ("red " + "and red " * 30, "hot")
    model = ScriptedModel([" x"], context=80)
    name = file([COLOURS[0], long, COLOURS[2]], NEAREST.replace("2", "3"))
    session = held_with(store, model, name)
    session.sampling = Sampling(max_tokens=8)
    reading = draft(session, "red")
    assert {shot.input for shot in reading.prompt.shots} == {"red rose", "red fire"}
    assert [shot.input for shot in reading.prompt.dropped_shots] == [long[0].strip()]
    assert len(reading.prompt.ids) + 8 <= 80
    assert session.chat.id is None, "a draft stores nothing"
    with pytest.raises(ValueError, match="the message is empty"):
        draft(session, "  ")


def test_a_long_chat_leaves_the_demonstrations_half_of_the_room(store, file):
    model = ScriptedModel([" one two three four five six seven"], context=120)
    session = held_with(store, model, file(DIALOGUE))
    session.sampling = Sampling(max_tokens=10)
    for number in range(14):
        started = next(iter(session.say(f"Question number {number}, please?")))
        assert isinstance(started, Started)
        list(session.regenerate(session.chat.messages[-1].id))
        prompt = read(session, session.chat.messages[-1].id).prompt
        assert len(prompt.ids) + 10 <= 120
        assert prompt.text.startswith("Say it.\nQ: Hello.\nA: Welcome to Caracas.\n")
        assert prompt.text.endswith(f"\nQ: Question number {number}, please?\nA:")
        assert len(prompt.shots) == 2
    left_out = read(session, session.chat.messages[-1].id).left_out
    assert left_out
    assert usage(session).dropped == len(left_out)
    assert left_out[-1].role == "assistant"
    newest = model.prompts[-1]
    assert "Question number 12, please?\nA: one two three" in newest
    assert all(message.text not in newest for message in left_out[::2])
    again = Session(Chat(store, session.chat.id), model, template=CHAT)
    again.sampling = Sampling(max_tokens=10)
    assert read(again, session.chat.messages[-1].id).prompt.text == newest, (
        "chosen by the chat alone"
    )


# What is stored


def test_the_prompt_survives_and_can_be_taken_off(store, file):
    model = ScriptedModel([" x"])
    name = file(COLOURS[:1])
    session = held_with(store, model, name, asked_template="alpaca")
    assert session.layout == name
    say(session, "Hi")
    chat = store.chat(session.chat.id)
    assert (chat.prompt, chat.asked_template) == (name, "alpaca")
    again = Session(Chat(store, session.chat.id), model, template=CHAT)
    say(again, "Again")
    assert model.prompts[1].startswith(model.prompts[0])
    store.set_basis(session.chat.id, Basis())
    plain = Session(Chat(store, session.chat.id), model, template=CHAT)
    assert plain.layout == "chat"
    say(plain, "Now?")
    assert model.prompts[2].startswith("User: Hi\nAssistant: x")


def test_a_file_that_is_gone_is_named_and_nothing_is_lost(store, file):
    model = ScriptedModel([" x"])
    name = file(COLOURS[:1])
    session = held_with(store, model, name)
    say(session, "Hi")
    source = Path(name).read_text()
    Path(name).unlink()
    again = Session(Chat(store, session.chat.id), model, template=CHAT)
    for attempt in (lambda: list(again.say("More?")), lambda: usage(again)):
        with pytest.raises(PromptError, match=r"task\.toml: cannot be read"):
            attempt()
    assert len(store.path(1)) == 2
    Path(name).write_text(source)
    say(again, "More?")
    assert len(store.path(1)) == 4


def test_a_chat_asks_for_a_template_where_the_model_has_none(tmp_path):
    free, tuned = ScriptedModel([]), ScriptedModel([], folder=tmp_path)
    save_template(CHAT, tmp_path)
    assert choose_template(free, "", "alpaca") == ALPACA
    assert choose_template(free, "plain", "alpaca") == ALPACA
    assert choose_template(free, "", "") == choose_template(free, "", "unknown") == PLAIN
    assert choose_template(tuned, "", "alpaca") == CHAT


# With a real model


TURNS = '[chat]\nstyle = "turns"\n'


def in_turns(model, store, name):
    return Session(Chat(store, basis=Basis(prompt=name)), model)


def test_a_chat_goes_on_after_demonstrations_in_turns(file, store, tmp_path):
    model = thinking_model(tmp_path / "model", ["Very.", "Thanks."])
    session = in_turns(model, store, file(DIALOGUE, TURNS))
    for text in ("Is it hot?", "I see."):
        list(session.say(text))
    user, reply = "<|im_start|>user\nQ: {}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"
    shown = "".join(user.format(asked) + reply.format(said) for asked, said in DIALOGUE)
    assert model.prompts[1] == (
        f"<|im_start|>system\nSay it.<|im_end|>\n{shown}"
        + user.format("Is it hot?")
        + reply.format("Very.")
        + user.format("I see.")
        + "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert model.stops[1] == ("\n", "<|im_end|>")
