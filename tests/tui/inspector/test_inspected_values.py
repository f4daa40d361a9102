"""What the inspector shows is what the model computes."""

import numpy as np
import pytest
from inspector_driver import SETTINGS, alternatives, go_to, text_of, words
from tui_driver import OpenApp

from chatapp.common.shading import percent
from chatapp.dialogue.reading import read
from chatapp.engine.backends.local import LocalModel
from chatapp.lab.drawing.blocks import layout
from chatapp.lab.traces import DecoderTrace
from chatapp.tui.inspector.choosing import HeatMap
from chatapp.tui.inspector.head_tabs import AttentionView
from chatapp.tui.inspector.tabs import LayersView, TokensView
from chatapp.tui.inspector.view import ALTERNATIVES

# What it shows


async def test_alternatives_are_the_softmax_of_the_logits(
    open_app: OpenApp, gpt2: LocalModel
) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3")
        text = text_of(driver, TokensView)
        session = driver.chat.conversation.session
        assert session is not None
        reading = read(session, session.chat.messages[-1].id)
        ids = [*reading.prompt.ids, *reading.reply_ids]
        assert list(text.texts) == [gpt2.tokenizer.piece(id) for id in ids]
        assert text.cursor == len(reading.prompt.ids), "the first token of the reply"
        for position in (1, text.cursor):
            await go_to(driver, text, position)
            probabilities = gpt2.decoder.forward(ids[:position]).softmax(0)
            entropy = -float((probabilities * probabilities.log2()).sum())
            order = probabilities.argsort(descending=True).tolist()
            lines = alternatives(driver)
            assert len(lines) == ALTERNATIVES
            for line, id in zip(lines, order, strict=False):
                assert percent(float(probabilities[id])).strip() in line
            detail = words(driver, "tokens-detail")
            assert f"id {ids[position]}" in detail
            assert f"rank {order.index(ids[position]) + 1:,} " in detail
            assert float(detail.split("entropy ")[1].split()[0]) == pytest.approx(entropy, abs=0.01)
        await driver.press_and_rest("home")
        assert text.cursor == 0
        assert alternatives(driver) == []
        assert "Nothing comes before" in words(driver, "tokens-detail")
        await driver.press_and_rest("right", "right", "left")
        assert text.cursor == 1
        await driver.press_and_rest("down")
        assert text.cursor > 1
        await driver.press_and_rest("up", "end")
        assert text.cursor == len(ids) - 1


async def test_attention_is_the_traces(open_app: OpenApp, gpt2: LocalModel) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4")
        text, heat = (
            text_of(driver, AttentionView),
            driver.chat.query_one("#attention HeatMap", HeatMap),
        )
        session = driver.chat.conversation.session
        assert session is not None
        reading = read(session, session.chat.messages[-1].id)
        trace = DecoderTrace(gpt2.decoder, [*reading.prompt.ids, *reading.reply_ids], gpt2.piece)

        async def expect(source: int, cell: tuple[int, int] | None, target: int | None) -> None:
            found = trace.attention(source)
            weights = found.mean((0, 1)) if cell is None else found[cell]
            detail = words(driver, "attention-detail")
            strongest = percent(float(weights.max())).strip()
            assert "The weights add up to 1.0000" in detail
            assert strongest in detail.split("\n")[2]
            if target is not None:
                assert percent(float(weights[target])).strip() in detail.split("\n")[3]
                assert np.abs(np.array(heat.map.values) - found[:, :, target]).max() < 1e-5

        last = len(trace.ids) - 1
        await expect(last, None, None)
        await go_to(driver, text, 6)
        await expect(6, None, None)
        await driver.press_and_rest("enter", "left", "left")
        assert text.cursor == 4
        assert " pinned" in words(driver, "attention-detail")
        await expect(6, None, 4)
        heat.focus()
        await driver.press_and_rest("up", "right")
        assert heat.cell == (1, 1)
        await driver.press_and_rest("up")
        await expect(6, (0, 1), 4)
        assert "layer 0, head 1" in words(driver, "attention-detail")
        await driver.press_and_rest("a")
        await expect(6, None, 4)
        text.focus()
        await driver.press_and_rest("enter")
        await expect(4, None, None)


async def test_layers_are_the_traces(open_app: OpenApp, gpt2: LocalModel) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "6")
        text = text_of(driver, LayersView)
        session = driver.chat.conversation.session
        assert session is not None
        reading = read(session, session.chat.messages[-1].id)
        assert text.cursor == len(reading.prompt.ids) - 1
        trace = DecoderTrace(gpt2.decoder, [*reading.prompt.ids, *reading.reply_ids], gpt2.piece)
        for position in (text.cursor, 3):
            await go_to(driver, text, position)
            lens = trace.lens(position)
            rows = words(driver, "layers-table").split("\n")[1:4]
            for layer, row in zip((2, 1, 0), rows, strict=True):
                actual = lens[layer].actual
                assert actual is not None
                assert row.split()[:3] == [
                    "embed" if layer == 0 else str(layer - 1),
                    f"{lens[layer].entropy:.1f}",
                    f"{actual.rank:,}",
                ]
                assert percent(lens[layer].candidates[0].probability).strip() in row
        await driver.press_and_rest("end")
        assert "rank" not in words(driver, "layers-table").split("\n")[0], "nothing followed"


def test_the_layout_holds_every_token_once_and_fits() -> None:
    texts = ["ab", " cd", "\n", "", "\n\nx", "abcdefghijk", "漢字", "z", " \t", "\x1b[2J"]
    for width in range(2, 30):
        rows = layout(texts, width)
        assert {piece.token for row in rows for piece in row} == set(range(len(texts)))
        for row in rows:
            last = row[-1]
            assert last.x <= width
            assert [piece.x for piece in row] == sorted(piece.x for piece in row)
        joined = "".join(piece.text for row in rows for piece in row)
        assert joined == "ab cd⏎∅⏎⏎xabcdefghijk漢字z ⇥␛[2J"
