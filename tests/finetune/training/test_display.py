"""The display: curves that show the numbers, and text that stays text."""

import math

import pytest
from rich.console import Console

from finetune.training.display import RunView, draw_curves, duration, line, memory, render


def dots(text):
    """(row, column) of every character that holds a dot of a curve."""
    return [
        (row, column)
        for row, content in enumerate(text.splitlines())
        for column, character in enumerate(content)
        if 0x2800 < ord(character) <= 0x28FF
    ]


def shown(view, width=60, height=40):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(view, width, height))
    return console.export_text()


def test_a_falling_curve_falls():
    points = [(step, 10 - step / 10) for step in range(1, 100)]
    text = draw_curves({"L2": points}, 50, 6).plain
    found = dots(text)
    tops = [
        min(row for row, at in found if at == column) for column in sorted({c for _, c in found})
    ]
    assert tops == sorted(tops)
    assert (tops[0], tops[-1]) == (0, 5)
    assert text.splitlines()[0].startswith("9.")
    assert text.splitlines()[5].startswith("0.10")
    assert "● L2  steps 1 to 99" in text


def test_few_points_are_joined_and_one_outlier_does_not_flatten_the_rest():
    few = dots(draw_curves({"held-out": [(1, 2.0), (50, 1.0)]}, 40, 4).plain)
    assert len({column for _, column in few}) > 30
    noisy = [(1, 900.0), *((step, 2 + math.sin(step)) for step in range(2, 200))]
    rows = {row for row, _ in dots(draw_curves({"L2": noisy}, 60, 8).plain)}
    assert len(rows) == 8


@pytest.mark.parametrize(
    "points", [[], [(1, 2.0)], [(1, 2.0), (2, 2.0)], [(1, math.nan), (2, math.inf), (3, 1.0)]]
)
def test_little_or_strange_data_draws_something(points):
    assert isinstance(draw_curves({"L2": points}, 30, 4).plain, str)
    assert "step" in line(RunView(step=1, steps=2, curves={"L2": points}))


def test_the_panel_holds_every_figure_and_no_markup_is_obeyed():
    view = RunView(
        title="[red]bundled[/red] → run",
        step=3,
        steps=10,
        seconds_left=70,
        figures={"L3": "2.500", "held-out": "2.400", "tokens/s": "1,234"},
        curves={"L2": [(1, 3.0), (2, 2.0)]},
        samples=[("What [bold]is[/bold]?", "A\x1b[31mreply\nin two lines")],
        sampled_at=2,
    )
    text = shown(view)
    for part in ("[red]bundled[/red]", "3/10", "1:10 left", "2.500", "1,234", "[bold]is[/bold]"):
        assert part in text
    assert "A␛[31mreply in two lines" in text
    assert "\x1b[31mreply" not in text
    assert all(len(each) <= 60 for each in text.splitlines())
    assert line(view) == "step 3/10  L3 2.500  held-out 2.400  tokens/s 1,234  1:10 left"


def test_units():
    assert [duration(s) for s in (9.4, 309, 3909)] == ["0:09", "5:09", "1:05:09"]
    assert memory(3 * 2**30) == "3.00 GiB"
    assert memory(5 * 2**20) == "5 MiB"
