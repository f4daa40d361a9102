"""The site is built of guides, lessons and the door for Python, and no link in it is broken."""

import json
import os
import re
import subprocess
import sys

import pytest
from guides import GUIDES, ROOT

import chatapp
from chatapp.dialogue.lessons.lesson import NAMES

pytest.importorskip("mkdocs", reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "-f", str(ROOT / ".ci" / "site" / "mkdocs.yml"), "-d", str(folder)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return folder


def pages(site):
    return {path.parent.relative_to(site).as_posix(): path for path in site.rglob("index.html")}


def test_every_guide_and_every_lesson_has_a_page_with_its_title(site):
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages(site).items()}
    for guide in GUIDES:
        title = re.match("# (.*)", guide.read_text(encoding="utf-8"))[1]
        assert any(f">{title}<" in text for text in texts.values()), guide
    for name in NAMES:
        assert f"chatapp lesson {name}" in re.sub("<[^>]+>", "", texts[f"lessons/{name}"])
    assert len(texts) == len(GUIDES) + len(NAMES) + 2  # the card, and the reference


def test_no_block_of_code_is_left_as_text(site):
    for path in pages(site).values():
        assert "```" not in path.read_text(encoding="utf-8"), path


def test_a_page_asks_no_other_host_for_anything(site):
    for path in [*pages(site).values(), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"""(?:src=|href=["']?[^"'>]*\.css|url\()["']?https?:""", text), path


def test_pictures_are_there(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img[^>]* src="([^"]+)"', text)
    assert len(pictures) > 3
    assert all((site / picture).stat().st_size > 1000 for picture in pictures)


def test_the_search_finds_words_of_guides_lessons_and_docstrings(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {
        word: {entry["location"] for entry in index["docs"] if word in entry["text"]}
        for word in ("glassgpt", "zanfo", "ContextOverflow")
    }
    assert "#install" in found["glassgpt"]
    assert any(place.startswith("lessons/attention/") for place in found["zanfo"])
    assert any(place.startswith("reference/") for place in found["ContextOverflow"])


def test_the_reference_shows_all_that_the_package_offers(site):
    text = (site / "reference" / "index.html").read_text(encoding="utf-8")
    for name in chatapp.__all__:
        assert f'id="chatapp.open_model.{name}"' in text
