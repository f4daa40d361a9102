"""Every measurement is tried at tiny sizes; RESULTS.md holds no table that none of them writes."""

import math
import re
import sys

import measure
import pytest
from measure import RESULTS, TABLES, Table, agree, divided, file_of, measurement, written
from shared_data import write_tiny_data


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("_CHATAPP_TINY_BENCHMARKS", "1")
    monkeypatch.setenv("SHARED_DATA", str(write_tiny_data(tmp_path / "data")))
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", [name for name in TABLES if name != "harness"])
def test_it_gives_a_table(name):
    if TABLES[name] == "screen" and sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminal")
    table = measurement(name)()
    assert table.rows
    assert table.count
    figures = re.findall(r"\d+(?:\.\d+)?", table.text())
    assert figures
    assert all(math.isfinite(float(figure)) for figure in figures)
    assert "nan" not in table.text()


def test_results_hold_what_was_measured_and_no_other_table():
    text = RESULTS.read_text("utf-8")
    for name in TABLES:
        _, block, _ = divided(file_of(name).read_text("utf-8"), name)
        assert not block or f"measure.py {name}`: " in block, name
        text = text.replace(block or "\0", "")
    assert not re.search(r"^\|", text, re.MULTILINE)


def test_compare_names_the_figures_that_are_not_within_the_spread(tmp_path, monkeypatch, capsys):
    block = measurement("demonstrations")().text()
    results = tmp_path / "RESULTS.md"
    marks = "<!-- demonstrations -->\n{}\n<!-- end of demonstrations -->\n"
    results.write_text(marks.format(block) + "<!-- keys -->\n<!-- end of keys -->\n")
    monkeypatch.setattr(measure, "RESULTS", results)
    assert measure.main(["compare", "demonstrations", "keys"]) == 0
    out = "demonstrations: 0 figures differ\nkeys: no table is written yet\n"
    assert capsys.readouterr().out == out
    line = next(line for line in block.splitlines() if "nearest" in line)
    *rest, figure, end = line.split("|")
    other = "|".join((*rest, " 200.0 ", end))
    results.write_text(marks.format(block.replace(line, f"{other}\n{other.replace('mo', 'mu')}")))
    assert measure.main(["compare", "demonstrations"]) == 1
    found = capsys.readouterr().out
    assert "demonstrations: 2 figures differ\n" in found
    assert f"nearest, 1: written 200.0, measured {figure.strip()}\n" in found
    assert "muvie reviews, bundled: nearest: is in one table alone" in found


@pytest.mark.parametrize(
    ("before", "now", "do"),
    [
        ("14.3 (11–19)", "18.9 (14–23)", True),
        ("14.3 (11–19)", "19.1 (15–24)", False),
        ("1.20 ± 0.05", "1.29", True),
        ("1.20 ± 0.05", "1.31", False),
        ("+7.7 (+3.2 to +12.3)", "−1.0 (−5.0 to +8.0)", True),
        ("–", "3 ms", False),
    ],
)
def test_figures_agree_within_a_spread(before, now, *, do):
    assert agree(before, now) == agree(now, before) == do


def test_a_table_takes_the_place_of_the_one_before():
    text = "# A\n\n<!-- keys -->\nold\n<!-- end of keys -->\n\n## B\n"
    block = Table(("", "ms"), [("first", "1 ± 0")], "n = 1").text()
    assert written(text, "keys", block) == text.replace(
        "old", "| | ms |\n| --- | --- |\n| first | 1 ± 0 |"
    )
    with pytest.raises(ValueError, match="<!-- start -->"):
        written(text, "start", block)
    with pytest.raises(ValueError, match="2 cells"):
        Table(("a", "b"), [("1",)], "").text()


def test_an_unknown_name_is_refused(capsys):
    assert measure.main(["keyz"]) == 2
    assert "keyz: expected one of demonstrations" in capsys.readouterr().err
