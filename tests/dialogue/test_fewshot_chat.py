"""Chats held with a prompt file: what is sent, which examples, what fits, and what is kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedModel
from sessions import session_with
from thinking_model import thinking_model
from tiny import write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Started
from chatapp.dialogue.reading import draft, read, usage
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.dialogue.writers.fewshot import FewShotWriter
from chatapp.dialogue.writers.prompt import Exchange, MessageTooLong, Shot
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished
from chatapp.engine.model import ContextOverflow, Sampling
from chatapp.prompting.examples import PromptError
from chatapp.prompting.messages import text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, save_template
from chatapp.tasks.answering import Answerer
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.options import selector_for

COLOURS = [("red rose", "warm"), ("blue sea", "cold"), ("red fire", "hot"), ("white ice", "icy")]
DIALOGUE = [("Hello.", "Welcome to Caracas."), ("Is it big?", "Yes, very big.")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


WriteFile = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> WriteFile:
    """Writes a prompt file with its examples; gives its path."""

    def write(examples: list[tuple[str, str]], rest: str = "", name: str = "task.toml") -> str:
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


def say(session: Session, text: str) -> Finished:
    *_, finished = session.say(text)
    assert isinstance(finished, Finished)
    return finished


def held_with(store: Store, model: object, prompt: str, **options: object) -> Session:
    return session_with(store, model, CHAT, prompt=prompt, **options)  # type: ignore[arg-type]


# What is sent


def test_the_chat_goes_on_after_fixed_demonstrations(store: Store, file: WriteFile) -> None:
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


def test_demonstrations_are_chosen_for_each_message(store: Store, file: WriteFile) -> None:
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
    assert first is not None
    assert second is not None
    assert 1 > first >= second > 0
    assert reading.prompt.dropped_shots == reading.left_out == ()
    assert reading.prompt.text == model.prompts[0]
    assert text_of(reading.segments) == " pink"


@pytest.mark.parametrize("method", ["fixed", "random", "bm25", "knn", "mmr"])
def test_the_prompt_is_that_of_run(store: Store, file: WriteFile, method: str) -> None:
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

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        return [[context.count(label[0]) - 5.0] for context, label in pairs]


LABELLED = [("good", "yes"), ("bad", "no"), ("fine and good", "yes"), ("very bad", "no")]


def labelled(file: WriteFile, rest: str) -> str:
    name = file(LABELLED)
    Path(name).write_text(f'labels = ["no", "yes"]\n{Path(name).read_text()}{rest}')
    return name


@pytest.mark.parametrize("scoring", ["direct", "calibrated", "channel"])
def test_the_reply_is_the_label_that_run_would_give(
    store: Store, file: WriteFile, scoring: str
) -> None:
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


def test_messages_with_labels_stand_alone(store: Store, file: WriteFile) -> None:
    session = held_with(store, Judge([]), labelled(file, ""))
    say(session, "good fish")
    say(session, "bad fish")
    assert "good fish" not in read(session, session.chat.messages[-1].id).prompt.text
    assert draft(session, "good fish").prompt.choose is not None


def test_a_vote_asks_no_model(store: Store, file: WriteFile) -> None:
    rest = '[select]\nmethod = "vote"\nk = 2\nencoder = "tfidf"\n'
    session = held_with(store, ScriptedModel([]), labelled(file, rest))
    say(session, "good as gold")
    say(session, "a bad one")
    assert [message.text for message in session.chat.messages[1::2]] == ["yes", "no"]


def test_a_model_that_cannot_score_writes_its_answer(store: Store, file: WriteFile) -> None:
    class Server(ScriptedModel):
        def score(self, pairs: object) -> list[list[float]]:
            raise ModelError("a server does not give the probabilities of a given text")

    model = Server([" maybe"])
    session = held_with(store, model, labelled(file, NEAREST))
    say(session, "good fish")
    assert session.chat.messages[1].text == "maybe"
    list(session.regenerate(2))
    list(session.continue_reply(session.chat.messages[-1].id))
    assert model.prompts[-1].endswith("Q: good fish\nA: maybe")


def test_instructions_of_the_chat_come_before_those_of_the_file(
    store: Store, file: WriteFile
) -> None:
    model = ScriptedModel([" x"])
    session = held_with(store, model, file(COLOURS[:1]), system=" Be brief. ")
    say(session, "Hi")
    session.chat.hold_with(replace(session.chat.basis, system=""))
    session.regenerate(2)
    list(session.regenerate(2))
    session.chat.hold_with(replace(session.chat.basis, system=None))
    list(session.regenerate(2))
    rest = "Q: red rose\nA: warm\nQ: Hi\nA:"
    assert model.prompts == [f"Be brief.\n{rest}", rest, f"Say it.\n{rest}"]


def test_what_nobody_answered_is_no_example(store: Store, file: WriteFile) -> None:
    model = ScriptedModel(["", " x"])
    session = held_with(store, model, file([]))
    say(session, "Silence?")
    say(session, "Hi")
    assert model.prompts[1] == "Say it.\nQ: Hi\nA:"
    list(session.continue_reply(session.chat.messages[-1].id))
    assert model.prompts[2] == "Say it.\nQ: Hi\nA: x"


def test_braces_quotes_and_markup_are_plain_characters(store: Store, file: WriteFile) -> None:
    text = "{input} [b]$x\\ <|endoftext|> \ud83d\x1b[2J"
    model = ScriptedModel([" x"])
    session = held_with(store, model, file(COLOURS[:1]))
    say(session, text)
    assert model.prompts[0].endswith("Q: {input} [b]$x\\ <|endoftext|> \ufffd\x1b[2J\nA:")
    assert model.tokenizer.end_id not in draft(session, text).prompt.ids


# What fits


def test_examples_that_do_not_fit_are_named(store: Store, file: WriteFile) -> None:
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


def test_a_long_chat_leaves_the_demonstrations_half_of_the_room(
    store: Store, file: WriteFile
) -> None:
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


def test_a_message_that_does_not_fit_is_refused(store: Store, file: WriteFile) -> None:
    model = ScriptedModel([" word" * 80], context=60)
    session = held_with(store, model, file(COLOURS, NEAREST))
    fits = "red " * 40
    assert draft(session, fits).prompt.shots == ()
    with pytest.raises(MessageTooLong) as caught:
        list(session.say("red " * 60))
    assert caught.value.tokens == 60
    assert caught.value.limit < 60
    assert session.chat.id is None
    say(session, "red")
    reply = session.chat.messages[-1].id
    assert read(session, reply).prompt.shots
    list(session.continue_reply(reply))  # in the room of the demonstrations
    with pytest.raises(ContextOverflow):
        list(session.continue_reply(reply))


# How replies are drawn


def test_the_file_says_how_replies_are_drawn_until_the_user_does(
    store: Store, file: WriteFile
) -> None:
    model = ScriptedModel([" x"])
    name = file(COLOURS, "[generate]\nmax_tokens = 7\n")
    session = held_with(store, model, name, sampling=Sampling(top_p=0.5, seed=3))
    usage(session)
    assert session.sampling == Sampling(temperature=0.0, top_p=0.5, seed=3, max_tokens=7)
    say(session, "red")
    session.sampling = Sampling(temperature=1.5, seed=4)
    say(session, "red")
    assert model.samplings == [
        Sampling(temperature=0.0, top_p=0.5, seed=3, max_tokens=7),
        Sampling(temperature=1.5, seed=4),
    ]
    turns = store.generations(1)
    assert [turn.template for turn in turns] == [name, name]
    assert [turn.prompt for turn in turns] == model.prompts


# What is stored


def test_the_prompt_survives_and_can_be_taken_off(store: Store, file: WriteFile) -> None:
    model = ScriptedModel([" x"])
    name = file(COLOURS[:1])
    session = held_with(store, model, name, asked_template="alpaca")
    assert session.layout == name
    say(session, "Hi")
    assert session.chat.id is not None
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


def test_a_prompt_of_the_library_by_its_name(store: Store) -> None:
    model = ScriptedModel([" Por supuesto."], context=2_000)
    session = held_with(store, model, "caracas")
    say(session, "Is it far?")
    assert model.prompts[0].startswith("The following is a dialogue between a traveller and")
    assert model.prompts[0].endswith("\nTraveller: Is it far?\nGuide:")


def test_a_file_that_is_gone_is_named_and_nothing_is_lost(store: Store, file: WriteFile) -> None:
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


@pytest.mark.parametrize("name", ["pirate", "unicorns", "no such prompt"])
def test_what_is_no_prompt_file(store: Store, name: str) -> None:
    session = held_with(store, ScriptedModel([" x"]), name)
    with pytest.raises(PromptError):
        usage(session)


def test_a_chat_asks_for_a_template_where_the_model_has_none(tmp_path: Path) -> None:
    free, tuned = ScriptedModel([]), ScriptedModel([], folder=tmp_path)
    save_template(CHAT, tmp_path)
    assert choose_template(free, "", "alpaca") == ALPACA
    assert choose_template(free, "plain", "alpaca") == ALPACA
    assert choose_template(free, "", "") == choose_template(free, "", "unknown") == PLAIN
    assert choose_template(tuned, "", "alpaca") == CHAT


# With a real model


def test_a_real_model_answers_and_reuses_what_it_read(
    store: Store, file: WriteFile, tmp_path: Path
) -> None:
    from chatapp.engine.models.loading import load_model

    model = load_model(str(write_tiny_gpt2(tmp_path)))
    assert isinstance(model, LocalModel)
    name = file(DIALOGUE, "[generate]\ntemperature = 1.0\nseed = 1\nmax_tokens = 12\n")
    session = held_with(store, model, name)
    first = say(session, "Where is it?")
    second = say(session, "And then?")
    assert "\n" not in session.chat.messages[1].text
    assert first.prompt_tokens <= second.reused_tokens < second.prompt_tokens
    by_embedding = file(COLOURS, NEAREST.replace("tfidf", "lm"), "lm.toml")
    writer = FewShotWriter.open(model, by_embedding)
    shots = writer.write(None, [Exchange("red sea")], max_tokens=8).shots
    assert len(shots) == 2
    assert all(shot.similarity is not None and -1 <= shot.similarity <= 1.001 for shot in shots)


TURNS = '[chat]\nstyle = "turns"\n'


def in_turns(model: ScriptedModel, store: Store, name: str) -> Session:
    return Session(Chat(store, basis=Basis(prompt=name)), model)


def test_a_chat_goes_on_after_demonstrations_in_turns(
    file: WriteFile, store: Store, tmp_path: Path
) -> None:
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


def test_a_label_is_chosen_in_turns(file: WriteFile, store: Store, tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "model", ["x"])
    name = file(COLOURS, 'labels = ["warm", "cold", "hot", "icy"]\n' + TURNS)
    session = in_turns(model, store, name)
    finished = list(session.say("red sea"))[-1]
    assert session.chat.messages[-1].text == "warm"
    assert "warm 25.0%" in finished.message
    question = Answerer(model, load_prompt(Path(name)), None, template=session.template).prepare(
        "red sea"
    )
    assert not question.examples
    reading = read(session, session.chat.messages[-1].id)
    assert [shot.output for shot in reading.prompt.shots] == ["warm", "cold", "hot", "icy"]
    assert text_of(question.segments).splitlines()[-4:] == reading.prompt.text.splitlines()[-4:]


def test_the_oldest_turns_are_left_out_whole(file: WriteFile, store: Store, tmp_path: Path) -> None:
    model = thinking_model(tmp_path / "model", ["one two three"])
    model.context = 120
    session = in_turns(model, store, file(DIALOGUE[:1], TURNS))
    session.sampling = Sampling(max_tokens=8)
    for number in range(12):
        list(session.say(f"{number} and some more words"))
    assert usage(session).dropped > 0
    prompt = model.prompts[-1]
    assert prompt.count("<|im_start|>user") == prompt.count("<|im_start|>assistant")
    assert prompt.startswith("<|im_start|>system\nSay it.<|im_end|>\n<|im_start|>user\nQ: Hello.")
