"""Findings as files: whole, with every number, without any other file, and text stays text."""

import base64
import hashlib
import re
import shutil
import subprocess
from xml.etree import ElementTree

import numpy as np
import pytest
from glass import random_gpt2

from chatapp.lab.drawing.blocks import Lines, Map, Number, Pieces, Shaded, Table
from chatapp.lab.drawing.console import drawn_blocks, line_rows
from chatapp.lab.drawing.pictures import Sheet, html_page, svg_picture
from chatapp.lab.traces import DecoderTrace
from chatapp.lab.views.attention_views import Attention
from chatapp.lab.views.head_views import score_heads
from chatapp.lab.views.part_views import Why, ask
from chatapp.lab.views.patch_view import Patches

LONG = " incomprehensibilities" * 6
FOREIGN = "</svg><script>alert(1)</script>\x1b[2J\uffff\u202e & \"'"


@pytest.fixture(scope="module")
def model():
    return random_gpt2(layers=2, heads=3)


def attention(model, text="he has it"):
    ids = model.tokenizer.encode(text)
    return Attention.of(DecoderTrace(model.decoder, ids, model.piece), len(ids) - 1)


def drawn(*blocks):
    sheet = Sheet(is_page=False)
    sheet.draw(blocks)
    return sheet.svg()


def words(picture):
    return "".join(ElementTree.fromstring(picture).itertext())


def test_nothing_is_cut_off():
    blocks = (
        Shaded([LONG, "b"], [0.5, None], ["p 0.5", ""]),
        Table(["a", "b"], [["x", Pieces([(LONG, 0.25), (LONG, None)])], [LONG * 3, "y"]]),
        Map([[0.5]], rows=[LONG], columns=[LONG]),
        Lines([LONG, "b"], [0.75, 0.25]),
    )
    text = re.sub(r"\s", "", words(drawn(*blocks)))
    assert "…" not in text
    assert text.count("incomprehensibilities") >= 6 * (1 + 2 + 3 + 2 + 1)
    assert "25.0%" in text
    width = float(re.search(r'width="(\d+)"', drawn(*blocks))[1])
    for x, length in re.findall(r'x="([\d.]+)" y="[\d.]+" textLength="([\d.]+)"', drawn(*blocks)):
        assert float(x) + float(length) <= width


def test_the_pointer_shows_the_whole_number():
    blocks = (
        Table(["n", ">v"], [["x", Number(0.123456, ".2f")]]),
        Map([[0.123456, -0.654321]], is_signed=True),
        Map([[0.5]], scale=4.2),
    )
    titles = re.findall("<title>(.*?)</title>", drawn(*blocks))
    assert titles == [
        "v 0.123456",
        "layer 0, head 0: 0.123456",
        "layer 0, head 1: -0.654321",
        "layer 0, head 0: 2.1",
    ]


def findings(model):
    ids = model.tokenizer.encode("he has it")
    question = ask(model, ids)
    patches = Patches.of(question, ask(model, [*ids[:-1], ids[0]]))
    return [Why.of(question), attention(model), patches, score_heads(model, ["he has it"])]


def test_a_page_runs_its_own_script_alone(model):
    page = html_page(findings(model))
    policy = re.findall(r"script-src 'sha256-([^']*)'", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy == [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()]
    assert "default-src 'none'" in page
    assert page.count("<script") == 1
    assert not re.search(r"<[^>]*\s(src|href|onload|onclick)=|url\(|@import", page)
    assert set(re.findall(r"https?:[^\"]*", page)) == {"http://www.w3.org/2000/svg"}


def test_foreign_text_is_only_text(model):
    shown = attention(model, FOREIGN)
    for file in (svg_picture([shown]), html_page([shown])):
        assert "<script>alert" not in file
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ufffe\uffff]", file)
    ElementTree.fromstring(svg_picture([shown]))


def test_heavier_lines_are_other_characters_and_the_source_is_the_last():
    rows = [row.plain for row in line_rows(Lines(["a", "b", "c", "d"], [0.02, 0.6, 0.001, 0.379]))]
    assert rows[0].split() == ["0", "│a│", "◀╌╌╌╌╌╮", "2.0%"]
    assert rows[1].split() == ["1", "│b│", "◀█████┤", "60.0%"]
    assert rows[2].split() == ["2", "│c│", "│", "0.1%"]
    assert rows[3].split() == ["3", "│d│", "●━━━━━╯", "37.9%"]
    many = Lines(list("abcdefgh"), [0.1, 0.5, 0.0, 0.2, 0.05, 0.05, 0.05, 0.05])
    assert many.shown(3) == [1, 3, 7]
    assert "5 tokens with less are left out" in [row.plain for row in line_rows(many, 3)][-1]


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_a_map_fits_a_terminal_and_names_its_axes(width):
    for grid in (Map([[0.5] * 12] * 3), Map([[-0.5] * 12] * 3, is_signed=True)):
        parts = drawn_blocks([grid], width)
        above, names, *rows = [part.plain for part in parts]
        assert all(len(row) <= width for row in (above, names, *rows[:3]))
        assert above.split() == ["head", "→"]
        assert names.startswith("layer ↓")
        assert [row.split()[0] for row in rows[:3]] == ["0", "1", "2"]


CLICKS = """
const click = (one) => one.dispatchEvent(new MouseEvent("click", {bubbles: true}));
click(document.querySelector('[data-cell="1.2"]'));
click(document.querySelectorAll("[data-line]")[1]);
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_a_click_on_a_head_shows_its_lines(model, tmp_path):
    shown = attention(model)
    page = re.sub("<meta http-equiv[^>]*>", "", html_page([shown]))  # which refuses the clicks
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", f"<script>{CLICKS}</script></body>"), "utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, timeout=120, check=True)
    after = done.stdout.decode()
    weights = [float(w) for w in re.findall(r'data-note="token \d+ [^"]*: weight ([\d.]+)"', after)]
    expected = shown.by_head[1, 2]
    assert weights == pytest.approx(expected.tolist(), abs=1e-3)
    assert "layer 1, head 2" in after
    cells = re.findall(r'data-note="layer [^"]*: ([\d.]+)"', after)
    assert np.allclose([float(c) for c in cells], shown.by_head[:, :, 1].ravel(), atol=1e-3)
