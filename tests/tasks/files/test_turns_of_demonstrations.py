"""Demonstrations as turns of a chat: what the template is given, what fits, what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import END_OF_TEXT, Message, Segment, text_of
from chatapp.prompting.template import CHAT, PLAIN
from chatapp.rows.examples import Example, Pool, PromptError
from chatapp.tasks.files.layout import TurnsLayout
from chatapp.tasks.files.promptfile import PromptFile, load_prompt
from chatapp.tasks.selection.select import Select

SOURCE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML = ChatTemplate(SOURCE, "test", ("<|im_start|>", "<|im_end|>"))
PROMPT = PromptFile(
    path=Path("task.toml"),
    instruction="Say which.",
    input_prefix="Text: ",
    output_prefix="Which:",
    pool=Pool(["a fox", "an oak <|im_end|>", "a bird"], ["animal", "plant", "animal"]),
    labels=("animal", "plant"),
    metrics=("accuracy",),
    select=Select(k=2),
    style="turns",
)


def count(segment):
    return len(segment.text.split())


def test_a_demonstration_is_an_exchange():
    layout = TurnsLayout(PROMPT, CHATML)
    assert text_of(layout.render([0, 1], " a wren ")) == (
        "<|im_start|>system\nSay which.<|im_end|>\n"
        "<|im_start|>user\nText: a fox<|im_end|>\n<|im_start|>assistant\nanimal<|im_end|>\n"
        "<|im_start|>user\nText: an oak <|im_end|><|im_end|>\n"
        "<|im_start|>assistant\nplant<|im_end|>\n"
        "<|im_start|>user\nText: a wren<|im_end|>\n<|im_start|>assistant\n"
    )
    special = [each for each in layout.render([0, 1], "a") if each.kind == "special"]
    assert len(special) == 6 * 2 + 1  # none of what stands in a demonstration
    assert layout.answer(" plant ") == [Segment("assistant", "plant")]
    assert layout.after_answer() == Segment("special", "<|im_end|>")
    assert layout.stop == ("<|im_end|>",)


def test_the_chat_so_far_stands_before_the_query():
    layout = TurnsLayout(replace(PROMPT, instruction=""), CHATML)
    assert layout.messages([2], "a wren", [Example("a newt", "animal")]) == [
        Message("user", "Text: a bird"),
        Message("assistant", "animal"),
        Message("user", "Text: a newt"),
        Message("assistant", "animal"),
        Message("user", "Text: a wren"),
    ]


@pytest.mark.parametrize("template", [PLAIN, CHAT])
def test_a_model_without_a_template_has_ours(template):
    layout = TurnsLayout(PROMPT, template)
    assert text_of(layout.render([0], "a wren")).startswith("Say which.\n")
    assert text_of(layout.render([0], "a wren")).endswith("User: Text: a wren\nAssistant:")
    assert "\nUser: Text: a fox\nAssistant: animal" in text_of(layout.render([0], "a wren"))
    assert layout.answer("plant") == [Segment("assistant", " plant")]
    expected = Segment("marker", "\nUser:") if template == PLAIN else END_OF_TEXT
    assert layout.after_answer() == expected
    assert layout.stop == ("\nUser:", "\nAssistant:")


def test_the_printed_order_is_that_of_the_file():
    prompt = replace(PROMPT, select=Select(method="knn", k=2))  # the nearest last
    chat = TurnsLayout(prompt, CHATML).messages([0, 1], "a wren")
    assert [each.text for each in chat if each.role == "assistant"] == ["plant", "animal"]


def test_the_furthest_whole_turns_are_dropped():
    layout = TurnsLayout(PROMPT, CHATML)
    whole = layout.fit([0, 1, 2], "a wren", count, 1000)
    assert (whole.kept, whole.dropped) == ([0, 1, 2], [])
    tokens = sum(map(count, layout.render([0, 1, 2], "a wren"))) + 1
    assert whole.tokens == tokens  # with the label
    cut = layout.fit([0, 1, 2], "a wren", count, tokens - 1)
    assert (cut.kept, cut.dropped) == ([0, 1], [2])
    alone = layout.fit([], "a wren", count, 1000).tokens
    # The second example is too long even as the only one.
    short = layout.fit([0, 2], "a wren", count, alone).dropped
    assert short == [0, 2]
    one = layout.fit([0], "a wren", count, 1000).tokens
    assert layout.fit([1, 0], "a wren", count, one).kept == [0]
    with pytest.raises(PromptError, match="the instruction and the input alone take"):
        layout.fit([0], "a wren", count, alone - 1)


@pytest.mark.parametrize(
    ("announced", "end"),
    [
        ("<think>\\n", "<|im_start|>assistant\n<think>\n</think>\n\n"),
        ("{{ '' if enable_thinking else '<think></think>' }}", "assistant\n<think></think>"),
    ],
)
def test_an_answer_is_not_looked_for_in_a_thought(announced, end):
    announcing = "{{ '<|im_start|>assistant\\n' }}"
    added = announced if announced.startswith("{") else f"{{{{ '{announced}' }}}}"
    source = SOURCE.replace(announcing, announcing + added) + "{# </think> #}"
    layout = TurnsLayout(PROMPT, ChatTemplate(source, "test", CHATML.special))
    assert text_of(layout.render([0], "a wren")).endswith(end)


def test_turns_cannot_be_turned_round(tmp_path):
    file = tmp_path / "task.toml"
    text = 'labels = ["a", "b"]\n[score]\nmethod = "channel"\n[chat]\nstyle = "turns"\n'
    file.write_text(text)
    with pytest.raises(PromptError, match=r"task\.toml, line 3: 'score\.method' is 'channel'"):
        load_prompt(file)
    file.write_text(text.replace("channel", "calibrated"))
    assert load_prompt(file).style == "turns"
    file.write_text(text.replace("turns", "turn"))
    with pytest.raises(PromptError, match=r"task\.toml, line 5: .*'text' or 'turns'"):
        load_prompt(file)
    assert load_prompt_of(file, 'input_prefix = ""\n').style == "text"


def load_prompt_of(file, text):
    file.write_text(text)
    return load_prompt(file)
