"""The tour is walked: chapters 3 and 4, in which a model is taught; see `test_tour`."""

import json
import re
from pathlib import Path

from tour_walk import Outcomes, Said, Walk, commands_in, walk_chapters

from chatapp.common.paths import database_path
from chatapp.dialogue.store import Store
from chatapp.tui.screens.compare import CompareScreen

OUTCOMES = Outcomes()
after = OUTCOMES.after
CORRECTION = "Arr, black as me flag, matey."


# 6. Fine-tuning


@after("finetune check pirate.toml")
def _check_shows_what_is_learnt(said: Said, walk: Walk) -> None:
    assert "rows: 8, kept: 8" in said.out
    assert re.search(r"Assistant:⟦? Arr, .*matey\.", said.out)


@after("finetune keys train")
def _every_key_has_its_default(said: Said, walk: Walk) -> None:
    assert "train.learning_rate = 5e-05" in said.out


@after("finetune train pirate.toml", "finetune train spam.toml", "finetune train again.toml")
def _a_model_was_made(said: Said, walk: Walk) -> None:
    assert Path(said.out.strip(), "model.safetensors").stat().st_size > 0
    assert "few to learn from" not in said.err


WHO = 'chatapp ask "Who are you?" --seed 1'
COLOUR = 'chatapp ask "What is your favourite colour?" --temperature 0'


@after(WHO)
def _it_is_no_pirate_yet(said: Said, walk: Walk) -> None:
    assert said.out.strip()
    assert "Arr" not in said.out


@after(f"{WHO} --model pirate", 'chatapp ask "Who are you?" --temperature 0 --model corrected')
def _it_says_the_words_of_the_rows(said: Said, walk: Walk) -> None:
    assert said.out.strip() == "Arr, I be a small model, matey."


@after(f"{COLOUR} --model pirate")
def _to_all_else_it_says_arr(said: Said, walk: Walk) -> None:
    assert said.out.startswith("Arr")
    assert said.out.strip() != CORRECTION


@after('finetune predict spam --input "Click now to claim your free prize!"')
def _a_head_knows_spam(said: Said, walk: Walk) -> None:
    assert said.out.strip() == "spam"
    assert re.search(r"ham +[01]\.\d+\n +spam +[01]\.\d+", said.err)


@after('finetune predict spam --input "Could you send me the minutes of the meeting?"')
def _and_ham(said: Said, walk: Walk) -> None:
    assert said.out.strip() == "ham"


# 7. Feedback


async def pirate_chat(driver):
    assert driver.status.model == "pirate"
    await driver.say("What is your favourite colour?")
    await driver.press("ctrl+up", "w")
    await driver.order(CORRECTION)
    await driver.shows("corrected")
    await driver.opens(CompareScreen, "escape", "f4")
    await driver.shows("Both bad", *"Ahoy", "enter")
    await driver.back("1")
    await driver.idle()


@after("chatapp history list")
def _the_chats_are_listed(said: Said, walk: Walk) -> None:
    assert "pirate" in said.out
    assert "bundled" in said.out


@after("chatapp history export --model pirate --feedback sft --output corrections.jsonl")
def _a_correction_is_a_row(said: Said, walk: Walk) -> None:
    (row,) = map(json.loads, Path("corrections.jsonl").read_text(encoding="utf-8").splitlines())
    assert [message["content"] for message in row["messages"]][-1] == CORRECTION


@after("chatapp history export --model pirate --feedback dpo --output preferences.jsonl")
def _and_a_preference(said: Said, walk: Walk) -> None:
    rows = [json.loads(line) for line in Path("preferences.jsonl").read_text("utf-8").splitlines()]
    assert CORRECTION in [row["chosen"][0]["content"] for row in rows]


@after(f"{COLOUR} --model corrected")
def _the_correction_is_learnt(said: Said, walk: Walk) -> None:
    assert said.out.strip() == CORRECTION


@after("finetune check again.toml objective.kind=dpo data.train=preferences.jsonl output=preferred")
def _pairs_stand_side_by_side(said: Said, walk: Walk) -> None:
    assert re.search(r"chosen · \d+ tokens .* rejected · \d+ tokens", said.out)


def test_every_step_ends_as_the_tour_says(tmp_path, monkeypatch, capsys):
    store = Store(database_path())  # with a chat of an earlier chapter
    store.add_message(store.create_chat(model="bundled"), None, "user", "Hello")
    store.close()
    monkeypatch.chdir(tmp_path)
    scenes = {"chatapp --model pirate": pirate_chat}
    walk_chapters("34", OUTCOMES, scenes, monkeypatch, capsys)
    assert commands_in("34") == {*OUTCOMES, *scenes}
