"""`ask` and `run` with answers that must fit something."""

import json
import re

import pytest
from ranges import check_ranges

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "maximum": 30}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


def test_an_answer_fits_its_schema(run, tmp_path):
    file = tmp_path / "pet.json"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8")
    asked = ("ask", "My cat is 7.", "--model", "bundled", "--seed", "1")
    code, out, err = run(*asked, "--schema", str(file), "--json")
    document = json.loads(out)
    assert (code, err, document["valid"]) == (0, "", True)
    assert json.loads(document["reply"])["kind"] in ("cat", "dog")
    assert document["forced_tokens"] > 3
    assert 0 < document["forbidden_mass"] < 1
    check_ranges(document)
    code, out, _ = run(*asked, "--schema", json.dumps(SCHEMA))
    assert (code, out.strip()) == (0, document["reply"])
    assert "valid" not in json.loads(run(*asked, "--json")[1])


def test_an_answer_that_is_cut_off_is_said_to_be_invalid(run):
    asked = ("ask", "Count.", "--model", "bundled", "--max-tokens", "5", "--pattern", "[0-9]{99}")
    code, _, err = run(*asked)
    assert code == 1
    assert err == (
        "chatapp: the reply does not fit its pattern: it was cut off after 5 tokens, before its "
        "end\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--schema", "gone.json"], "gone.json: cannot be read"),
        (["--schema", '{"type": "foo"}'], "the schema cannot be used: .*foo"),
        (["--pattern", "["], "the pattern cannot be used: "),
        (["--grammar", "start: x"], 'the grammar cannot be used: .*unknown name: "x"'),
        (["--pattern", "a", "--schema", "{}"], "use one of --schema, --pattern and --grammar"),
        (["--pattern", "a", "--tools", "clock"], "--pattern and --tools cannot be used together"),
    ],
)
def test_what_cannot_be_used_is_refused(run, options, words):
    code, out, err = run("ask", "Hello?", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(f"chatapp: .*{words}", err)


PROMPT = """\
output_prefix = "JSON:"
examples = [{{input = "Rex, a dog of 3", output = '{{"kind": "dog", "age": 3}}'}}]

[output]
{output}
"""


def test_a_prompt_file_says_what_its_answers_look_like(run, tmp_path):
    (tmp_path / "pet.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    file = tmp_path / "pets.toml"
    file.write_text(PROMPT.format(output='schema = "pet.json"'), encoding="utf-8")
    inputs = tmp_path / "in.txt"
    inputs.write_text("Mia, a cat of 12\nTom\nA dog\n", encoding="utf-8")
    code, out, _ = run("run", str(file), "--inputs", str(inputs), "--model", "bundled")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, len(rows)) == (0, 3)
    for row in rows:
        assert row["valid"] is True
        assert set(json.loads(row["output"])) == {"kind", "age"}
