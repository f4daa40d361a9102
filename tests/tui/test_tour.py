"""The tour is walked: every command of chapters 1 and 2, with the files that it has one write.

Invariant: each command has a function here that asserts what the tour promises of it, not how the
bundled model of today happens to word it.
"""

import re

from tour_walk import Outcomes, Said, Walk, commands_in, walk_chapters

from chatapp.dialogue.lessons.lesson import NAMES
from chatapp.tui.inspector.panel import Inspector

OUTCOMES = Outcomes()
after = OUTCOMES.after


# 1. A first look inside; the lessons have tests of their own

LESSONS = {f"chatapp lesson {name}" for name in NAMES}
ZANFO = "Anna has a zanfo. Anna likes the z"


@after(f'chatapp complete "{ZANFO}" --temperature 0 --max-tokens 3')
def _it_copies_a_word_that_it_never_read(said: Said, walk: Walk) -> None:
    assert said.out.strip().removeprefix(ZANFO) == "anfo"


@after(f'chatapp inspect attention "{ZANFO}" --layer 4 --head 1')
def _the_head_looks_at_what_came_next(said: Said, walk: Walk) -> None:
    weights = dict(re.findall(r"(\d+) │.*?│ .*?<?([\d.]+)%$", said.out, re.MULTILINE))
    first = max(weights, key=lambda place: float(weights[place]))
    assert first == "5", "the token after the first z"
    assert float(weights[first]) > 90


# 2. Documents and programs


@after('chatapp docs search "Why does the sea rise?" tides.md --limit 1')
def _the_passage_is_found(said: Said, walk: Walk) -> None:
    assert "The moon pulls the sea" in said.out
    assert "Rivers" not in said.out


COINS = "Tom has 8 boxes with 47 coins in each. How many coins does Tom have now?"


@after(f'chatapp ask "{COINS}" --temperature 0')
def _it_guesses(said: Said, walk: Walk) -> None:
    assert "<<8*47=" in said.out
    assert not said.err


@after(f'chatapp ask "{COINS}" --temperature 0 --tools calculator --tool-choice own')
def _the_calculator_knows(said: Said, walk: Walk) -> None:
    assert "<<8*47=376>>" in said.out
    assert "calculator(expression=8*47): 376" in said.err


async def chat_with_documents_and_tools(driver):
    await driver.say("/docs tides.md")
    await driver.until(lambda: any("2 passages" in notice for notice in driver.notices))
    await driver.say("Why does the sea rise?")
    assert "tides.md" in driver.screen_text
    await driver.shows("The moon pulls the sea", "f3", "1")
    await driver.press("escape")
    await driver.until(lambda: not driver.chat.query(Inspector))
    await driver.say("/tools calculator")
    await driver.until(lambda: driver.chat.conversation.chat.tools)
    await driver.say(COINS)
    assert "▸ calculator(expression=8*47): 376" in driver.screen_text
    await driver.press("ctrl+up", "enter")
    assert "▾ calculator(expression=8*47)" in driver.screen_text


def test_every_step_ends_as_the_tour_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scenes = {"chatapp": chat_with_documents_and_tools}
    scenes |= dict.fromkeys(LESSONS)
    walk_chapters("12", OUTCOMES, scenes, monkeypatch, capsys)
    assert commands_in("12") == {*OUTCOMES, *scenes}
    assert commands_in("1") >= LESSONS
