"""The tour is walked: every command of chapters 1 to 5 and 8, with the files that it has one write.

Invariant: each command has a function here that asserts what the tour promises of it, not how the
bundled model of today happens to word it.
"""

import itertools
import json
import re
from pathlib import Path

import pytest
from tour_walk import TOUR, Outcomes, Said, Scene, Walk, commands_in, walk_chapters
from tui_driver import Driver

from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.screens.library import LibraryScreen

PROMPTS = TOUR.parents[2] / "prompts"
OUTCOMES = Outcomes()
after = OUTCOMES.after


# 1. A GPT completes text

GIRL = 'chatapp complete "The little girl went into the garden, and there she saw"'


@after('chatapp complete "The capital of France is" --temperature 0 --max-tokens 2')
def _it_knows_some_facts(said: Said, walk: Walk) -> None:
    assert said.out.split()[0].strip(".,") == "Paris"


@after(f"{GIRL} --seed 1 --max-tokens 60", f"{GIRL} --seed 2 --max-tokens 60")
def _a_story_sounds_like_one(said: Said, walk: Walk) -> None:
    words = re.findall(r"[a-z']+", said.out.lower())
    assert len(words) > 20
    assert len(set("a and he her him she the they to was".split()) & set(words)) > 3
    assert not re.search(r"=>|->|\||^\w*:", said.out, re.MULTILINE), "debris of other texts"
    assert said.out not in [earlier.out for earlier in walk.values()]


def bits(said: Said) -> float:
    return float(re.search(r"Next token\s+([\d.]+) bits", said.out)[1])  # type: ignore[index]


def kept(said: Said) -> int:
    return int(re.search(r"([\d,]+)\s+tokens?\s+left", said.out)[1].replace(",", ""))  # type: ignore[index]


CAPITAL = 'chatapp inspect "The capital of France is" --next'
THE = 'chatapp inspect "The little girl went into the" --next'


@after(CAPITAL)
def _the_likeliest_is_the_one_that_came(said: Said, walk: Walk) -> None:
    assert re.search(r"^ 1 .*│ Paris│", said.out, re.MULTILINE)


@after(THE)
def _it_is_less_sure_of_a_story(said: Said, walk: Walk) -> None:
    assert bits(said) > 2 + bits(walk[CAPITAL])
    assert (round(2 ** bits(walk[CAPITAL])), round(2 ** bits(said))) == (14, 134)


@after(f"{THE} --top-p 0.5")
def _fewer_tokens_are_left(said: Said, walk: Walk) -> None:
    assert bits(said) == bits(walk[THE])
    assert kept(said) < kept(walk[THE])


@after(
    'chatapp inspect "The manager hired John because he has extensive experience"'
    " --attention --token 7"
)
def _token_7_is_he(said: Said, walk: Walk) -> None:
    assert "What token 7 │ he│ attends to" in said.out


@after("chatapp models info bundled")
def _the_parameters_are_those_of_the_formula(said: Said, walk: Walk) -> None:
    counted, formula = (
        int(re.search(rf"([\d,]+) {words}", said.out)[1].replace(",", ""))  # type: ignore[index]
        for words in ("counted", "by N = ")
    )
    layers, width = (
        int(re.search(rf"{re.escape(name)} +([\d,]+)", said.out)[1].replace(",", ""))  # type: ignore[index]
        for name in ("layers (L)", "hidden size (H)")
    )
    assert counted == formula + 4 * layers * width


# 2. A chat is one text


@after('chatapp complete "Q: What is the capital of France?\nA:" --seed 1 --max-tokens 40')
def _it_asks_the_next_question_by_itself(said: Said, walk: Walk) -> None:
    answer, _, rest = said.out.partition("\n")
    assert "Paris" in answer
    assert re.search(r"^Q: .*\?$", rest, re.MULTILINE)


FRANCE = 'chatapp ask "What is the capital of France?" --temperature 0'


@after(FRANCE)
def _it_answers(said: Said, walk: Walk) -> None:
    assert "Paris" in said.out


@after('chatapp complete "User: What is the capital of France?\nAssistant:" --temperature 0')
def _a_text_in_the_template_says_the_same(said: Said, walk: Walk) -> None:
    assert said.out.strip() == walk[FRANCE].out.strip()


@after('chatapp ask "What is my name?" --temperature 0')
def _it_cannot_know(said: Said, walk: Walk) -> None:
    assert "Clara" not in said.out


@after(
    'chatapp complete "User: My name is Clara.\nAssistant: Hello Clara!\n'
    'User: What is my name?\nAssistant:" --temperature 0'
)
def _it_reads_the_name_in_the_text(said: Said, walk: Walk) -> None:
    assert "Clara" in said.out


async def first_chat(driver: Driver) -> None:
    await driver.press("enter")  # the first thing to try
    await driver.until(lambda: len(driver.texts) == 2)
    await driver.idle()
    reply = driver.texts[1]
    assert reply.strip()
    await driver.press("f3", "1")
    await driver.until(lambda: "User:" in driver.screen_text)
    await driver.press("2")
    await driver.until(lambda: "entropy" in driver.screen_text)
    await driver.press("tab", "down", "enter")
    await driver.until(lambda: not driver.chat.query(Inspector))
    await driver.idle()
    assert "‹ 2/2 ›" in driver.screen_text
    assert driver.texts[1] != reply
    await driver.press("left")
    await driver.until(lambda: driver.texts[1] == reply)


# 3 and 4. Demonstrations, and the right ones

BIKE = 'chatapp run spam --input "My bike has a puncture, so I am walking to work this week."'


def ham(said: Said) -> float:
    return float(re.search(r"^ +ham +([\d.]+)", said.err, re.MULTILINE)[1])  # type: ignore[index]


@after(f"{BIKE} --shots 0 --show-prompt")
def _without_an_example_it_guesses(said: Said, walk: Walk) -> None:
    assert said.out.strip() in ("spam", "ham")
    assert said.err.count("Email: ") == 1


@after(f"{BIKE} --shots 4 --show-prompt")
def _with_four_it_is_surer_and_right(said: Said, walk: Walk) -> None:
    assert said.out.strip() == "ham"
    assert said.err.count("Email: ") == 5
    assert ham(said) > 0.9 > ham(walk[f"{BIKE} --shots 0 --show-prompt"])


def meaning_words(text: str) -> set[str]:
    """The words of a text that have more than four letters."""
    return set(re.findall(r"[a-z]{5,}", text.lower()))


@after(
    "chatapp eval spam --test mails.jsonl --shots 0,4 --select random,knn --seeds 3"
    " --report measured"
)
def _the_nearest_beat_random_ones_and_none(said: Said, walk: Walk) -> None:
    report = json.loads(Path("measured/report.json").read_text(encoding="utf-8"))
    accuracy = {row["selection"]: row for row in report["results"] if row["metric"] == "accuracy"}
    nearest = accuracy["knn"]
    assert nearest["mean"] > 0.15 + max(accuracy[name]["mean"] for name in ("random", "none"))
    assert nearest["vote"] >= nearest["mean"]  # "and it is as good"
    figures = [round(accuracy[name]["mean"], 3) for name in ("none", "random", "knn")]
    assert figures == [0.5, 0.417, 0.917]
    pool = map(json.loads, (PROMPTS / "spam.jsonl").read_text("utf-8").splitlines())
    mails = map(json.loads, Path("mails.jsonl").read_text("utf-8").splitlines())
    content = [[meaning_words(row["text"]) for row in rows] for rows in (pool, mails)]
    for shown, asked in itertools.product(*content):
        assert len(shown & asked) <= 2, "a near copy leaks its label"
    assert Path("measured/accuracy.png").is_file()
    assert "mean" in said.out
    assert "vote" in said.out


async def chat_with_a_prompt_file(driver: Driver) -> None:
    await driver.press("f5")
    await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen))
    await driver.until(lambda: "pirate" in driver.screen_text)
    await driver.press(*"spam", "enter")
    await driver.until(lambda: driver.app.screen is driver.chat)
    await driver.say("Shall we have lunch at noon tomorrow?")
    assert driver.texts[-1].strip() == "ham"


# 5. Documents and programs


@after('chatapp docs search "Why does the sea rise?" tides.md --limit 1')
def _the_passage_is_found(said: Said, walk: Walk) -> None:
    assert "The moon pulls the sea" in said.out
    assert "Rivers" not in said.out


COINS = "Tom has 8 boxes with 47 coins in each. How many coins does Tom have now?"


@after(f'chatapp ask "{COINS}" --temperature 0')
def _it_guesses(said: Said, walk: Walk) -> None:
    assert "<<8*47=" in said.out
    assert not said.err


@after(f'chatapp ask "{COINS}" --temperature 0 --tools calculator')
def _the_calculator_knows(said: Said, walk: Walk) -> None:
    assert "<<8*47=376>>" in said.out
    assert "calculator(expression=8*47): 376" in said.err


async def chat_with_documents_and_tools(driver: Driver) -> None:
    await driver.say("/docs tides.md")
    await driver.until(lambda: any("2 passages" in notice for notice in driver.notices))
    await driver.say("Why does the sea rise?")
    assert "tides.md" in driver.screen_text
    await driver.press("f3", "1")
    await driver.until(lambda: "The moon pulls the sea" in driver.screen_text)
    await driver.press("escape")
    await driver.until(lambda: not driver.chat.query(Inspector))
    await driver.say("/tools calculator")
    await driver.until(lambda: driver.chat.conversation.chat.tools)
    await driver.say(COINS)
    assert "▸ calculator(expression=8*47): 376" in driver.screen_text
    await driver.press("ctrl+up", "enter")
    assert "▾ calculator(expression=8*47)" in driver.screen_text
    await driver.press("f3", "1")
    await driver.until(lambda: "376>>" in driver.screen_text)


# 8. The head that copies

ZELBO = '"Anna saw a zelbo. Anna saw a z"'
COPY = f"chatapp complete {ZELBO} --temperature 0 --max-tokens 3"


@after(COPY, f"{COPY} --ablate 4.0")
def _it_copies_a_word_that_it_never_saw(said: Said, walk: Walk) -> None:
    assert said.out.startswith("elbo")


@after("chatapp inspect --heads")
def _the_head_is_found(said: Said, walk: Walk) -> None:
    rows = re.findall(r"^(\d+\.\d+) +([\d.]+) ", said.out, re.MULTILINE)
    assert rows[0][0] == "1.0"
    assert float(rows[0][1]) == pytest.approx(0.61, abs=0.05)


@after(f"chatapp inspect {ZELBO} --attention --layer 1 --head 0")
def _it_attends_to_what_came_after_the_same_token(said: Said, walk: Walk) -> None:
    assert re.search(r"mostly on │el│ 9\d", said.out)


@after(f"chatapp inspect {ZELBO} --answer el --ablate 1.0")
def _the_probability_goes_with_the_head(said: Said, walk: Walk) -> None:
    after, change = map(float, re.findall(r"without 1\.0 +(-[\d.]+) +(-[\d.]+)", said.out)[0])
    assert after == pytest.approx(-4.37, abs=0.1)
    assert after - change == pytest.approx(-0.15, abs=0.05)


@after(f"{COPY} --ablate 1.0")
def _copying_stops(said: Said, walk: Walk) -> None:
    assert "elb" not in said.out
    assert "without 1.0" in said.err


SCENES: dict[str, dict[str, Scene]] = {
    "2": {"chatapp": first_chat},
    "4": {"chatapp": chat_with_a_prompt_file},
    "5": {"chatapp": chat_with_documents_and_tools},
}
"""What is done in the chat that a command of a chapter opens."""


@pytest.mark.parametrize("chapter", "123458")
def test_every_step_ends_as_the_tour_says(
    chapter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    walk_chapters(chapter, OUTCOMES, SCENES.get(chapter, {}), monkeypatch, capsys)


def test_no_outcome_is_of_a_step_that_the_tour_has_not() -> None:
    assert commands_in("123458") == {*OUTCOMES, "chatapp"}
