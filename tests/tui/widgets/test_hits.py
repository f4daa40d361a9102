"""A hit of the search is shown where it stands, however long what follows it is."""

from fakes import ScriptedModel


async def test_a_hit_stays_in_sight_above_a_long_reply(open_app):
    long = "\n".join(f"line {number}" for number in range(300))
    async with open_app(ScriptedModel(["Hello.", long])) as driver:
        await driver.say("Tell me a story")
        await driver.say("Tell me of the lighthouse")
        assert "lighthouse" not in driver.screen_text
        await driver.press("ctrl+o")
        await driver.shows("the lighthouse", *"lighthouse")
        await driver.settle()
        await driver.press("enter")
        await driver.until(lambda: "Search titles" not in driver.screen_text)
        await driver.settle()
        await driver.shows("Tell me of the lighthouse")
        assert "line 299" not in driver.screen_text
