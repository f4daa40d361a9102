"""What stands where: the first screen, the status line, notes under replies, marks, legends."""

import itertools

import pytest
from fakes import ScriptedModel
from glass import GlassModel
from rich.cells import cell_len
from textual.widgets import Static

from chatapp.dialogue.store.rows import Basis
from chatapp.lab.predictions import Candidate
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.tabs import candidate_line
from chatapp.tui.inspector.token_choice import HeatMap
from chatapp.tui.screens.compare import CompareScreen, Side
from chatapp.tui.screens.library import choice_of
from chatapp.tui.widgets.status import StatusLine

SIZES = [(60, 20), (100, 30), (130, 40), (200, 60)]


@pytest.fixture
def own(tmp_path):
    """The folder of the user's own prompts, with a prompt file that has labels, and a persona."""
    folder = tmp_path / "home" / "config" / "prompts"
    (folder / "personas").mkdir(parents=True)
    (folder / "feel.toml").write_text(
        'instruction = "Say how it feels."\ninput_prefix = "Thing: "\noutput_prefix = "Feels:"\n'
        'labels = ["warm", "cold"]\nexamples = [{input = "rose", output = "warm"}]\n'
    )
    (folder / "personas" / "monk.toml").write_text('system = "The monk says little."\n')
    return folder


async def test_the_first_screen_says_what_the_model_is(open_app):
    async with open_app(ScriptedModel(["Hi."], name="bundled")) as driver:
        for size in SIZES:
            await driver.pilot.resize_terminal(*size)
            await driver.until(lambda: "Ctrl+R downloads smollm2" in driver.screen_text)
            await driver.listed()
            words = " ".join(driver.screen_text.split())
            assert "is small and was made here" in words
            assert "(98.4 MB without the hub), and goes on with it. The bundled" in words
            assert "F1 help: all keys and commands" in words, "all of it is on the screen"


async def test_what_the_chat_is_held_with_is_in_the_status_line(open_app, own):
    async with open_app(size=(60, 20)) as driver:
        for name, words in (("monk", "persona monk"), ("feel", "prompt file feel")):
            driver.chat.controls.use_prompt(choice_of(name))
            await driver.idle()
            assert words in driver.screen_text
        driver.chat.controls.use_prompt(choice_of("none"))
        await driver.idle()
        assert "prompt file feel" not in driver.screen_text
        assert "persona" not in driver.screen_text


async def test_the_status_line_never_runs_off(open_app):
    async with open_app() as driver:
        status = driver.chat.query_one(StatusLine)
        status.persona = "日本語の侍"
        status.speed, status.dropped, status.template = 123.0, 12, "own"
        for width in range(20, 131, 10):
            await driver.pilot.resize_terminal(width, 20)
            await driver.settle()
            line = status.render()
            assert line.cell_length <= status.content_size.width < width
            assert line.plain.startswith("● ready")
            assert ("persona" in line.plain) == (width >= 90)
            assert "template" not in line.plain
        status.model = "organisation/" + "x" * 50
        for width in (20, 40, 60, 100, 200):
            await driver.pilot.resize_terminal(width, 20)
            await driver.settle()
            assert status.render().cell_length <= status.content_size.width < width


async def test_label_probabilities_stand_under_the_reply(open_app, own):
    async with open_app(GlassModel(["x"])) as driver:
        driver.chat.controls.use_prompt(choice_of("feel"))
        await driver.say("ice")
        assert driver.texts[-1] in ("warm", "cold")
        assert "warm " in driver.notes[-1]
        assert "cold " in driver.notes[-1]
        assert driver.notes[-1].count("%") == 3
        assert "of the vocabulary" in driver.notes[-1]
        assert not [notice for notice in driver.notices if "%" in notice]
        driver.chat.controls.use_prompt(choice_of("none"))
        await driver.say("Hello")
        assert "%" in driver.notes[1], "it stays there"


async def test_another_label_of_the_same_model_is_not_asked_for(open_app, own):
    async with open_app(GlassModel(["x"])) as driver:
        driver.chat.controls.use_prompt(choice_of("feel"))
        await driver.say("ice")
        await driver.press("ctrl+up", "r")
        assert driver.notices[-1] == (
            "A label is scored, not sampled: another reply would be the same."
        )
        driver.chat.controls.use_prompt(choice_of("none"))
        await driver.press("ctrl+up", "r")
        await driver.idle()
        assert "‹ 2/2 ›" in driver.screen_text


async def test_what_differs_between_two_replies_is_marked(open_app):
    async with open_app(ScriptedModel(["It is wide.", "It is very wide."])) as driver:
        await driver.shows("Enter sends it to both", *"Sea?", "f4")
        await driver.shows("1 Left", "enter")
        assert isinstance(driver.app.screen, CompareScreen)
        told = str(driver.app.screen.query_one("#difference", Static).content)
        assert told.endswith("0 of 4 words at the left, 1 of 5 words at the right.")
        left, right = driver.app.screen.query(Side)
        assert not any(segment.style.underline for segment in left.body.render_line(0))
        marked = [part.text for part in right.body.render_line(0) if part.style.underline]
        assert marked == ["very"]
        assert {side.styles.border_top[0] for side in (left, right)} == {"round"}
        assert "temperature" not in driver.screen_text  # only what differs is listed


async def test_each_tab_says_what_its_colours_and_keys_are(open_app):
    legends = {"2": "100 %", "4": "most", "6": "the token that followed", "8": "under 1 %"}
    async with open_app(GlassModel(["It is.", "So."])) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        for size, (number, words) in itertools.product(SIZES, legends.items()):
            await driver.pilot.resize_terminal(*size)
            await driver.press_and_rest(number)
            panel = driver.chat.query_one(Inspector)
            assert words in str(panel.query_one("#inspector-legend", Static).content)
            rows = [row[panel.region.x :] for row in driver.screen_text.split("\n")]
            assert "Esc closes" in " ".join(" ".join(rows[-3:]).replace("▌", " ").split())


@pytest.mark.parametrize("width", [40, 60, 76, 120])
def test_a_bar_uses_the_width_it_has(width):
    line = candidate_line(Candidate(1, "a", 1.0, 1), True, width)
    assert line.cell_length == width - 4  # a mark before it, and a scrollbar behind
    assert line.plain.endswith("█")


@pytest.mark.parametrize("size", SIZES)
async def test_the_map_of_heads_uses_the_width_it_has(open_app, size):
    async with open_app(GlassModel(["It is.", "So."]), size=size) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3", "4")
        heat = driver.chat.query_one("#attention HeatMap", HeatMap)
        _, heads = heat._shape
        margin, last = 8, min(heat.size.height, heat.virtual_size.height) - 1
        room = min(14, (heat.size.width - margin) // heads)
        assert room >= 5
        widest = max(cell_len(heat.render_line(row).text.rstrip()) for row in range(last + 1))
        assert widest == margin + room * heads
        await driver.pilot.click("#attention HeatMap", offset=(widest - 1, last))
        await driver.rest()
        assert heat.cell[1] == heads - 1


async def test_a_text_of_any_script_stays_in_its_column(open_app):
    text = "日本語 🐚👩‍👩‍👧 שלום " + "unbroken" * 40
    async with open_app(ScriptedModel([text]), size=(130, 40)) as driver:
        await driver.say(text)
        await driver.press_and_rest("f3")
        await driver.pilot.resize_terminal(60, 20)
        await driver.rest()
        await driver.pilot.resize_terminal(200, 60)
        await driver.rest()
        assert all(cell_len(row) == 200 for row in driver.screen_text.split("\n"))
        await driver.press("escape")
        assert driver.prompt.has_focus
        assert driver.chat.conversation.chat.basis == Basis()


async def test_no_hint_is_cut_off_beside_the_inspector(open_app):
    async with open_app(GlassModel(["It is.", "So."]), size=(130, 40)) as driver:
        assert "Write a message · Enter sends, Ctrl+J starts a new line" in driver.screen_text
        await driver.say("Hello")
        await driver.press_and_rest("f3", "6")
        assert "│ Write a message · Enter sends  " in driver.screen_text
        left = driver.chat.query_one(Inspector).region.x
        beside = " ".join(row[left:].strip("▌ ") for row in driver.screen_text.split("\n"))
        assert "bits: how unsure the layer is" in beside


async def test_what_differs_is_told_whole_in_a_small_terminal(open_app):
    model = ScriptedModel(["It is a wide sea, as all know.", "It is a very wide sea, as all know."])
    async with open_app(model, size=(60, 20)) as driver:
        await driver.shows("Enter sends it to both", *"Sea?", "f4")
        await driver.shows("1 Left", "enter")
        assert "1 of 11 words at the right." in driver.sentences
