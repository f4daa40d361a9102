"""Talks of people and stories: what is filled in, what is kept out, what is cut."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from finetune.bundled_model import stories

NAMES = ["Ida", "Leo"]


def packed(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.mark.parametrize(
    ("text", "speaker", "filled"),
    [
        ("Hi, I'm [user 1's name].", 0, "Hi, I'm Ida."),
        ("Hello, [User 1 Name]! My name is (name).", 1, "Hello, Ida! My name is Leo."),
        ("Nice to meet you, [name].", 0, "Nice to meet you, Leo."),
        ("You are (username)?", 1, "You are Ida?"),
        ("I live in [city].", 0, "I live in [city]."),
    ],
)
def test_places_for_names_are_filled(text: str, speaker: int, filled: str) -> None:
    assert stories.with_names(text, NAMES, speaker) == filled


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("i think i'm late. really? yes", "I think I'm late. Really? Yes."),
        ("It costs 3.5 or so!", "It costs 3.5 or so!"),
        ("I own an ipod, e.g. a nano", "I own an ipod, e.g. A nano."),
        ("", ""),
    ],
)
def test_what_was_typed_in_haste_is_written_out(typed: str, written: str) -> None:
    assert stories.written_out(typed) == written


def test_a_talk_is_cut_before_a_place_that_nothing_is_known_for(tmp_path: Path) -> None:
    turns = ["hi, i'm [user 1]", "Hello, [user 1]!", "I am from [country].", "So am I."]
    path = packed(tmp_path / "a.gz", [{"turns": [[n % 2 + 1, t] for n, t in enumerate(turns)]}])
    kept_out = stories.is_first_message_kept_out(turns[0])
    (row,) = stories.talks(path, ["Ida", "Leo"], seed=0, kept_out=kept_out)
    contents = [message["content"] for message in row["messages"]]
    assert contents in (["Hi, I'm Ida.", "Hello, Ida!"], ["Hi, I'm Leo.", "Hello, Leo!"])
    assert not list(stories.talks(path, NAMES, seed=0, kept_out=not kept_out))


def test_talks_with_the_same_first_message_are_on_the_same_side(tmp_path: Path) -> None:
    rows = [
        {"turns": [form.format(number), "Yes."]}
        for number in range(200)
        for form in ("Do you like {}?", "do you like {}")
    ]
    path = packed(tmp_path / "a.gz", rows)
    asked = {
        kept_out: [
            row["messages"][0]["content"].rstrip("?.")
            for row in stories.talks(path, NAMES, seed=0, kept_out=kept_out)
        ]
        for kept_out in (True, False)
    }
    assert len(asked[True]) + len(asked[False]) == 400
    assert not set(asked[True]) & set(asked[False])
    assert 40 <= len(asked[True]) <= 80


def test_stories_are_cut_at_sentences_and_kept_out_by_their_title(tmp_path: Path) -> None:
    text = "A fox ran over a hill and far away. " * 200
    rows = [{"title": f"Fox {number}", "text": text} for number in range(60)]
    path = packed(tmp_path / "a.gz", rows)
    used, kept = (list(stories.stories(path, kept_out=side)) for side in (False, True))
    assert len(used) + len(kept) == 60 * 3
    assert 0 < len(kept) < 30
    for row in used:
        assert row["text"].startswith("A fox")
        assert row["text"].endswith("away.")
        assert len(row["text"]) < 3200
