"""The inspector's tab of heads: scores, names, the texts of one head, and how measuring ends."""

import threading

import numpy as np
import pytest
from inspector_driver import SETTINGS, words

from chatapp.lab import heads as lab
from chatapp.lab.views.head_views import MEASURES, HeadTexts, score_heads
from chatapp.tui.inspector.head_tabs import HeadsView
from chatapp.tui.inspector.token_choice import HeatMap

TEXTS = ["The quick brown fox jumps.", "A naïve café owner, a naïve café owner."]


@pytest.fixture(autouse=True)
def few_texts(monkeypatch, tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "sample.txt"
    path.write_text("\n\n".join(TEXTS))
    monkeypatch.setattr(lab.sample_texts, "__defaults__", (path,))


async def test_scores_are_those_of_the_lab(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "5")
        await driver.until(lambda: "has the largest" in words(driver, "heads-detail"))
        scores = score_heads(gpt2, TEXTS)
        heat = driver.chat.query_one(HeadsView).query_one(HeatMap)
        shown = np.array(heat.map.values)
        assert np.allclose(shown, scores.values["induction"].clip(0, 1), atol=1e-5)
        assert heat.cell == scores.order[0]
        detail = words(driver, "heads-detail")
        assert scores.reading in detail
        assert MEASURES["induction"].formula in detail
        assert MEASURES["induction"].source in detail

        await driver.press_and_rest("m")
        name = list(MEASURES)[list(MEASURES).index("induction") + 1]
        await driver.until(lambda: MEASURES[name].formula in words(driver, "heads-detail"))
        await driver.press_and_rest("M")
        heat.focus()
        await driver.press_and_rest("up" if heat.cell[0] else "down")
        assert heat.cell is not None
        layer, head = heat.cell
        await driver.until(lambda: f"\n{layer}.{head}" in words(driver, "heads-detail"))

        await driver.press_and_rest("enter")
        found = HeadTexts(layer, head, lab.texts_of_head(gpt2, layer, head, TEXTS))
        await driver.until(lambda: found.reading in words(driver, "heads-texts"))
        text = words(driver, "heads-texts")
        for row in found.rows:
            assert f"{row.strength:.2f}" in text


async def test_measuring_stops_and_begins_again(open_app, gpt2, monkeypatch):
    may_go_on, has_begun = threading.Event(), threading.Event()
    add = lab.add_random

    def wait(*arguments):
        has_begun.set()
        may_go_on.wait(60)
        add(*arguments)

    monkeypatch.setattr(lab, "add_random", wait)
    try:
        async with open_app(gpt2, settings=SETTINGS) as driver:
            await driver.say("he has it")
            await driver.press_and_rest("f3")
            await driver.press("5")
            await driver.until(has_begun.is_set)
            await driver.until(lambda: "Measuring heads" in words(driver, "heads-detail"))
            await driver.press("escape")
            await driver.until(lambda: "Stopped" in words(driver, "heads-detail"))
            may_go_on.set()
            await driver.rest()
            assert "Stopped" in words(driver, "heads-detail")
            view = driver.chat.query_one(HeadsView)
            assert view._scores is None
            await driver.press_and_rest("x", "5")
            await driver.until(lambda: "has the largest" in words(driver, "heads-detail"))
    finally:
        may_go_on.set()
