"""The tab Why of the inspector: shares, their sum, total effects, a head switched off."""

from inspector_driver import SETTINGS, go_to, text_of, words

from chatapp.lab.views.part_views import Why, ask
from chatapp.tui.inspector.head_tabs import WhyView
from chatapp.tui.inspector.token_choice import HeatMap


async def test_it_shows_what_the_lab_measures(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "3")
        view = driver.chat.query_one(WhyView)
        text = text_of(driver, WhyView)
        ids = view._look.tokens.ids
        for position in (text.cursor, 2):
            await go_to(driver, text, position)
            question = ask(gpt2, ids[: position + 1], ids[position + 1])
            expected = Why.of(question)
            assert expected.reading in words(driver, "why-detail")
            assert driver.chat.query_one(WhyView).query_one(HeatMap).map.values == expected.by_head
            part = expected.order[0]
            rows = [row.split() for row in words(driver, "why-parts").splitlines()]
            assert [part.name, f"{part.share:+.3f}"] in [row[:2] for row in rows]
        first = next(part for part in expected.order if part.effect is not None)
        assert f"{first.effect:+.3f}" in words(driver, "why-parts")
        await driver.press_and_rest("f1")
        assert "Elhage et al. 2021" in words(driver, "inspector-formula")


async def test_space_switches_a_head_off_and_on(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "3")
        heat = driver.chat.query_one(WhyView).query_one(HeatMap)
        await driver.press_and_rest("tab")
        assert heat.has_focus
        assert heat.cell is not None, "Space works at once"
        shares = [abs(share) for row in heat.map.values for share in row]
        assert abs(heat.map.values[heat.cell[0]][heat.cell[1]]) == max(shares)
        name = "{}.{}".format(*heat.cell)
        await driver.press_and_rest("space")
        assert driver.chat.conversation.chat.interventions.words == f"without {name}"
        assert driver.chat.widgets.status.changes == f"without {name}"
        assert abs(heat.map.values[heat.cell[0]][heat.cell[1]]) < 1e-5
        heat.focus()
        await driver.press_and_rest("space")
        assert not driver.chat.conversation.chat.interventions


async def test_a_model_on_a_server_has_no_parts(open_app):
    async with open_app(settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "3")
        assert words(driver, "why-detail")
        assert driver.chat.query_one(WhyView).query_one(HeatMap).map.values == []
