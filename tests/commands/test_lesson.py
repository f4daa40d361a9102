"""`chatapp lesson`: the list, and the check without a screen."""

import json

from chatapp.dialogue.lessons.lesson import NAMES

LESSON = """title = "Mine"
[[step]]
title = "Words"
text = "Only words."
[[step]]
title = "Tokens"
text = "Three tokens."
prompt = "The capital of"
reply = false
expect = {count = [3, 3]}
[[step]]
title = "More"
text = "Nine tokens."
prompt = "The capital of"
reply = false
expect = {count = [9, 9]}
"""


def test_without_a_name_it_lists_the_lessons(run):
    result = run("lesson")
    assert [line.split()[0] for line in result.out.splitlines()] == list(NAMES)


def test_check_prints_a_line_a_step_and_fails_where_one_fails(run, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(LESSON, encoding="utf-8")
    result = run("lesson", "check", str(path))
    assert result.status == 1
    assert result.out.splitlines() == [
        " 1  Words: ok",
        " 2  Tokens: ok",
        " 3  More: tokens of the text: 3, expected 9 to 9",
        "1 of 3 steps do not show what their text says",
    ]
    path.write_text(LESSON.replace("[9, 9]", "[3, 3]"), encoding="utf-8")
    assert run("lesson", "check", str(path)).status == 0


def test_a_notebook_is_written_and_never_over_another(run, tmp_path):
    path, file = tmp_path / "mine.toml", tmp_path / "mine.ipynb"
    path.write_text(
        LESSON.replace('"The capital of"', '"</script> \\"\\"\\" {x} \\u001b"'), "utf-8"
    )
    words = ("lesson", "notebook", str(path), "--output", str(file))
    assert run(*words).out == f"{file}\n"
    cells = json.loads(file.read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            compile(cell["source"], "cell", "exec")
    assert repr('</script> """ {x} \x1b') in cells[-1]["source"]
    again = run(*words)
    assert (again.status, "already exists" in again.err) == (2, True)
    assert run(*words, "--force").status == 0


def test_a_lesson_needs_a_terminal(run):
    result = run("lesson", "tokens")
    assert result.status == 2
    assert "`chatapp lesson check` runs it without one" in result.err
