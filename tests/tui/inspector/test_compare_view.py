"""The tab Compare of the inspector, and the token that all tabs share."""

from inspector_driver import SETTINGS, go_to, text_of, words

from chatapp.lab.views.patch_view import compare
from chatapp.tui.inspector.head_tabs import AttentionView, WhyView
from chatapp.tui.inspector.patching_tab import CompareView
from chatapp.tui.inspector.token_choice import HeatMap
from chatapp.tui.widgets.dialog import Field


async def test_it_patches_between_the_text_and_another(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "7")
        view = driver.chat.query_one(CompareView)
        assert "Enter writes another token" in words(driver, "compare-detail")
        assert "1 ← → choose a token" in driver.screen_text
        assert not view.query_one(HeatMap).display
        look, place = view._look, 2
        clean = list(look.tokens.ids[: look.start])
        other = next(i for i in range(40, 90) if i != clean[place])
        await go_to(driver, text_of(driver, CompareView), place)
        await driver.press("enter")
        assert view.query_one(Field).has_focus
        view._replace(place, other)
        await driver.rest()
        corrupt = [*clean[:place], other, *clean[place + 1 :]]
        expected = compare(gpt2, clean, corrupt)
        assert expected.reading in words(driver, "compare-detail")
        assert view.query_one(HeatMap).display
        assert view.query_one(HeatMap).map.values == expected.result.grids[1].values
        rows = [row for row in words(driver, "compare-table").splitlines() if "differs" in row]
        assert [int(row.split()[0]) for row in rows] == [place]
        drawn = words(driver, "compare-table")
        assert "Residual stream before each layer" in drawn
        assert "Heads, at all tokens" not in drawn, "the map below shows them"
        text_of(driver, CompareView).focus()
        await driver.press_and_rest("d")
        assert "into the clean prompt" in words(driver, "compare-detail")
        await driver.press_and_rest("backspace")
        assert "Enter writes another token" in words(driver, "compare-detail")
        await driver.press_and_rest("v")
        assert view._view is None


async def test_the_chosen_token_is_shared_by_the_tabs(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "3")
        await go_to(driver, text_of(driver, WhyView), 2)
        await driver.press_and_rest("4")
        assert text_of(driver, AttentionView).cursor == 2
        await driver.press_and_rest("right", "3")
        assert text_of(driver, WhyView).cursor == 3
