"""Talks of people and stories: what is filled in, what is kept out, what is cut."""

import gzip
import json
from pathlib import Path
from typing import Any

from finetune.bundled_model import stories

NAMES = ["Ida", "Leo"]


def packed(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


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
