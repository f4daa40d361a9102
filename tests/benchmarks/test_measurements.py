"""Every measurement is tried at tiny sizes; RESULTS.md holds no table that none of them writes."""

import math
import re
import sys
from pathlib import Path

import measure
import pytest
from measure import RESULTS, TABLES, Table, measurement, written
from shared_data import write_tiny_data


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CHATAPP_TINY_BENCHMARKS", "1")
    monkeypatch.setenv("SHARED_DATA", str(write_tiny_data(tmp_path / "data")))
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", [name for name in TABLES if name != "harness"])
def test_it_gives_a_table(name: str) -> None:
    if TABLES[name] == "screen" and sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminal")
    table = measurement(name)()
    assert table.rows
    assert table.count
    figures = re.findall(r"\d+(?:\.\d+)?", table.text())
    assert figures
    assert all(math.isfinite(float(figure)) for figure in figures)
    assert "nan" not in table.text()


def test_results_hold_what_was_measured_and_no_other_table() -> None:
    text = RESULTS.read_text("utf-8")
    for name in TABLES:
        block = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
        assert not block or f"measure.py {name}`: " in block, name
        text = text.replace(block, "")
    assert not re.search(r"^\|", text, re.MULTILINE)


def test_a_table_takes_the_place_of_the_one_before() -> None:
    text = "# A\n\n<!-- keys -->\nold\n<!-- end of keys -->\n\n## B\n"
    block = Table(("", "ms"), [("first", "1 ± 0")], "n = 1").text()
    assert written(text, "keys", block) == text.replace(
        "old", "| | ms |\n| --- | --- |\n| first | 1 ± 0 |"
    )
    with pytest.raises(ValueError, match="<!-- start -->"):
        written(text, "start", block)
    with pytest.raises(ValueError, match="2 cells"):
        Table(("a", "b"), [("1",)], "").text()


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["keyz"]) == 2
    assert "keyz: expected one of demonstrations" in capsys.readouterr().err
