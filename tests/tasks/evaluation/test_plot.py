"""The picture of an evaluation: every figure is in it, and nothing hides another."""

from dataclasses import replace

import pytest

from chatapp.tasks.evaluation.plot import picture, plot
from chatapp.tasks.evaluation.report import COLUMNS, Result

ONE = Result(
    task="living",
    style="text",
    instruction="on",
    shots=8,
    selection="knn",
    order="nearest-last",
    scoring="direct",
    metric="accuracy",
    mean=0.5,
    spread=None,
    interval=(0.4, 0.6),
    interval_of="wilson",
    n=100,
    seeds=1,
    **{column.field: 0.5 for column in COLUMNS if column.compute} | {"majority": 0.3, "vote": 0.7},
)
SELECTIONS = ("random", "balanced", "bm25", "knn:tfidf", "knn:minilm")
SCORINGS = ("direct", "calibrated", "channel")


def grid(*shots):
    return [
        replace(ONE, shots=k, selection=selection, scoring=scoring, metric=metric)
        for k in shots
        for selection in SELECTIONS
        for scoring in SCORINGS
        for metric in ("accuracy", "macro_f1")
    ]


def zero():
    none = replace(ONE, shots=0, selection="none", order="none", vote=None, mean=0.1)
    return [replace(none, scoring=scoring) for scoring in SCORINGS]


def points(axes):
    """How many means with an interval there are on the axes."""
    return sum(len(drawn.lines[0].get_xdata()) for drawn in axes.containers)


def legends_of(figure):
    return [legend for part in figure.subfigs for legend in part.legends]


def assert_nothing_is_hidden(figure):
    figure.draw_without_rendering()
    whole = figure.bbox
    for legend in legends_of(figure):
        box = legend.get_window_extent()
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
        assert not any(box.overlaps(axes.bbox) for axes in figure.axes)


def test_one_number_of_demonstrations_is_drawn_by_selection():
    figure = picture(grid(8))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == list(SELECTIONS)
    assert points(axes) == 15
    assert axes.get_xlabel() == "accuracy with 8 demonstrations"
    names = [text.get_text() for text in legends_of(figure)[0].get_texts()]
    assert names == [*SCORINGS, "vote of the nearest", "majority"]
    assert_nothing_is_hidden(figure)


def test_several_numbers_are_drawn_as_curves_from_zero_on():
    figure = picture(zero() + grid(1, 4, 8))
    assert [axes.get_title() for axes in figure.axes] == list(SCORINGS)
    for axes in figure.axes:
        assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "1", "4", "8"]
        assert points(axes) == 5 * 4
        colours = {drawn.lines[0].get_color() for drawn in axes.containers}
        assert len(colours) == 5
        assert {drawn.lines[0].get_ydata()[0] for drawn in axes.containers} == {0.1}
    assert_nothing_is_hidden(figure)


def test_a_panel_without_a_first_point_has_the_same_axis():
    votes = [replace(ONE, shots=k, selection="vote", order="none", scoring="vote") for k in (1, 8)]
    figure = picture(zero() + grid(1, 8) + votes)
    assert figure.axes[-1].get_title() == "vote"
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_orders_are_told_apart():
    several = [replace(each, order="shuffled") for each in grid(1, 8)]
    figure = picture(grid(1, 8) + several)
    names = {text.get_text() for text in legends_of(figure)[0].get_texts()}
    assert {"bm25, nearest-last", "bm25, shuffled"} <= names
    styles = {drawn.lines[0].get_linestyle() for drawn in figure.axes[0].containers}
    assert len(styles) == 2
    (rows,) = picture(grid(8) + [each for each in several if each.shots == 8]).axes
    assert len(rows.get_yticklabels()) == 10


def test_different_votes_are_drawn_each_and_equal_ones_once():
    votes = dict(zip(SELECTIONS, (0.7, 0.7, 0.8, 0.6, 0.7), strict=True))
    found = [replace(each, vote=votes[each.selection]) for each in grid(1, 8)]
    names = [text.get_text() for text in legends_of(picture(found))[0].get_texts()]
    # What is drawn at random has no nearest of its own.
    assert [name for name in names if "vote" in name] == [
        "vote beside bm25",
        "vote beside knn:tfidf",
        "vote beside knn:minilm",
    ]
    names = [text.get_text() for text in legends_of(picture(grid(1, 8)))[0].get_texts()]
    assert [name for name in names if "vote" in name] == ["vote"]


def test_without_demonstrations_there_is_no_vote():
    (axes,) = (figure := picture(zero())).axes
    assert points(axes) == 3
    assert "vote of the nearest" not in {
        text.get_text() for text in legends_of(figure)[0].get_texts()
    }


@pytest.mark.filterwarnings("ignore:Glyph")
def test_tasks_of_foreign_names_in_one_png(tmp_path):
    odd = [replace(each, task="a $ b_ {^ 字\x1b[31m") for each in grid(1, 8)]
    narrow = [replace(ONE, task="third", interval=(-0.2, 1.2))]
    path = tmp_path / "accuracy.png"
    plot([*grid(8), *odd, *narrow], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    figure = picture([*grid(8), *odd, *narrow])
    assert len(figure.subfigs) == 3
    assert_nothing_is_hidden(figure)


def test_a_picture_over_the_parameters_of_models():
    sizes = {"small": 3_000_000, "tuned": 3_000_000, "large": 135_000_000}
    means = {"small": 0.1, "tuned": 0.2, "large": 0.3}
    results = [
        replace(ONE, model=name, parameters=count, shots=shots, mean=means[name] + shots / 10)
        for name, count in sizes.items()
        for shots in (1, 4)
    ]
    figure = picture(results)
    *by_model, over = figure.subfigs
    assert len(by_model) == len(sizes)
    (axes,) = over.axes
    assert axes.get_xscale() == "log"
    (above,) = axes.child_axes
    labels = [text.get_text() for text in above.get_xticklabels()]
    names = dict(zip(labels, above.get_xticks(), strict=True))
    assert list(names) == ["small", "tuned", "large"]
    assert (names["small"], names["large"]) == (3_000_000, 135_000_000)
    for shots, container in zip((1, 4), axes.containers, strict=True):
        drawn = container.lines[0].get_xydata().tolist()
        assert [y for _, y in drawn] == pytest.approx(
            [mean + shots / 10 for mean in means.values()]
        )
        assert [x for x, _ in drawn] == pytest.approx(list(names.values()), rel=0.05)
