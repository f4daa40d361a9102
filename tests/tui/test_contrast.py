"""Every text on every screen can be read, in every theme that is offered."""

from functools import cache

import pytest
from colour_blindness import PALETTES, VIEWERS, least_difference
from contrast_table import THEMES, colors_of, labels_of, texts_of
from glass import GlassModel
from textual.geometry import Region

from chatapp.common.shading import (
    LEGIBLE,
    contrast,
    ink_on,
    likelihood_color,
    signed_color,
    weight_color,
)
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.theme import PRESENTED, READABLE, readable

NO_TEXT = set(" ─━│█▏▎▍▌▋▊▉▐▕▔▁▂▃▄▅▆▇▖▗▘▝╭╮╰╯")
"""What lines, bars and boxes are drawn with; they say nothing that words do not."""


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_each_theme_is_made_readable(theme):
    before = colors_of(theme)
    after = readable(before)
    assert min(texts_of(after)).ratio >= READABLE
    assert min(labels_of(after)).ratio >= READABLE
    grounds = ("background", "surface", "panel")
    assert [after[ground] for ground in grounds] == [before[ground] for ground in grounds]


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_each_theme_can_be_presented(theme):
    after = readable(colors_of(theme), PRESENTED)
    bright = [pair for pair in texts_of(after) if not pair.ink.startswith("dim")]
    assert min(bright).ratio >= PRESENTED
    assert min(labels_of(after)).ratio >= PRESENTED
    assert after["text-muted"] == after["foreground"], "no grey captions"


@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("palette", PALETTES)
def test_colour_blind_viewers_distinguish_each_palette(palette, viewer):
    assert least_difference(PALETTES[palette], VIEWERS[viewer]) >= 10  # 2.3 is just visible


def test_the_simulation_shows_what_red_and_green_are_to_a_deuteranope():
    red_and_green = [(190, 70, 66), (120, 112, 66)]
    assert least_difference(red_and_green, VIEWERS["all cones"]) > 50
    assert least_difference(red_and_green, VIEWERS["deuteranopia"]) < 10


def test_contrast_is_that_of_wcag():
    assert contrast((255, 255, 255), (0, 0, 0)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)
    assert contrast((10, 20, 30), (10, 20, 30)) == 1


def test_shaded_tokens_can_be_read():
    for step in range(101):
        for color in (likelihood_color(step / 100), weight_color(step / 100)):
            assert contrast(ink_on(color), color) >= LEGIBLE, color
        color = signed_color(step / 50 - 1)
        assert contrast(ink_on(color), color) >= LEGIBLE, color
    for color in PALETTES["parts of a prompt"]:
        assert contrast(ink_on(color), color) >= LEGIBLE, color


contrast_of = cache(contrast)  # the same few pairs, over and over


def texts(driver):
    """Each piece of text in front, and its contrast with what it stands on."""
    screen = driver.app.screen
    front = screen.region
    for dialog in screen.query(".dialog"):
        front = dialog.region
    for y, strip in enumerate(screen._compositor.render_strips()):
        if not front.contains(front.x, y):
            continue
        row = strip.crop(front.x, front.right)
        for each in driver.app.get_line_filters():
            row = row.apply_filter(each, screen.background_colors[1])
        for text, style, _ in row:
            if set(text) <= NO_TEXT:
                continue
            yield text, contrast_of(style.color.triplet, style.bgcolor.triplet)


async def first_screen(driver):
    await driver.press("shift+tab")


async def a_message(driver):
    await driver.say("Hello")
    await driver.press("ctrl+up", "plus")
    driver.chat.widgets.show_problem("Something is wrong.")
    driver.chat.widgets.status.dropped = 2


async def a_command(driver):
    await driver.press(*"/")


def key(name, *more):
    async def pressed(driver):
        await driver.say("Hello")
        await driver.press(name, *more)
        await driver.idle()

    return pressed


async def compared(driver):
    await driver.shows("Enter sends it to both", *"Tea?", "f4")
    await driver.shows("Both bad", "enter")


def tab(number):
    async def opened(driver):
        await driver.say("Hello")
        await driver.press("f3", number)
        for _ in range(3):
            await driver.idle()
        assert driver.chat.query_one(Inspector).region != Region()

    return opened


SCENES = {
    "first screen": first_screen,
    "a message": a_message,
    "a command": a_command,
    "chats": key("ctrl+o"),
    "branches": key("ctrl+b"),
    "parameters": key("f2"),
    "prompts": key("f5"),
    "models": key("f8"),
    "help": key("f1"),
    "compare": compared,
    "prompt tab": tab("1"),
    "tokens tab": tab("2"),
    "why tab": tab("3"),
    "attention tab": tab("4"),
    "heads tab": tab("5"),
    "layers tab": tab("6"),
    "compare tab": tab("7"),
    "step tab": tab("8"),
}
MAIN = ("a message", "parameters", "tokens tab")
EXTREME = ("chatapp", "catppuccin-frappe", "atom-one-light")
"""Those with the least contrast of their own, for the other scenes: what a screen takes from a
theme is the same in all of them."""


@pytest.mark.parametrize("scene", SCENES)
async def test_every_text_on_a_screen_can_be_read(open_app, scene):
    async with open_app(GlassModel(["It is.", "So it was."]), size=(130, 40)) as driver:
        assert set(THEMES) == {
            name for name, theme in driver.app.available_themes.items() if not theme.ansi
        }
        await SCENES[scene](driver)
        poor = []
        for name in THEMES if scene in MAIN else EXTREME:
            driver.app.theme = name
            await driver.until(lambda: len(list(texts(driver))) > 3)
            shown = list(texts(driver))
            poor += [(name, text, round(ratio, 2)) for text, ratio in shown if ratio < READABLE]
        assert not poor


@pytest.mark.parametrize(
    "scene", ["a message", "prompt tab", "why tab", "attention tab", "step tab"]
)
async def test_a_presentation_has_strong_contrast(open_app, scene):
    async with open_app(GlassModel(["It is.", "So it was."]), size=(160, 45)) as driver:
        await SCENES[scene](driver)
        assert "^Q" in driver.screen_text
        await driver.press("f7")
        assert "^Q" not in driver.screen_text, "no row of keys"
        for name in EXTREME:
            driver.app.theme = name
            await driver.until(lambda: len(list(texts(driver))) > 3)
            poor = [(text, round(ratio, 2)) for text, ratio in texts(driver) if ratio < PRESENTED]
            assert not poor, name
        driver.app.theme = EXTREME[0]
        await driver.press("f7")
        assert "^Q" in driver.screen_text
