"""The pictures of the README can be taken anew, and show what the program showed."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import screenshots
from glass import GlassModel
from moving_picture import Frame, assemble
from textual.app import App
from textual.widgets import Static

README = Path(__file__).parents[2] / "README.md"
LARGEST = 1_500_000
"""Bytes that a picture of a page which many open may have."""


class Countdown(App[None]):
    """Shows a number, in another colour each."""

    def compose(self):
        yield Static("still")
        yield Static(id="number")

    def show(self, number):
        shown = self.query_one("#number", Static)
        shown.update(f"number {number}")
        shown.styles.background = ("red", "green", "blue")[number]


async def screens():
    app = Countdown()
    exported = []
    async with app.run_test(size=(20, 4)) as pilot:
        for number in (2, 1, 0):
            app.show(number)
            await pilot.pause()
            exported.append(app.export_screenshot(title="counting"))
    return exported


def shown_in(picture, frame=None):
    """The words seen in a frame of a moving picture, or where nothing moves."""
    words = []
    for group in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}g"):
        name = group.get("class", "")
        if span := re.fullmatch(r"s(\d+)-(\d+)", name):
            if frame is None:
                is_seen = f".{name} {{ visibility: visible" in picture
            else:
                is_seen = int(span[1]) <= frame < int(span[2])
            if not is_seen:
                continue
        words += [text.text or "" for text in group if text.tag.endswith("text")]
    return " ".join(words).replace("\N{NO-BREAK SPACE}", " ")


async def test_each_screen_is_seen_in_its_time_and_the_last_without_movement():
    picture = assemble([Frame(svg, 0.5) for svg in await screens()])
    for frame, number in enumerate((2, 1, 0)):
        assert re.findall(r"number \d|still", shown_in(picture, frame)) == [
            "still",
            f"number {number}",
        ]
    assert re.findall(r"number \d", shown_in(picture)) == ["number 0"]
    assert picture.count(">still<") == 1
    steps = re.findall(r"@keyframes s1-2 \{ (.*) \}", picture)
    assert steps[0].split(" } ") == [
        "0% { visibility: hidden",
        "33.33% { visibility: visible",
        "66.67% { visibility: hidden }",
    ]
    assert "1.50s step-end infinite" in picture


async def test_one_screen_stands_still_and_asks_nothing_of_the_network():
    picture = assemble([Frame((await screens())[0], 1)])
    assert re.findall(r"number \d|still", shown_in(picture)) == ["still", "number 2"]
    assert "@keyframes" not in picture
    assert "url(" not in picture
    assert set(re.findall(r"https?://[^\"'<]+", picture)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("chat", "Assistant"),
        ("tokens", "entropy"),
        ("attention", "attends"),
        ("compare", "seed"),
        ("prompts", "english_to_french"),
        ("teach", "colour"),
    ],
)
async def test_each_scene_plays(tmp_path, name, word):
    path = await screenshots.take(name, tmp_path, GlassModel([" It is a scripted reply."]))
    picture = path.read_text(encoding="utf-8")
    assert word in picture
    assert ("@keyframes" in picture) == (name == "chat")


async def test_the_moving_scene_ends_on_a_branch(tmp_path):
    path = await screenshots.take("chat", tmp_path, GlassModel([" It is a scripted reply."]))
    picture = path.read_text(encoding="utf-8")
    assert "My name is Clara." in shown_in(picture)
    assert "‹ 2/2 ›" in shown_in(picture)
    assert "entropy" in picture
    assert "entropy" not in shown_in(picture)


def test_the_readme_shows_them_all():
    text = README.read_text(encoding="utf-8")
    assert all(f"(.assets/{name}.svg)" in text for name in screenshots.SCENES)
    pictures = [README.parent / ".assets" / f"{name}.svg" for name in screenshots.SCENES]
    assert all(0 < picture.stat().st_size < LARGEST for picture in pictures)
    moving = [picture.stem for picture in pictures if "@keyframes" in picture.read_text("utf-8")]
    assert moving == [re.findall(r"\(.assets/(\w+)\.svg\)", text)[0]] == ["chat"]
