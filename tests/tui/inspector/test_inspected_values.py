"""What the inspector shows is what the model computes."""

import numpy as np
from inspector_driver import SETTINGS, go_to, text_of, words

from chatapp.common.shading import percent
from chatapp.dialogue.reading import read
from chatapp.lab.drawing.blocks import layout
from chatapp.lab.traces import DecoderTrace
from chatapp.tui.inspector.head_tabs import AttentionView
from chatapp.tui.inspector.token_choice import HeatMap

# What it shows


async def test_attention_is_the_traces(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4")
        text, heat = (
            text_of(driver, AttentionView),
            driver.chat.query_one("#attention HeatMap", HeatMap),
        )
        session = driver.chat.conversation.session
        reading = read(session, session.chat.messages[-1].id)
        trace = DecoderTrace(gpt2.decoder, [*reading.prompt.ids, *reading.reply_ids], gpt2.piece)

        async def expect(source, cell, target):
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


def test_the_layout_holds_every_token_once_and_fits():
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
