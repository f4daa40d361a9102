"""Where a terminal has no colours, words and emphasis say what colours do elsewhere."""

import pytest
from chat_scenes import CHAT_SCENES
from inspector_scenes import INSPECTOR_SCENES
from scenes import played
from screen_scenes import SCREEN_SCENES

SCENES = CHAT_SCENES | SCREEN_SCENES | INSPECTOR_SCENES
PLAIN = ("first run", "two versions", "history", "parameters", "help", "prompts", "tokens", "steps")


@pytest.mark.parametrize("name", PLAIN)
async def test_without_colours(open_app, stage, monkeypatch, name):
    monkeypatch.setenv("NO_COLOR", "1")
    async with played(open_app, stage, SCENES[name]) as driver:
        SCENES[name].check(driver)
        styles = [style for strip in strips(driver) for _, style, _ in strip if style]
        colors = {color for style in styles for color in (style.color, style.bgcolor)}
        assert {color.is_default for color in colors if color} == {True}


async def test_how_likely_a_token_is_shows_without_colours(open_app, stage, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with played(open_app, stage, SCENES["tokens"]) as driver:
        drawn = {
            text.strip(): (bool(style.dim), bool(style.bold), bool(style.underline))
            for strip in strips(driver)
            for text, style, _ in strip
            if style
        }
        levels = [drawn[words] for words in ("under 1 %", "10 %", "50 %", "100 %")]
        assert len(set(levels)) == 4
        assert [drawn["salt"], drawn["body"]] == levels[:2]


def strips(driver):
    return driver.app.screen._compositor.render_strips()
