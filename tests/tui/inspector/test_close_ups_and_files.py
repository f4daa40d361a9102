"""Close-ups of what is chosen in a tab, and every view as two files."""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from inspector_driver import SETTINGS, go_to, notes, text_of, words
from random_models import view_of

from chatapp.lab.prompt_parts import PartSpan
from chatapp.lab.views.close_up_views import Neighbours, Neurons, StateNeighbours, WeightSteps
from chatapp.lab.views.layer_views import Norms
from chatapp.lab.views.part_views import SmallCircuit
from chatapp.lab.views.prompt_part_view import PromptParts, attribute_prompt
from chatapp.tui.inspector.head_tabs import AttentionView
from chatapp.tui.inspector.tabs import PromptView, TokensView
from chatapp.tui.inspector.token_choice import HeatMap
from chatapp.tui.inspector.view import CLOSE_UPS, CloseUpView, InspectorTab


def shown(driver):
    return list(driver.chat.query_one(CloseUpView).views())


async def test_close_ups_are_those_of_the_chosen_token_and_head(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4")
        view = driver.chat.query_one(AttentionView)
        await go_to(driver, text_of(driver, AttentionView), 3)
        ids = view._look.tokens.ids[:4]
        following = view._look.tokens.ids[4]
        view.query_one(HeatMap).focus()
        await driver.press_and_rest("w")
        assert "Choose a head first" in notes(driver)
        await driver.press_and_rest("up", "left")
        assert view.cell is not None
        layer, head = view.cell
        expected = {
            "p": [attribute_prompt(gpt2, ids, [PartSpan("instruction", 0, 4)], [following])],
            "w": [view_of(WeightSteps, gpt2, ids, f"{layer}.{head}")],
            "n": [view_of(Neighbours, gpt2, ids, "")],
            "h": [view_of(StateNeighbours, gpt2, ids, str(layer))],
            "r": [view_of(Norms, gpt2, ids)],
            "u": [view_of(Neurons, gpt2, [*ids, following], f"{layer}.mlp", at=3)],
            "c": [view_of(SmallCircuit, gpt2, [*ids, following], at=3)],
        }
        for key, findings in expected.items():
            await driver.press_and_rest(key)
            found = shown(driver)
            assert [it.to_json() for it in found] == [it.to_json() for it in findings], key
            assert findings[0].reading.split("│")[0].strip() in driver.sentences
            await driver.press_and_rest("f1")
            formula = words(driver, "inspector-formula")
            assert formula.split("\n")[0] in [it.formula for it in CLOSE_UPS.values()]
            await driver.press_and_rest("f1", "escape")
            assert view.display
            view.query_one(HeatMap).focus()


async def test_the_prompt_shows_what_in_it_mattered(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        driver.prompt.text = "/ablate 0.mlp"
        await driver.press_and_rest("enter", "f3", "1")
        look = driver.chat.query_one(PromptView)._look
        ids, start = look.tokens.ids, look.start
        for size in (start, start + 2):
            await driver.press_and_rest("p")
            (parts,) = shown(driver)
            assert isinstance(parts, PromptParts)
            names = [part.part for part in parts.parts]
            assert names == ["instruction", "input", "reply"][: 2 + (size > start)]
            assert parts.texts == look.tokens.texts[:size]
            off = gpt2.logits(ids[:size], interventions=look.changes)
            other = next(id for id in off.topk(2).indices.tolist() if id != ids[size])
            assert parts.against == gpt2.piece(other)
            difference = float(off[ids[size]] - off[other])
            assert parts.difference == pytest.approx(difference, abs=1e-4)
            on = gpt2.logits(ids[:size])
            assert parts.difference != pytest.approx(float(on[ids[size]] - on[other]), abs=1e-3)
            await driver.press_and_rest("escape")
            await driver.press_and_rest("2")
            await go_to(driver, text_of(driver, TokensView), start + 1)
            await driver.press_and_rest("1")


async def test_a_changed_model_is_the_one_that_is_looked_at(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        driver.prompt.text = "/ablate 0.mlp"
        await driver.press_and_rest("enter", "f3", "6", "r")
        (norms,) = shown(driver)
        assert isinstance(norms, Norms)
        assert norms.mlp[0] == 0
        assert norms.mlp[1] > 0


async def test_every_view_is_saved_as_a_page_and_a_picture(open_app, gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3")
        names = ("prompt", "tokens", "why", "attention", "heads", "layers", "patch", "next")
        for key, name in enumerate(names, start=1):
            await driver.press_and_rest(str(key))
            if name == "patch":
                await driver.press("s")
                await driver.until(lambda: "nothing to save" in notes(driver))
                await driver.press_and_rest("enter", "q", "enter")
            view = next(view for view in driver.chat.query(InspectorTab) if view.id == _tab(name))
            await driver.until(view.views)
            await driver.press("s")
            picture, page = Path(f"chatapp-{name}.svg"), Path(f"chatapp-{name}.html")
            await driver.until(picture.exists)
            (finding, *_) = view.views()
            text = "".join(ElementTree.parse(picture).getroot().itertext())
            assert "".join(finding.reading.split())[:60] in "".join(text.split())
            assert f'<section id="{name}">' in page.read_text("utf-8")
        await driver.press("s")
        await driver.until(Path("chatapp-next-2.svg").exists)
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        os.rmdir(gone)
        await driver.press("s")
        await driver.until(lambda: "cannot be saved in this folder" in notes(driver))


def _tab(name):
    return {"patch": "compare", "next": "step"}.get(name, name)


async def test_lines_and_map_take_turns_where_there_is_little_room(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS, size=(60, 20)) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4")
        heat, lines = driver.chat.query_one("#attention HeatMap"), "#attention-lines"
        assert (heat.display, driver.chat.query_one(lines).display) == (True, False)
        await driver.press_and_rest("l")
        assert (heat.display, driver.chat.query_one(lines).display) == (False, True)
        assert "◀" in driver.screen_text
        await driver.pilot.resize_terminal(200, 60)
        await driver.rest()
        assert heat.display
        assert driver.chat.query_one(lines).display
        assert "head →" in driver.screen_text
        assert "layer ↓" in driver.screen_text
