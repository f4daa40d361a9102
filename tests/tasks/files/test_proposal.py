"""A prompt file proposed from the columns of a pool: what is chosen, and what is refused."""

import json

import pytest

from chatapp.rows.reading import RowsError
from chatapp.tasks.files.promptfile import prompt_from
from chatapp.tasks.files.proposal import propose


def proposed(folder, rows):
    path = folder / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    saved = folder / "pool.toml"
    return prompt_from(saved, propose(str(path), saved))


ROWS = {
    "two texts": (
        {"premise": "p {}", "hypothesis": "h {}", "idx": "0", "label": ("yes", "no")},
        "Premise: {premise}\nHypothesis: {hypothesis}\nLabel: {label}",
        ("no", "yes"),
    ),
    "a number": (
        {"id": "a{}", "review": "r {}", "sentiment": (1, 0)},
        "Review: {review}\nSentiment: {sentiment}",
        ("label 0", "label 1"),
    ),
    "AG News": (
        {"Class Index": ("1", "2"), "Title": "t {}", "Description": "d {}"},
        "Title: {Title}\nDescription: {Description}\nClass Index: {Class Index}",
        ("label 1", "label 2"),
    ),
    "free answers": (
        {"question": "q {}", "answer": "a {}"},
        "Question: {question}\nAnswer: {answer}",
        (),
    ),
    "names that nobody knows": (
        {"short": "s {}", "long_text": "a longer one {}", "kind": ("x", "y")},
        "Long text: {long_text}\nKind: {kind}",
        ("x", "y"),
    ),
}


def filled(pattern, number):
    return {
        name: value.format(number) if isinstance(value, str) else value[number % 2]
        for name, value in pattern.items()
    }


@pytest.mark.parametrize("name", ROWS)
def test_layout_and_labels_come_from_the_columns(tmp_path, name):
    pattern, example, labels = ROWS[name]
    prompt = proposed(tmp_path, [filled(pattern, number) for number in range(12)])
    assert prompt.example == example
    assert prompt.labels == labels
    assert len(prompt.pool) == 12


def test_names_of_numbers_in_a_parquet_file_are_the_labels(tmp_path):
    datasets = pytest.importorskip("datasets")
    named = datasets.ClassLabel(names=["negative", "positive"])
    features = datasets.Features({"sentence": datasets.Value("string"), "label": named})
    rows = [{"sentence": f"film {number}", "label": number % 2} for number in range(9)]
    path = tmp_path / "sst2.parquet"
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    prompt = prompt_from(tmp_path / "sst2.toml", propose(str(path), tmp_path / "sst2.toml"))
    assert prompt.labels == ("negative", "positive")
    assert prompt.pool[1].output == "positive"


def test_foreign_names_and_labels_are_text(tmp_path):
    rows = [{'te"xt\x1b\x7f': f"t {n}", "label": ('a"\n', "[b]")[n % 2]} for n in range(8)]
    prompt = proposed(tmp_path, rows)
    assert prompt.example.startswith('Te"xt\x1b\x7f: {te"xt\x1b\x7f}')
    assert prompt.labels == ("[b]", 'a"')


def test_a_prompt_file_elsewhere_finds_the_pool(tmp_path):
    path = tmp_path / "pool.jsonl"
    path.write_text('{"text": "a", "label": "b"}\n')
    assert '"../pool.jsonl"' in propose(str(path), tmp_path / "prompts" / "mine.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        ('{"a"\n', "line 1"),
        ('{"a": "1", "b": "2"}\n{"a": "3", "b": "4"}\n', "there are 'a', 'b'"),
        ('{"label": "1", "number": 2}\n' * 4, "the input"),
    ],
)
def test_refusals_name_the_file(tmp_path, content, message):
    path = tmp_path / "pool.jsonl"
    path.write_text(content)
    with pytest.raises(RowsError, match=message) as raised:
        propose(str(path), tmp_path / "pool.toml")
    assert "pool.jsonl" in str(raised.value)
