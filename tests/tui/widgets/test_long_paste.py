"""A paste of 10,000 lines costs each line a few steps once, and the next key nothing more.

Counted in calls of Python functions, which do not depend on the machine or what it does beside.
"""

import sys

from fakes import ScriptedModel
from textual.events import Paste

LINES = 10_000


async def calls(work):
    """How many functions were called on this thread until `work` was done."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        await work
    finally:
        sys.setprofile(None)
    return count


async def cost_of(driver, key):
    """The calls that a key costs, without what a timer may add to one press or another."""
    return min([await calls(driver.press(key)) for _ in range(3)])


async def paste(driver, lines):
    text = "\n".join(f"line {number} of [b]this[/b] paste" for number in range(lines))
    driver.app.post_message(Paste(text))
    await driver.settle()


async def empty(driver):
    """Leave no draft, which the next start would give back."""
    driver.prompt.text = ""
    await driver.settle()
    driver.chat.controls.finish_draft(10)


async def test_the_keys_after_it_cost_what_they_cost_without_it(open_app):
    costs = {}
    for lines in (100, LINES):
        async with open_app() as driver:
            await driver.idle()
            await paste(driver, lines)
            assert driver.prompt.document.line_count == lines
            await driver.press("x", "left")  # what is done once is done
            keys = ("y", "backspace", "ctrl+j", "up", "left", "home", "end")
            costs[lines] = [await cost_of(driver, key) for key in keys]
            await empty(driver)
    for small, large in zip(costs[100], costs[LINES], strict=True):
        assert large < 1.2 * small, costs


async def test_each_line_costs_the_same(open_app):
    costs = []
    for lines in (1_000, LINES):
        async with open_app() as driver:
            await driver.idle()
            costs.append(await calls(paste(driver, lines)))
            await empty(driver)
    assert costs[1] < 10 * 1.2 * costs[0], costs
    assert costs[1] < 150 * LINES, costs


async def test_it_is_sent_and_shown_whole(open_app):
    model = ScriptedModel(["Read."], context=200_000)
    async with open_app(model) as driver:
        await paste(driver, LINES)
        await driver.press_and_rest("enter")
        assert driver.prompt.text == ""
        assert driver.texts[0].count("\n") == LINES - 1
        assert "line 9999 of [b]this[/b] paste" in driver.screen_text
        await driver.press("x")
        large = await cost_of(driver, "y")
    async with open_app(ScriptedModel(["Read."])) as driver:
        await paste(driver, 100)
        await driver.press_and_rest("enter")
        await driver.press("x")
        assert large < 1.2 * await cost_of(driver, "y")
