"""finetune predict: labels, probabilities and scores for a text or a file, and continued."""

import json

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from chatapp.engine.backends.head import HeadSpec
from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.evaluation import evaluate
from finetune.objectives.heads import HeadExample, head_figures
from finetune.prediction import open_predictor
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


def rows(path, count=60, **fields):
    """Numbers below and above a half of them."""
    made = [{"text": f"after {i}", "label": "yes" if i % 2 else "no"} for i in range(count)]
    path.write_text("".join(json.dumps({**row, **fields}) + "\n" for row in made))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    data = {"train": str(rows(folder / "labelled.jsonl")), "held_out": 0.3}
    head = {"task": "classification"}
    return train(tiny.config(folder, data=data, head=head, train={"epochs": 4}), QUIET)


def predict(run, *arguments):
    return CliRunner().invoke(app, ["predict", str(run), *arguments])


def documents(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_text_gets_its_label_and_probabilities(run):
    done = predict(run, "--input", "after 77")
    assert (done.exit_code, done.stdout) == (0, "yes\n")
    answer = json.loads(predict(run, "--input", "after 77", "--json").stdout)
    assert answer["input"] == "after 77"
    assert answer["output"] == "yes"
    assert sum(answer["label_probabilities"].values()) == pytest.approx(1)
    assert answer["label_probabilities"]["yes"] > 0.5
    assert f"yes  {answer['label_probabilities']['yes']:.4f}" in done.stderr


def test_a_file_is_answered_row_by_row_and_gone_on_with(run, tmp_path):
    inputs = tmp_path / "inputs.jsonl"
    lengths = [f"after {i} {'and more ' * (i % 7)}".strip() for i in range(40)]
    inputs.write_text("".join(json.dumps({"text": text}) + "\n" for text in lengths))
    out = tmp_path / "out.jsonl"
    assert predict(run, "--inputs", str(inputs), "--output", str(out)).exit_code == 0
    found = documents(out)
    assert [row["input"] for row in found] == lengths
    assert [row["row"] for row in found] == list(range(1, 41))
    # Alone and among others, a text gets the same probabilities.
    alone = json.loads(predict(run, "--input", lengths[13], "--json").stdout)
    assert found[13]["label_probabilities"] == pytest.approx(alone["label_probabilities"], abs=1e-6)

    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:7]) + lines[7][:20])  # as a killed process leaves it
    assert predict(run, "--inputs", str(inputs), "--output", str(out)).exit_code == 0
    again = documents(out)
    assert [row["output"] for row in again] == [row["output"] for row in found]
    assert [row["row"] for row in again] == list(range(1, 41))


def test_columns_are_those_of_the_run(tmp_path):
    source = tmp_path / "rows.jsonl"
    made = [{"first": "after", "second": str(i), "gold": "ny"[i % 2]} for i in range(30)]
    source.write_text("".join(json.dumps(row) + "\n" for row in made))
    columns = {"premise": "first", "hypothesis": "second", "label": "gold"}
    config = tiny.config(
        tmp_path,
        data={"train": [{"path": str(source), "columns": columns}], "held_out": 0.0},
        head={"task": "entailment"},
        train={"epochs": 1},
    )
    run = train(config, QUIET)
    inputs, out = tmp_path / "inputs.csv", tmp_path / "out.jsonl"
    inputs.write_text("first,second\nafter,1\nafter,2\n")
    assert predict(run, "--inputs", str(inputs), "--output", str(out)).exit_code == 0
    assert documents(out)[1]["input"] == {"premise": "after", "hypothesis": "2"}
    one = predict(run, "--json", "--input", '{"premise": "after", "hypothesis": "2"}')
    assert json.loads(one.stdout)["output"] == documents(out)[1]["output"]
    assert "premise and hypothesis" in predict(run, "--input", "after 2").stderr


def test_regression_learns_numbers_whatever_they_are_counted_in(tmp_path):
    source = tmp_path / "rows.jsonl"
    made = [
        {"text": f"after {i} " + "more " * (i % 8), "label": 5000.0 + 100 * (i % 8)}
        for i in range(96)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in made))
    config = tiny.config(
        tmp_path,
        data={"train": str(source), "held_out": 0.2},
        head={"task": "classification", "problem_type": "regression"},
        train={"epochs": 15, "save_every": 1000},
    )
    run = train(config, QUIET)
    result = json.loads((run / "result.json").read_text())
    assert result["eval_loss"] < 0.2
    assert "eval_accuracy" not in result
    score = json.loads(predict(run, "--json", "--input", "after 200 more more").stdout)["score"]
    assert score == pytest.approx(5200, abs=150)
    measured = evaluate(str(run), str(run), "", 0, 1, lambda *_: None).sets["held_out"]
    assert measured.figures.keys() == {"mse", "pearson", "spearman"}
    assert measured.figures["mse"] == pytest.approx(result["eval_mse"], rel=1e-3)
    assert measured.figures["pearson"] > 0.8
    first = measured.document()["predictions"][0]
    assert first.keys() == {"label", "score"}
    assert open_predictor(str(run)).head.spec.scale is not None
    source.write_text('{"text": "a", "label": "many"}\n{"text": "b", "label": 2}\n')
    head = {"task": "classification", "problem_type": "regression"}
    with pytest.raises(ConfigError, match=r"line 1: label is 'many'; expected a number"):
        train(tiny.config(tmp_path, output="-", data={"train": str(source)}, head=head), QUIET)
    with pytest.raises(ConfigError, match=r"regression has no meaning with head\.labels"):
        train(
            tiny.config(
                tmp_path, output="-", data={"train": str(source)}, head={**head, "labels": ["a"]}
            ),
            QUIET,
        )


def test_the_figures_of_regression_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    spec = HeadSpec("classification", (), "\n", (0.0, 1.0))
    numbers, golds = [0.1, 2.0, 2.0, -1.0, 5.0, 2.0], [0.0, 3.0, 1.0, 1.0, 4.0, 2.5]
    examples = [HeadExample(((0,),), gold, str(i)) for i, gold in enumerate(golds)]
    found = head_figures(spec, [[number] for number in numbers], examples)
    assert found["pearson"] == pytest.approx(stats.pearsonr(numbers, golds).statistic)
    assert found["spearman"] == pytest.approx(stats.spearmanr(numbers, golds).statistic)
    errors = [(a - b) ** 2 for a, b in zip(numbers, golds, strict=True)]
    assert found["mse"] == pytest.approx(sum(errors) / len(errors))
    constant = head_figures(spec, [[1.0]] * 6, examples)
    assert constant["pearson"] == constant["spearman"] == 0.0
