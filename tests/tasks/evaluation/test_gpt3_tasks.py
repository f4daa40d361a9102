"""The generated items have the paper's shapes and right answers, and come again with a seed."""

import re
from collections import Counter

import pytest

from chatapp.prompting.messages import text_of
from chatapp.rows.examples import PromptError
from chatapp.tasks.evaluation.gpt3_tasks import (
    TASKS,
    generate,
    own_words,
    published_row,
    read_words,
    task_prompt,
)
from chatapp.tasks.files.layout import render

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
SCRAMBLED = ("CL", "A1", "A2", "RI", "RW")


def test_the_tasks_are_those_of_the_paper():
    sums = {f"{digits}D{sign}" for digits in range(2, 7) for sign in "+-"}
    assert set(TASKS) == sums | {"2Dx", "1DC", *SCRAMBLED}


@pytest.mark.parametrize("name", [name for name in TASKS if name not in (*SCRAMBLED, "1DC")])
def test_arithmetic(name):
    digits = int(name[0])
    largest = 0
    for item in generate(name, 300, seed=1):
        found = re.fullmatch(r"Q: What is (\d+) (plus|minus|times) (\d+)\?\n\nA:", item.input)
        assert found
        first, word, second = found.groups()
        assert item.output == str(eval(f"{first} {SIGNS[word]} {second}"))
        assert word[0] == {"+": "p", "-": "m", "x": "t"}[name[-1]]
        largest = max(largest, int(first), int(second))
    assert 10**digits * 0.9 < largest < 10**digits


def test_one_digit_composite():
    for item in generate("1DC", 300, seed=1):
        found = re.fullmatch(
            r"Q: What is (\(([1-9]) [-+*] ([1-9])\) [-+*] ([1-9]))\?\n\nA:", item.input
        )
        assert found
        assert item.output == str(eval(found[1]))


@pytest.mark.parametrize("name", SCRAMBLED)
def test_scrambled_words(name):
    items = generate(name, 400, seed=1)
    assert len({item.output for item in items}) == 400
    for item in items:
        word = item.output
        found = re.fullmatch(
            r"Please unscramble the letters into a word, and write that word:\n(.+) =", item.input
        )
        assert found
        scrambled = found[1]
        assert scrambled != word
        assert word in own_words()
        if name == "RI":
            assert scrambled[::2] == word
            assert not any(mark.isalnum() for mark in scrambled[1::2])
            continue
        assert Counter(scrambled) == Counter(word)
        if name == "CL":
            assert scrambled in word + word
        if name == "RW":
            assert scrambled == "".join(reversed(word))
        kept = {"A1": 1, "A2": 2}.get(name, 0)
        assert scrambled[:kept] == word[:kept]
        assert not kept or scrambled[-kept:] == word[-kept:]


@pytest.mark.parametrize("name", TASKS)
def test_items_come_again_with_their_seed_and_not_with_another(name):
    items = generate(name, 50, seed=3)
    assert items == generate(name, 50, seed=3)
    assert items == generate(name, 60, seed=3)[:50]
    assert items != generate(name, 50, seed=4)
    assert len({item.input for item in items}) == 50


def test_more_items_than_there_are():
    assert len(generate("2D+", 9_900, seed=0)) == 9_900
    with pytest.raises(PromptError, match="different items, not 10001"):
        generate("2D+", 10_001, seed=0)
    with pytest.raises(PromptError, match=r"gives 1 different items, not 2; name a file of more"):
        # "aaaaa" never changes, "Apple" is a name, "tiny" is too short.
        generate("A1", 2, seed=0, words=["aaaaa", "Apple", "tiny", "orange", "orange"])


def test_no_such_task():
    with pytest.raises(PromptError, match="there is no task '9D'; there are 2D"):
        generate("9D", 1, seed=0)


def test_words_from_a_file(tmp_path):
    file = tmp_path / "words.txt"
    file.write_bytes(b"\xef\xbb\xbforange purple\r\nyellow\n")
    assert read_words(file) == ["orange", "purple", "yellow"]
    assert {item.output for item in generate("RW", 3, 0, read_words(file))} == {
        "orange",
        "purple",
        "yellow",
    }
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PromptError, match="not valid UTF-8"):
        read_words(file)
    with pytest.raises(PromptError, match="cannot be read"):
        read_words(tmp_path / "none")


def test_the_prompt_shows_items_as_they_stand():
    pool = generate("2D+", 2, seed=0)
    prompt = task_prompt("2D+", pool)
    asked = "Q: What is 1 plus 2?\n\nA:"
    expected = "".join(f"{item.input} {item.output}\n\n" for item in pool) + asked
    assert text_of(render(prompt, [0, 1], asked)) == expected


def test_rows_are_those_of_the_published_files():
    item = generate("2D+", 1, seed=0)[0]
    assert published_row(item) == {"context": item.input, "completion": f" {item.output}"}
