"""What a lesson file may hold; a fault is one sentence with file, line and key."""

from functools import cache

import pytest

from chatapp.common.userfiles import UserError
from chatapp.dialogue.lessons.lesson import find_lesson
from chatapp.dialogue.lessons.outcome import StepOutcome
from chatapp.dialogue.lessons.teaching import Workshop, check_lesson
from chatapp.engine.models.loading import load_model

HEAD = 'title = "Mine"\nsettings = {temperature = 0, max_tokens = 2}\n'
STEP = '[[step]]\ntitle = "One"\ntext = "See."\n'


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('promt = "Hi"', "line 6: 'step[1].promt' is not a key of a lesson; did you mean"),
        ('view = "tokens"', "line 6: 'step[1].view' has no 'prompt' or 'message' beside it"),
        ('prompt = "Hi"\nview = "inside"', "line 7: 'step[1].view' is the string 'inside'"),
        ('prompt = "Hi"\nmessage = "Hi"', "line 7: 'step[1].message' cannot stand beside 'prompt'"),
        ('prompt = "Hi"\nsettings = {temprature = 1}', "line 7: 'step[1].settings'"),
        ('prompt = "Hi"\nsettings = {temperature = -1}', "line 7: 'step[1].settings'"),
        ('prompt = "Hi"\ntoken = "i"', "line 7: 'step[1].token' has no 'view' beside it"),
        ('prompt = "Hi"\nview = "why"\nhead = "1"', "line 8: 'step[1].head' is the string '1'"),
        ('prompt = "Hi"\nexpect = {entropy = [2, 1]}', "'step[1].expect.entropy' is a list"),
        ('message = "Hi"\nprompt_file = "no.toml"', "'step[1].prompt_file' is the string"),
        ('prompt = "Hi"\nreply = false\ncache = false', "'cache' or 'slower' is about the reply"),
        (
            'prompt = "Hi"\nreply = false\nexpect = {reply = ["a"]}',
            "'step[1].expect' is about the reply",
        ),
    ],
)
def test_a_fault_is_named(tmp_path, lines, sentence):
    name = write(tmp_path, f"{HEAD}{STEP}{lines}\n")
    with pytest.raises(UserError, match=r"mine\.toml, line \d+: ") as caught:
        find_lesson(name)
    assert sentence in str(caught.value)


def test_no_module_beside_a_lesson_replaces_one_of_ours(tmp_path):
    (tmp_path / "typer.py").write_text("open('ran', 'w')")
    (tmp_path / "own.toml").write_text("x = 1")
    name = write(tmp_path, f'{HEAD}teach = {{mine = "own.toml"}}\n{STEP}prompt = "Hi"\n')
    with Workshop(find_lesson(name)) as workshop, pytest.raises(UserError, match="own"):
        workshop.folder("mine")
    assert not (tmp_path / "ran").exists()


def test_a_lesson_needs_steps_and_a_name_that_exists(tmp_path):
    with pytest.raises(UserError, match="'step' is missing"):
        find_lesson(write(tmp_path, HEAD))
    with pytest.raises(UserError, match="no lesson 'tokns'; did you mean 'tokens'"):
        find_lesson("tokns")
    with pytest.raises(UserError, match=r"nosuch\.toml: cannot be read"):
        find_lesson("nosuch.toml")
    with pytest.raises(UserError, match=r"line 3: 'teach\.mine' is the string 'no\.toml'"):
        find_lesson(write(tmp_path, f'{HEAD}teach = {{mine = "no.toml"}}\n{STEP}'))


load = cache(load_model)
CAT = 'prompt = "A cat is an"\n'


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('expect = {reply = ["London"]}', "the reply lacks 'London': 'animal"),
        ('expect = {lacks = ["animal"]}', "the reply has 'animal': 'animal"),
        (
            'expect = {likeliest = " London"}',
            "the likeliest token is ' animal', expected ' London'",
        ),
        ('expect = {probability = {" animal" = [0.9, 1]}}', "the probability of ' animal': 0."),
        ('expect = {probability = {"zanfo" = [0, 1]}}', "tokens, not one"),
        ("expect = {entropy = [0, 1]}", "bits of entropy: "),
        ("expect = {left = [2, 9]}", "tokens left: 1, expected 2 to 9"),
        ("expect = {count = [1, 3]}", "tokens of the text: 4, expected 1 to 3"),
        ("expect = {examples = [1, 4]}", "examples in the prompt: 0, expected 1 to 4"),
        ('expect = {tokens = ["The"]}', "the tokens are ['A', ' cat'"),
        ('expect = {induction = {"0.0" = [0.5, 1]}}', "the induction score of 0.0: 0"),
        ('expect = {share = {"9.0" = [0, 1]}}', "there is no part '9.0'"),
        ('expect = {share = {"1.mlp" = [99, 100]}}', "the share of 1.mlp: "),
        ('off = "9.0"', "there is no layer 9"),
        ('view = "tokens"\ntoken = "dog"', "the text has no token 'dog'"),
        ('view = "layers"\ntoken = " an"\nexpect = {layers = {"5" = " a"}}', "is ' animal'"),
        (
            'view = "attention"\ntoken = " an"\nhead = "0.0"\n'
            'expect = {attends = {"A" = [0.9, 1]}}',
            "the weight on 'A': 0",
        ),
        (
            'view = "attention"\ntoken = " an"\nexpect = {attends = {" cat" = [0.9, 1]}}',
            "the weight on ' cat': 0",
        ),
    ],
)
def test_each_expectation_can_fail(tmp_path, lines, problem):
    name = write(tmp_path, f"{HEAD}{STEP}{CAT}{lines}\n")
    (checked,) = check_lesson(find_lesson(name), load)
    (found,) = checked.problems
    assert problem in found


def test_a_reply_that_ends_a_word_is_read_as_it_was_written(tmp_path):
    step = 'prompt = "Anna saw a zanfo. Anna saw a z"\nsettings = {max_tokens = 3}\n'
    lesson = find_lesson(write(tmp_path, f"{HEAD}{STEP}{step}"))
    texts = StepOutcome(lesson, lesson.steps[0], load("bundled")).trace.texts
    assert "".join(texts).endswith("Anna saw a zanfo"), "no space before what the model wrote"
