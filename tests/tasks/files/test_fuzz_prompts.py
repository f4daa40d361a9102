"""Two thousand prompt files and pools that nobody would write.

Each of them either works, from reading to the finished prompt, or is refused with exactly
one sentence that begins with the path of a file. Nothing else is ever raised.
"""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chatapp.common.userfiles import UserError
from chatapp.prompting.messages import text_of
from chatapp.rows.examples import Columns, read_rows
from chatapp.rows.published import FORMATS
from chatapp.tasks.files.layout import fit, render, render_channel
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.selection.select import build_selector

QUERY = 'a {query} with "quotes", [markup] and \ud800'

fuzzed = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attempt(path):
    """Whether a file works. Fails when it neither works nor is refused properly."""
    try:
        use(load_prompt(path))
    except UserError as error:
        message = str(error)
        assert message.startswith(str(path.parent))
        assert message.isprintable()
        assert len(message) < 1_000
        return False
    return True


def use(prompt):
    """All that happens to a prompt file before a model sees it."""
    if prompt.text is not None:
        assert text_of(render(prompt, [], "")) == prompt.text
        return
    selector = build_selector(prompt.pool, prompt.select)
    ranked = selector.select(QUERY, min(prompt.select.k, 50))
    fitted = fit(prompt, ranked, QUERY, len, 10_000_000)
    assert sorted(fitted.kept) == sorted(ranked)
    text = text_of(render(prompt, ranked, QUERY))
    assert QUERY in text
    shown = [prompt.pool[index] for index in ranked]
    names = [name for name in prompt.form.example.fields if name in prompt.form.columns.inputs]
    assert all(item.value(name) in text for item in shown for name in names)
    if prompt.labels and prompt.form.channel:
        assert text_of(render_channel(prompt, ranked, QUERY, prompt.labels[0])).endswith(QUERY)


# Bytes that have broken readers of text before.
awkward = st.sampled_from(
    [
        b"\0",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\r\n",
        b"\r",
        b"\xc3",
        b"\xed\xa0\x80",  # a surrogate, as if it were UTF-8
        b"\\ud800",
        b"\\u0000",
        b"\xe2\x80\xa8",
        b"{}",
        b"{input}",
        b"%s",
        b'"',
        b"'''",
        b'"""',
        b"\\",
        b"\x1b[31m",
        b"[[",
        b"]",
        b"[" * 3_000,
        b"9" * 5_000,
        b"x" * 300_000,
        b"=",
        b",",
        b"#",
        b"\n",
        b"nan",
        b"1e999",
        b"\t",
    ]
)
noise = st.binary(max_size=12) | awkward

VALID = {
    "task.toml": b"""description = "Spam or ham"
instruction = "Classify each email."
input_prefix = "Email: "
output_prefix = "Class:"
separator = "\\n\\n"
stop = ["\\n"]
labels = ["spam", "ham"]
metrics = ["accuracy"]
examples = [{input = "You won!", output = "spam"}, {text = "Lunch?", label = "ham"}]

[select]
method = "mmr"
k = 8
order = "shuffled"
relevance = 0.5

[score]
method = "channel"

[generate]
temperature = 0.5
max_tokens = 12
""",
    "named.toml": b"""instruction = "Is it {spam}?"
example = "{sender} -> {to}: '{body}' ({{class}}: {class})"
query = "'{body}' {instruction} {sender}:"
examples = [
  {sender = "a@b", to = "me", body = "You {won}!", class = "spam"},
  {sender = "c@d", to = "me", body = "Lunch?", class = "ham"},
]

[select]
method = "bm25"
""",
    "pool.jsonl": b'{"text": "You won!", "label": "spam"}\n\n{"input": "\\u00e9", "output": "x"}\n'
    b'{"question": "Lunch at {noon}?", "answer": "ham", "id": 7}\n',
    "pool.csv": b'text,label,id\r\n"You ""won""\r\na prize",spam,1\r\n\r\nLunch?,ham,2\r\n',
    "story.txt": b"Once {upon} a time\r\nthere was\n",
}


@pytest.mark.parametrize("name", VALID)
def test_the_files_that_are_broken_below_work(tmp_path, name):
    (tmp_path / name).write_bytes(VALID[name])
    assert attempt(tmp_path / name)


@fuzzed
@given(st.sampled_from(sorted(VALID)), st.lists(noise, max_size=8).map(b"".join))
def test_byte_noise(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    attempt(tmp_path / name)


@fuzzed
@given(
    st.sampled_from(sorted(VALID)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), noise), min_size=1, max_size=4),
)
def test_good_files_with_something_put_in(tmp_path, name, edits):
    content = VALID[name]
    for place, cut, piece in edits:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + cut :]
    (tmp_path / name).write_bytes(content)
    attempt(tmp_path / name)


texts = st.text(st.characters(exclude_categories=[]), max_size=12) | st.sampled_from(
    ["spam", "", " ", "\n", "{0}", "x" * 100_000, "\ud800", "\0", "\ufeff", "knn", "channel"]
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
field_names = st.sampled_from(["input", "output", "text", "label", "question", "answer", "id"])


@fuzzed
@given(
    st.lists(
        st.dictionaries(field_names | texts, texts, max_size=3)
        | st.fixed_dictionaries({"input": texts, "output": texts})
        | values,
        max_size=6,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_pools_of_any_json(tmp_path, rows, end, mark):
    path = tmp_path / "pool.jsonl"
    body = end.join(json.dumps(row) for row in rows)
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + body.encode())
    attempt(path)
    if not body.startswith("["):  # else the file is one JSON list
        lines = [line for line, _ in read_rows(path, output_required=False)]
        assert lines == list(range(1, len(rows) + 1))


def toml(value):
    """A value as TOML; what TOML cannot say becomes something near."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value.encode(errors="replace").decode(), ensure_ascii=False).replace(
                "\x7f", ""
            )
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
        case None:
            return "1979-05-27"
    return str(value)


keys = st.sampled_from(
    "description instruction input_prefix output_prefix example query separator stop labels "
    "choices format metrics examples_file examples select score generate lables".split()
)
good = st.fixed_dictionaries(
    {},
    optional={
        "instruction": texts,
        "input_prefix": texts,
        "output_prefix": texts,
        "separator": texts,
        "stop": st.lists(texts, max_size=2),
        "labels": st.lists(texts, min_size=2, max_size=3),
        "examples": st.lists(
            st.fixed_dictionaries({"input": texts, "output": texts}), min_size=1, max_size=4
        ),
        "select": st.fixed_dictionaries(
            {},
            optional={
                "method": st.sampled_from("fixed random balanced bm25 knn mmr vote best".split()),
                "k": st.integers(-1, 10),
                "order": st.sampled_from(["nearest-first", "nearest-last", "shuffled"]),
                "seed": st.integers(),
                "relevance": st.floats(0, 1),
            },
        ),
        "score": st.fixed_dictionaries({"method": st.sampled_from(["direct", "channel", "x"])}),
    },
)


@fuzzed
@given(good, st.dictionaries(keys | texts, values, max_size=2))
def test_prompt_files_of_any_values(tmp_path, right, wrong):
    path = tmp_path / "task.toml"
    lines = [f"{toml(key)} = {toml(value)}" for key, value in (right | wrong).items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    attempt(path)


layouts = st.lists(
    st.sampled_from(
        ["{a}", "{b}", "{label}", "{instruction}", "{{", "}}", "{", "}", "{}", " ", "\n"]
    )
    | st.sampled_from(["'", ":", "Q: ", "{ a }", "{{a}}"]),
    max_size=6,
).map("".join)
rows = st.fixed_dictionaries({}, optional=dict.fromkeys(("a", "b", "label", "c"), texts))


@fuzzed
@given(
    st.fixed_dictionaries({}, optional={"example": layouts, "query": layouts}),
    st.lists(rows, max_size=4),
    st.sampled_from(["", "Say it."]),
)
def test_layouts_of_named_fields(tmp_path, keys, pool, instruction):
    path = tmp_path / "task.toml"
    values = keys | {"instruction": instruction, "examples": pool}
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in values.items()))
    attempt(path)


NAMES = (
    "premise choice1 choice2 question label InputSentence1 article questions options answers ctx_a "
    "ctx_b activity_label endings goal sol1 sol2 answerKey Answer Question utterance targetValue "
    "passage answer word sentence1 sentence2 choices stem text Value Aliases Data"
).split()
records = st.recursive(
    plain | st.sampled_from(["cause", "A", "(description x)", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=9)
    ),
)


@fuzzed
@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(["jsonl", "json"]), records)
@example("race", "jsonl", {"article": "", "answer": "A"})
def test_records_of_published_formats(tmp_path, name, suffix, record):
    path = tmp_path / f"pool.{suffix}"
    path.write_text(json.dumps(record))
    columns = Columns(("context",), "answer", choices="choices", published=name)
    for _, row in read_rows(path, columns):
        if isinstance(row, UserError):
            assert str(row).startswith(f"{path}, line ")
            assert str(row).isprintable()


@fuzzed
@given(good)
def test_prompt_files_of_the_right_types(tmp_path, right):
    path = tmp_path / "task.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in right.items()))
    attempt(path)
