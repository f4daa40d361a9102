from dataclasses import replace

import pytest

from chatapp.common.userfiles import UserError
from chatapp.engine.model import Sampling
from chatapp.rows.examples import Example
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.selection.methods import METHODS
from chatapp.tasks.selection.select import Select

SPAM = """
description  = "Spam or ham"
instruction  = "Classify each email as spam or ham."
input_prefix = "Email: "
output_prefix = "Class:"          # a comment
separator    = "\\n\\n"
stop         = ["\\n"]
labels       = ["spam", "ham"]
examples_file = "spam.jsonl"

[select]
method = "knn"
k      = 4
order  = "nearest-last"
seed   = 3

[score]
method = "calibrated"

[generate]
temperature = 0
max_tokens  = 32
"""


def write(folder, content, name="task.toml"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path):
    with pytest.raises(UserError) as caught:
        load_prompt(path)
    message = str(caught.value)
    assert message.isprintable()
    return message.replace(f"{path.parent}/", "")


def test_every_key_of_a_prompt_file(tmp_path):
    write(tmp_path, '{"text": "You won!", "label": "spam"}', "spam.jsonl")
    prompt = load_prompt(write(tmp_path, SPAM))
    assert prompt.description == "Spam or ham"
    assert prompt.instruction == "Classify each email as spam or ham."
    assert (prompt.input_prefix, prompt.output_prefix) == ("Email: ", "Class:")
    assert (prompt.separator, prompt.stop) == ("\n\n", ("\n",))
    assert prompt.labels == ("spam", "ham")
    assert prompt.pool[0] == Example("You won!", "spam")
    assert prompt.select == Select(method="knn", k=4, order="nearest-last", seed=3)
    assert prompt.scoring == "calibrated"
    assert Sampling(**prompt.generate) == Sampling(temperature=0.0, max_tokens=32)


def test_what_stands_for_missing_keys(tmp_path):
    prompt = load_prompt(write(tmp_path, 'separator = "\\n---\\n"'))
    assert (prompt.input_prefix, prompt.output_prefix) == ("Input: ", "Output:")
    assert prompt.stop == ("\n---\n",)
    assert len(prompt.pool) == 0
    assert prompt.select == Select(method="fixed", k=8)
    assert prompt.metrics == ("exact_match", "token_f1")
    assert prompt.generate == {"temperature": 0.0, "max_tokens": 64}
    assert load_prompt(write(tmp_path, 'separator = ""')).stop == ("\n",)
    assert load_prompt(write(tmp_path, "stop = []")).stop == ()
    labelled = load_prompt(write(tmp_path, 'labels = ["yes", "no"]'))
    assert labelled.metrics == ("accuracy", "macro_f1")
    assert labelled.scoring == "direct"


def test_a_byte_order_mark_and_windows_line_ends_mean_nothing(tmp_path):
    body = b'\xef\xbb\xbfinstruction = """a\r\nb"""\r\nlabels = ["x", " y "]\r\n'
    prompt = load_prompt(write(tmp_path, body))
    assert prompt.instruction == "a\nb"
    assert prompt.labels == ("x", "y")


def test_a_text_is_completed_as_it_stands(tmp_path):
    prompt = load_prompt(write(tmp_path, "  Once {upon}\r\na time\n\n", "story.txt"))
    assert prompt.text == "  Once {upon}\na time"
    assert prompt.description == "Once {upon}"
    assert prompt.generate == {}
    assert prompt.stop == ()


@pytest.mark.parametrize(
    ("names", "prefixes"),
    [
        (("input", "output"), ("Input: ", "Output:")),
        (("question", "answer"), ("Question: ", "Answer:")),
        (("text", "label"), ("Text: ", "Label:")),
        (("context", "completion"), ("", "")),
        (("prompt", "completion"), ("", "")),
    ],
)
def test_a_pool_is_a_prompt_of_its_own(tmp_path, names, prefixes):
    prompt = load_prompt(write(tmp_path, f"{','.join(names)}\na,b\n", "pool.csv"))
    assert (prompt.input_prefix, prompt.output_prefix) == prefixes
    assert prompt.pool[0] == Example("a", "b")


def test_examples_written_inline(tmp_path):
    lines = 'examples = [\n  {input = "a", output = "b"},\n  {question = "c", answer = "d"},\n]'
    assert load_prompt(write(tmp_path, lines)).pool.outputs == ["b", "d"]
    tables = '[[examples]]\ninput = "a"\noutput = "b"\n'
    assert load_prompt(write(tmp_path, tables)).pool.outputs == ["b"]


REFUSALS = {
    # Unknown keys.
    'description = ""\n\nlables = ["a", "b"]': "line 3: 'lables' is not a key of a prompt "
    "file; did "
    "you mean 'labels'?",
    '[select]\nmehtod = "knn"': "line 2: 'select.mehtod' is not a key of a prompt file; did "
    "you mean 'select.method'?",
    "select.mehtod = 3": "line 1: 'select.mehtod'",
    "select = {mehtod = 3}": "line 1: 'select.mehtod'",
    "[generate]\ntemp = 1": "line 2: 'generate.temp' is not a key of a prompt file; did you mean "
    "'generate.temperature'?",
    "[score]\nzzz = 1": "line 2: 'score.zzz' is not a key of a prompt file; there are method",
    "zzzzz = 1\nlabels = 3": "line 1: 'zzzzz' is not a key of a prompt file; there are "
    "description, ",
    "[nonsense]": "line 1: 'nonsense' is not a key",
    # A key that only looks like one stands in a string before.
    'instruction = """\nlabels = 1\n[select]\n"""\nlabels = 2': "line 5: 'labels' is the number 2",
    '"labels" = 2': "line 1: 'labels' is the number 2, expected a list",
    # Wrong types.
    'labels = ["yes", true]': "line 1: 'labels[2]' is true, expected a string",
    "labels = [1, 2]": "'labels[1]' is the number 1",
    'labels = "yes"': "'labels' is the string 'yes', expected a list",
    'labels = ["yes", " "]': "'labels[2]' is the string ' ', expected a text that is not empty",
    'labels = ["yes"]': "'labels' holds 1, expected 2 or more",
    "labels = []": "'labels' holds 0, expected 2 or more",
    'labels = ["yes", "yes "]': "line 1: 'labels' holds a label twice",
    'stop = "x"': "'stop' is the string 'x', expected a list",
    'stop = ["a", ""]': "'stop[2]' is the string '', expected a text that is not empty",
    "description = 2020-01-01": "'description' is a date, expected a string",
    "instruction = 3": "'instruction' is the number 3, expected a string",
    "select = 3": "line 1: 'select' is the number 3, expected a table",
    "[select]\nk = true": "line 2: 'select.k' is true, expected a whole number",
    "[select]\nk = 2.0": "'select.k' is the number 2.0, expected a whole number",
    "[select]\nk = -1": "'select.k' is the number -1, expected 0 or more",
    "[select]\nrelevance = 2": "'select.relevance' is the number 2, expected from 0 to 1",
    '[select]\nmethod = "nearest"': f"expected {', '.join(map(repr, [*METHODS][:-1]))} or",
    '[select]\norder = "last"': "expected 'nearest-first', 'nearest-last' or 'shuffled'",
    '[generate]\ntemperature = "hot"': "'generate.temperature' is the string 'hot', expected a",
    "[generate]\nmax_tokens = 1.5": "'generate.max_tokens' is the number 1.5, expected a whole",
    # What needs labels.
    '[select]\nmethod = "vote"': "line 2: 'select.method' is 'vote', which needs labels",
    '[select]\nmethod = "balanced"': "line 2: 'select.method' is 'balanced', which needs labels",
    '[score]\nmethod = "channel"': "line 2: 'score.method' is 'channel', which needs labels",
    'metrics = ["accuracy"]': "line 1: 'metrics' holds 'accuracy', which needs labels",
    'metrics = ["acc"]': "'metrics[1]' is the string 'acc', expected 'accuracy', 'macro_f1'",
    # Examples.
    "examples = []": "line 1: contains no examples",
    "examples = 3": "line 1: 'examples' is the number 3",
    "examples = [3]": "line 1, example 1: is the number 3, expected {input",
    'examples = [{input = "a"}]': "line 1, example 1: no output; expected a field named output",
    'examples = [{input = "a", label = true}]': "example 1: 'label' is true, expected a string; "
    "write it in quotes",
    'labels = ["x", "y"]\nexamples = [{input = "a", output = "z"}]': "line 2, example 1: "
    "'z' is not one of the labels",
    'examples_file = "no.jsonl"': "line 1: 'examples_file' is 'no.jsonl', but there is no file",
    'examples_file = "a\\u0000.jsonl"': "line 1: 'examples_file' is 'a\\x00.jsonl', but",
    'examples_file = "task.toml"': "task.toml: expected a file of examples named .jsonl, ",
    'examples = []\nexamples_file = "x"': "line 1: 'examples' conflicts with 'examples_file'",
    # TOML itself.
    "a = = 3": "line 1, column 5: is not valid TOML: Invalid value",
    'b = 1\na = """\n': "line 2: is not valid TOML: Unterminated string",
    "a = 1\na = 2": "line 2: is not valid TOML: Cannot overwrite a value",
    "a = " + "[" * 50_000: "task.toml: is nested too deeply",
    "a = " + "9" * 5_000: "task.toml: is not valid TOML: Exceeds the limit (4300 digits)",
    'a = "\x1b[31m"': "line 1, column 6: is not valid TOML: Illegal character '\\x1b'",
    "\n\0": "line 2: holds a NUL character",
}


@pytest.mark.parametrize("body", REFUSALS)
def test_a_prompt_file_is_refused_in_one_sentence(tmp_path, body):
    message = refusal(write(tmp_path, body))
    assert message.startswith("task.toml")
    assert REFUSALS[body] in message


def test_other_files_are_refused_in_one_sentence(tmp_path):
    assert "is empty, expected a text" in refusal(write(tmp_path, " \n\n", "empty.txt"))
    assert "line 2: is not valid UTF-8 (perhaps Latin-1" in refusal(
        write(tmp_path, b"a\n\xe9", "latin.txt")
    )
    assert "expected a prompt file ending in" in refusal(write(tmp_path, "x", "task.yaml"))
    assert "cannot be read: No such file" in refusal(tmp_path / "absent.toml")
    assert "is not a valid path" in refusal(tmp_path / "nul\0.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "cannot be read: Is a directory" in refusal(tmp_path / "folder.toml")


def test_an_error_in_a_pool_names_the_pool(tmp_path):
    write(tmp_path, '{"text": "a", "label": "Spam"}', "spam.jsonl")
    assert refusal(write(tmp_path, SPAM)) == (
        "spam.jsonl, line 1: 'Spam' is not one of the labels; did you mean 'spam'?"
    )


def test_what_a_flag_overrides_is_checked_as_well(tmp_path):
    prompt = load_prompt(write(tmp_path, "[select]\nk = 2\n"))
    with pytest.raises(UserError, match=r"'select\.method' is 'vote', which needs labels"):
        replace(prompt, select=Select(method="vote"))
    assert str(prompt.error("select.k", "is too much")).endswith(
        "task.toml, line 2: 'select.k' is too much"
    )
