"""The pictures of the README can be taken anew."""

from pathlib import Path

import pytest
import screenshots
from glass import GlassModel

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("chat", "Assistant"),
        ("tokens", "entropy"),
        ("attention", "attends"),
        ("compare", "temperature"),
        ("prompts", "english_to_french"),
    ],
)
async def test_each_scene_plays(tmp_path: Path, name: str, word: str) -> None:
    path = await screenshots.take(name, tmp_path, GlassModel([" It is a scripted reply."]))
    assert word in path.read_text(encoding="utf-8")


def test_the_readme_shows_them_all() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(f"(.assets/{name}.svg)" in text for name in screenshots.SCENES)
    assert all((README.parent / ".assets" / f"{name}.svg").is_file() for name in screenshots.SCENES)
