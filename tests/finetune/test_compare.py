"""Runs side by side, from their logs."""

import json

import pytest
from rich.console import Console

from finetune.compare import RunComparison
from finetune.config.sections import ConfigError


def run(folder, seed, scores, *, layers=2, record="pretrain.json"):
    """A run's folder with a log: the steps 0, 1, 2, 4, … of these induction scores."""
    folder.mkdir()
    config = {"output": str(folder), "seed": seed, "shape": {"layers": layers}}
    (folder / record).write_text(json.dumps(config | {"digests": {"a.txt": "00"}}))
    rows = [{"step": 0, "seconds": 0.0, "induction": scores[0], "loss": 6.0}]
    for number, score in enumerate(scores[1:]):
        rows.append({"step": 2**number, "induction": score, "eval_loss": 5.0 - score})
    (folder / "losses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_seeds_are_one_line_with_their_spread(tmp_path):
    runs = [
        run(tmp_path / "a", 0, [0.0, 0.1, 0.4, 0.8]),
        run(tmp_path / "b", 1, [0.0, 0.1, 0.2, 0.6]),
        run(tmp_path / "deep", 0, [0.0, 0.1, 0.1, 0.2], layers=6),
    ]
    comparison = RunComparison.of(runs)
    assert sorted(len(group) for group in comparison.groups) == [1, 2]
    rows = cells(shown(comparison, tmp_path / "shown"))
    assert rows["induction"] == ["0.700 ± 0.141", "0.200"]
    assert rows["induction formed at step"] == ["3 ± 1", "never"]  # at steps 2 and 4


def shown(comparison, path):
    with path.open("w") as file:
        Console(file=file, width=140).print(comparison)
    return path.read_text()


def cells(text):
    """The rows of a table by their first cell."""
    lines = (line.strip("│").split("│") for line in text.splitlines() if line.startswith("│"))
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in lines}


def test_the_costs_are_in_the_table(tmp_path):
    runs = [run(tmp_path / name, seed, [0.0, 0.1]) for seed, name in enumerate("ab")]
    for number, folder in enumerate(runs):
        last = {"step": 2, "loss": 5.0, "tokens_per_second": 100 + 20 * number}
        with (folder / "losses.jsonl").open("a") as log:
            log.write(json.dumps(last | {"memory_bytes": 3 * 2**20}) + "\n")
        result = {"steps": 3, "parameters": 1240, "formula": "V·H + 40; V = 300, H = 4"}
        (folder / "result.json").write_text(json.dumps(result))
    comparison = RunComparison.of(runs)
    text = shown(comparison, tmp_path / "shown")
    rows = cells(text)
    assert rows["tokens/s"] == ["110 ± 14"]
    assert rows["peak memory, MiB"] == ["3 ± 0"]
    assert rows["parameters"] == ["1,240"]
    assert "1,240 parameters = V·H + 40; V = 300, H = 4" in text
    assert comparison.document()["runs"][0]["parameters"] == 1240


def test_a_masked_loss_has_a_row_of_its_own(tmp_path):
    runs = [run(tmp_path / name, 0, [0.0, 0.1]) for name in ("architecture=gpt2", "bert")]
    record = json.loads((runs[1] / "pretrain.json").read_text())
    record["shape"]["architecture"] = "bert"
    (runs[1] / "pretrain.json").write_text(json.dumps(record))
    text = shown(RunComparison.of(runs), tmp_path / "shown")
    rows = cells(text)
    assert sorted(rows["held-out loss"]) == ["", "4.900"]
    assert rows["held-out masked loss"] == rows["held-out loss"][::-1]
    assert "does not compare with a loss" in text
    assert "held-out masked loss\n" in text  # its own curve


def test_the_document_has_every_point(tmp_path):
    comparison = RunComparison.of([run(tmp_path / "a", 0, [0.0, 0.1, 0.4])])
    (one,) = comparison.document()["runs"]
    assert one["curves"]["induction"] == [[0, 0.0], [1, 0.1], [2, 0.4]]
    assert one["induction_formed"] == 2


@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_the_plot_is_a_picture(tmp_path, name):
    pytest.importorskip("matplotlib")
    runs = [run(tmp_path / "a", 0, [0.0, 0.4]), run(tmp_path / "b", 1, [0.0, 0.5])]
    RunComparison.of(runs).save_plot(tmp_path / name)
    head = (tmp_path / name).read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in head


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        RunComparison.of([tmp_path])
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf"):
        RunComparison.of([run(tmp_path / "a", 0, [0.0, 0.4])]).save_plot(tmp_path / "curves.gif")


WRONG = ["[1]", "{}", '{"step": "a"}', '{"step": null}', '{"step": [1]}', '{"step": NaN}']


@pytest.mark.parametrize("row", [*WRONG, f'{{"step": {10**400}}}'])
def test_a_damaged_log_is_named_with_its_line(tmp_path, row):
    folder = run(tmp_path / "a", 0, [0.0])
    with (folder / "losses.jsonl").open("a") as log:
        log.write(row + "\n")
    with pytest.raises(ConfigError, match="line 2: is not a row of a run's log"):
        RunComparison.of([folder])


def test_a_value_of_a_log_that_is_no_number_is_left_out(tmp_path):
    folder = run(tmp_path / "a", 0, [0.0])
    with (folder / "losses.jsonl").open("a") as log:
        log.write('{"step": 2, "loss": "low", "induction": {"a": 1}}\n')
        log.write(f'{{"step": 3, "loss": NaN, "memory_bytes": {10**400}}}\n')
    record = json.loads((folder / "pretrain.json").read_text())
    record |= {"objective": "x", "shape": ["bert"]}
    (folder / "pretrain.json").write_text(json.dumps(record))
    ((course,),) = RunComparison.of([folder]).groups
    assert course.curves["loss"] == [(0, 6.0)]
