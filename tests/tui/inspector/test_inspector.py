"""The inspector: what it shows is what the model computes, and its keys do what they say."""

import math
import random
import threading

import numpy as np
import pytest
from fakes import ScriptedModel
from foreign_texts import FOREIGN, shown
from glass import GlassModel, random_gpt2
from textual.widgets import OptionList, Static
from tui_driver import Driver, OpenApp, fill

from chatapp.common.settings import Settings
from chatapp.common.shading import percent
from chatapp.dialogue.reading import read, usage
from chatapp.dialogue.store import Store
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.events import Token
from chatapp.engine.model import Request, Sampling
from chatapp.lab.traces import DecoderTrace
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.inspector import step
from chatapp.tui.inspector.attention import AttentionView, HeatMap
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.step import StepView
from chatapp.tui.inspector.tabs import LayersView, TokensView
from chatapp.tui.inspector.token_text import TokenText, layout
from chatapp.tui.inspector.view import EXAMPLE, View
from chatapp.tui.widgets.message import MessageView

SETTINGS = Settings(sampling=Sampling(seed=5, max_tokens=12))


@pytest.fixture(scope="module")
def gpt2() -> LocalModel:
    return random_gpt2()


def inspector(driver: Driver) -> Inspector | None:
    return next(iter(driver.chat.query(Inspector)), None)


def words(driver: Driver, id: str) -> str:
    return str(driver.chat.query_one(f"#{id}", Static).content)


def text_of(driver: Driver, view: type[View]) -> TokenText:
    return driver.chat.query_one(view).query_one(TokenText)


def notes(driver: Driver) -> str:
    return "\n".join(notification.message for notification in driver.app._notifications)


def alternatives(driver: Driver) -> list[str]:
    options = driver.chat.query_one("#tokens-alternatives", OptionList)
    return [str(option.prompt) for option in options.options]


async def go_to(driver: Driver, text: TokenText, position: int) -> None:
    text.focus()
    text._go(position)
    await driver.rest()
    assert text.cursor == position


# Where it stands


async def test_f3_opens_it_over_a_narrow_chat_and_escape_closes_it(open_app: OpenApp) -> None:
    async with open_app(GlassModel(["It is a scripted reply."])) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        assert driver.chat.query_one(Inspector).outer_size.width == 100
        assert not driver.prompt.focusable
        assert "scripted" in driver.screen_text
        await driver.press_and_rest("escape")
        assert inspector(driver) is None
        assert driver.prompt.has_focus
        await driver.press_and_rest("f3", "f3")
        assert inspector(driver) is None


async def test_it_stands_beside_a_wide_chat(open_app: OpenApp) -> None:
    async with open_app(GlassModel(["It is.", "So it is."]), size=(120, 30)) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        assert driver.chat.query_one(Inspector).outer_size.width == 60
        assert driver.prompt.focusable
        driver.prompt.focus()
        await driver.say("Again")
        await driver.rest()
        assert " So│ it│ is." in "│".join(text_of(driver, TokensView).texts), "it follows the chat"
        driver.prompt.focus()
        await driver.press_and_rest("f3")
        assert inspector(driver) is not None
        assert driver.chat.query_one(Inspector).has_focus_within
        await driver.pilot.resize_terminal(80, 24)
        await driver.rest()
        assert driver.chat.query_one(Inspector).outer_size.width == 80
        await driver.pilot.resize_terminal(160, 40)
        await driver.rest()
        assert driver.prompt.focusable
        await driver.press_and_rest("f3")
        assert inspector(driver) is None


async def test_it_looks_at_the_focused_message(open_app: OpenApp, store: Store) -> None:
    chat_id = fill(store, ["one", "two", "three", "four"])
    async with open_app(GlassModel(["x"]), chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "up", "up")
        assert isinstance(driver.chat.focused, MessageView)
        await driver.press_and_rest("f3", "1")
        prompt = words(driver, "prompt-text")
        assert "one" in prompt
        assert "two" in prompt
        assert "three" not in prompt
        await driver.press_and_rest("escape")
        await driver.press_and_rest("f3", "1")
        assert "four" in words(driver, "prompt-text")


async def test_without_messages_there_is_an_example(open_app: OpenApp) -> None:
    async with open_app(GlassModel(["Fine."])) as driver:
        await driver.press_and_rest("f3")
        assert words(driver, "inspector-about") == "An example sentence"
        await driver.press_and_rest("3")
        text = text_of(driver, AttentionView)
        assert "".join(text.texts) == EXAMPLE
        assert text.texts[text.cursor] == " he"
        await driver.press_and_rest("escape")
        await driver.say("Hello")
        await driver.press_and_rest("f3", "x")
        assert words(driver, "inspector-about") == "An example sentence"
        await driver.press_and_rest("x")
        assert "of reply" in words(driver, "inspector-about")


async def test_models_that_are_not_there_or_show_nothing(open_app: OpenApp) -> None:
    gate = threading.Event()

    def load() -> ScriptedModel:
        gate.wait(30)
        return ScriptedModel(["Fine."])

    async with open_app(load=load) as driver:
        await driver.press("f3")
        assert inspector(driver) is None
        assert "not loaded yet" in notes(driver)
        gate.set()
        await driver.ready()
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        sentence = "scripted does not show its inside"
        for key in "2345":
            await driver.press_and_rest(key)
            assert sentence in driver.screen_text
        await driver.press_and_rest("1")
        assert "Hello" in words(driver, "prompt-text")


async def test_it_waits_for_the_reply_without_blocking(open_app: OpenApp) -> None:
    model = GlassModel(["It is a reply."])
    model.gate = threading.Event()
    async with open_app(model, size=(140, 30)) as driver:
        driver.prompt.text = "Hello"
        await driver.press("enter")
        await driver.until(lambda: driver.chat.conversation.turn)
        await driver.press("f3")
        assert words(driver, "inspector-about") == "Looking …"
        driver.prompt.focus()
        await driver.press("a", "b")
        assert driver.prompt.text == "ab"
        model.gate.set()
        await driver.rest()
        assert " reply." in text_of(driver, TokensView).texts


async def test_a_message_that_no_longer_fits_is_a_sentence(open_app: OpenApp, store: Store) -> None:
    chat_id = fill(store, ["word " * 300, "yes"])
    async with open_app(GlassModel(["x"], context=64), chat_id=chat_id) as driver:
        await driver.press_and_rest("f3")
        assert "300 tokens long" in words(driver, "inspector-about")
        await driver.press_and_rest("1", "2", "3", "4", "5", "x")
        assert words(driver, "inspector-about") == "An example sentence"


async def test_what_was_left_out_is_named(open_app: OpenApp, store: Store) -> None:
    texts = [f"number {place} " + "word " * 12 for place in range(8)]
    async with open_app(GlassModel(["x"], context=80), chat_id=fill(store, texts)) as driver:
        await driver.press_and_rest("f3", "1")
        session = driver.chat.conversation.session
        assert session is not None
        dropped = usage(session).dropped
        assert 0 < dropped < 7
        left_out = words(driver, "prompt-notes")
        assert f"Left out for length: {dropped} messages" in left_out
        assert "You: number 0" in left_out
        assert "number 0" not in words(driver, "prompt-text")
        assert "number 6" in words(driver, "prompt-text")


async def test_a_draft_is_looked_at_before_it_is_sent(open_app: OpenApp, store: Store) -> None:
    model = GlassModel([" It is."])
    async with open_app(model) as driver:
        driver.prompt.text = "Is it [b]there[/b]?"
        await driver.press_and_rest("f3", "1")
        assert "tokens of prompt · not sent · template plain" in words(driver, "inspector-about")
        draft = words(driver, "prompt-text")
        assert draft.endswith("User: Is it [b]there[/b]?\nAssistant:")
        await driver.press_and_rest("escape")
        assert store.chats() == []
        await driver.press_and_rest("enter")
        assert model.prompts == [draft]
        driver.prompt.text = "And here?"
        await driver.press_and_rest("f3", "1")
        assert words(driver, "prompt-text") == f"{draft} It is.\nUser: And here?\nAssistant:"
        await driver.press_and_rest("2", "tab", "enter")
        assert "Only a token of a reply can be replaced." in notes(driver)
        await driver.press_and_rest("escape")
        for text in ("/system x", "  "):
            driver.prompt.text = text
            await driver.press_and_rest("f3", "1")
            assert words(driver, "prompt-text") == f"{draft} It is."
            await driver.press_and_rest("escape")


async def test_a_message_written_anew_is_looked_at_in_its_place(open_app: OpenApp) -> None:
    async with open_app(GlassModel([" It is."])) as driver:
        await driver.say("one")
        await driver.say("two")
        await driver.press_and_rest("ctrl+up", "up", "up", "up", "e")
        assert driver.prompt.text == "one"
        driver.prompt.text = "three"
        await driver.press_and_rest("f3", "1")
        assert words(driver, "prompt-text").endswith("User: three\nAssistant:")
        assert "two" not in words(driver, "prompt-text")
        await driver.press_and_rest("escape", "ctrl+up", "w")
        driver.prompt.text = "It is not."
        await driver.press_and_rest("f3", "1")
        assert "It is not." not in words(driver, "prompt-text"), "a correction is never sent"
        assert "User: two" in words(driver, "prompt-text")


async def test_a_draft_that_does_not_fit_is_refused(open_app: OpenApp) -> None:
    async with open_app(GlassModel([" It is."], context=40)) as driver:
        driver.prompt.text = "word " * 50
        await driver.press_and_rest("f3")
        assert "the message is 50 tokens long" in words(driver, "inspector-about")


async def test_a_reply_to_another_prompt_says_so(open_app: OpenApp) -> None:
    async with open_app(GlassModel([" It is."])) as driver:
        await driver.say("one")
        await driver.press_and_rest("f3", "1")
        assert "from another prompt" not in driver.screen_text
        await driver.press_and_rest("escape")
        driver.prompt.text = "/system Be brief."
        await driver.press_and_rest("enter", "f3", "1")
        assert "The reply was generated from another prompt." in driver.screen_text
        assert words(driver, "prompt-text").startswith("Be brief.")


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
            assert len(lines) == 10
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
        await driver.press_and_rest("f3", "3")
        text, heat = text_of(driver, AttentionView), driver.chat.query_one(HeatMap)
        session = driver.chat.conversation.session
        assert session is not None
        reading = read(session, session.chat.messages[-1].id)
        trace = DecoderTrace(gpt2.decoder, [*reading.prompt.ids, *reading.reply_ids], gpt2.piece)

        async def expect(source: int, cell: tuple[int, int] | None, target: int | None) -> None:
            found = trace.attention(source)
            weights = found.mean((0, 1)) if cell is None else found[cell]
            detail = words(driver, "attention-detail")
            strongest = percent(float(weights.max())).strip()
            assert strongest in detail.split("\n")[0]
            if target is not None:
                assert percent(float(weights[target])).strip() in detail.split("\n")[1]
                assert np.abs(np.array(heat._cells) - found[:, :, target]).max() < 1e-5

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
        assert "layer 1, head 2" in words(driver, "attention-detail")
        await driver.press_and_rest("a")
        await expect(6, None, 4)
        text.focus()
        await driver.press_and_rest("enter")
        await expect(4, None, None)


async def test_layers_are_the_traces(open_app: OpenApp, gpt2: LocalModel) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "4")
        text = text_of(driver, LayersView)
        session = driver.chat.conversation.session
        assert session is not None
        reading = read(session, session.chat.messages[-1].id)
        assert text.cursor == len(reading.prompt.ids) - 1
        trace = DecoderTrace(gpt2.decoder, [*reading.prompt.ids, *reading.reply_ids], gpt2.piece)
        for position in (text.cursor, 3):
            await go_to(driver, text, position)
            lens = trace.lens(position)
            rows = words(driver, "layers-table").split("\n")[1:]
            assert len(rows) == 3
            for layer, row in zip((2, 1, 0), rows, strict=True):
                actual = lens[layer].actual
                assert actual is not None
                assert row.split()[:3] == [
                    str(layer), f"{lens[layer].entropy:.1f}", f"{actual.rank:,}",
                ]  # fmt: skip
                assert percent(lens[layer].candidates[0].probability).strip() in row
        await driver.press_and_rest("end")
        assert len(words(driver, "layers-table").split("\n")) == 4


# Branches


async def test_enter_on_an_alternative_branches_the_reply(
    open_app: OpenApp, store: Store, gpt2: LocalModel
) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
        assert session is not None
        first = session.chat.messages[-1]
        ids = read(session, first.id).reply_ids
        await driver.press_and_rest("f3")
        text = text_of(driver, TokensView)
        options = driver.chat.query_one("#tokens-alternatives", OptionList)
        start, other = text.cursor, None
        # Where the text before is whole, and another token is a word or part of one.
        for position in range(start + 1, start + len(ids)):
            await go_to(driver, text, position)
            other = next(
                (
                    place
                    for place, option in enumerate(options.options)
                    if gpt2.tokenizer.piece(int(str(option.id).split()[1])).isalnum()
                    and "●" not in str(option.prompt)
                ),
                None,
            )
            if other is not None and "\ufffd" not in gpt2.tokenizer.decode(ids[: position - start]):
                break
        assert other is not None
        chosen = int(str(options.options[other].id).split()[1])
        options.focus()
        options.highlighted = other
        await driver.press_and_rest("enter")
        await driver.rest()
        assert inspector(driver) is None, "the chat is seen again"
        branch = session.chat.messages[-1]
        assert (branch.parent_id, branch.siblings) == (first.parent_id, 2)
        assert store.message(first.id).text == first.text
        begin = gpt2.tokenizer.decode([*ids[: position - start], chosen])
        assert branch.text.startswith(begin.strip())
        assert not first.text.startswith(begin.strip())
        assert driver.texts[-1] == branch.text


async def test_what_cannot_be_branched_is_said(open_app: OpenApp, store: Store) -> None:
    reply = " It is a reply of a few words that go on and on."
    async with open_app(GlassModel([reply]), size=(140, 30)) as driver:
        await driver.say("Hello there")
        await driver.press_and_rest("f3")
        text = text_of(driver, TokensView)
        options = driver.chat.query_one("#tokens-alternatives", OptionList)
        while not any("●" in each for each in alternatives(driver)):
            await driver.press("right")
        options.highlighted = next(
            place for place, each in enumerate(alternatives(driver)) if "●" in each
        )
        options.focus()
        await driver.press_and_rest("enter")
        assert "has this token already" in notes(driver)
        await go_to(driver, text, 1)
        options.focus()
        options.highlighted = 0
        await driver.press_and_rest("enter")
        assert "Only a token of a reply" in notes(driver)
        assert len(driver.texts) == 2


# Step by step


def taken(driver: Driver) -> list[int]:
    return [each.id for each in driver.chat.query_one(StepView)._step.taken]


async def test_steps_draw_what_generate_draws(open_app: OpenApp, gpt2: LocalModel) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
        assert session is not None
        prompt = read(session, session.chat.messages[-1].id).prompt.ids
        events = gpt2.generate(Request(prompt, SETTINGS.sampling))
        expected = [event.id for event in events if isinstance(event, Token)][:4]
        await driver.press_and_rest("f3", "5", "space", "space", "space", "space")
        assert taken(driver) == expected
        await driver.press_and_rest("backspace")
        assert taken(driver) == expected[:3]
        options = driver.chat.query_one("#step-candidates", OptionList)
        choice = int(str(options.options[2].id))
        options.highlighted = 2
        await driver.press_and_rest("enter")
        assert taken(driver) == [*expected[:3], choice]


async def test_parameters_change_the_cut(open_app: OpenApp, gpt2: LocalModel) -> None:
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3", "5")
        view = driver.chat.query_one(StepView)
        assert "temperature 0.7" in words(driver, "step-parameters")
        await driver.press_and_rest("plus", "plus", "minus")
        assert "temperature 0.8" in words(driver, "step-parameters")
        await driver.press_and_rest("right", "plus", "plus")
        assert "top-k 2" in words(driver, "step-parameters")
        assert view._step.next is not None
        cut = view._step.next.cut
        assert cut.kept <= 2
        assert "2 tokens left" in words(driver, "step-parameters")
        options = driver.chat.query_one("#step-candidates", OptionList)
        lines = [str(option.prompt) for option in options.options]
        assert [("cut" in line) for line in lines] == [False] * 2 + [True] * 8
        for line, each, drawn in zip(lines, cut.before.candidates, cut.drawn, strict=True):
            assert percent(each.probability) in line
            assert math.isclose(drawn, 0) or percent(drawn) in line
        await driver.press_and_rest("left", "left", *["minus"] * 9)
        assert "min-p 0 " in words(driver, "step-parameters")
        assert driver.chat.conversation.choices.sampling == SETTINGS.sampling, (
            "the chat's own are left"
        )


async def test_it_plays_pauses_and_ends(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_PAUSE", 0.001)
    model = random_gpt2()
    async with open_app(model, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
        assert session is not None
        model.context = len(read(session, session.chat.messages[-1].id).prompt.ids) + 5
        await driver.press_and_rest("f3", "5")
        view = driver.chat.query_one(StepView)
        await driver.press("p")
        await driver.until(lambda: len(taken(driver)) >= 2)
        await driver.press_and_rest("p")
        paused = len(taken(driver))
        await driver.press_and_rest("1", "5")
        assert len(taken(driver)) == paused
        await driver.press("p")
        await driver.until(lambda: view._step.next is None)
        await driver.rest()
        assert "has ended" in words(driver, "step-parameters")
        ended = len(taken(driver))
        await driver.press_and_rest("space", "p")
        assert len(taken(driver)) == ended
        await driver.press_and_rest("backspace")
        assert len(taken(driver)) == ended - 1


async def test_steps_can_be_kept_as_a_branch(open_app: OpenApp, store: Store) -> None:
    model = GlassModel(["It is a reply.", " and more."])
    async with open_app(model, settings=SETTINGS) as driver:
        await driver.press_and_rest("f3", "5", "k")
        assert "no reply here" in notes(driver)
        await driver.press_and_rest("escape")
        await driver.say("Hello there")
        await driver.press_and_rest("f3", "5", "k")
        assert "No token has been sampled" in notes(driver)
        await driver.press_and_rest("enter")
        (id,) = taken(driver)
        await driver.press_and_rest("k")
        await driver.rest()
        assert inspector(driver) is None
        assert driver.texts[-1] == (model.tokenizer.piece(id) + " and more.").strip()
        assert len(driver.texts) == 2


# Whatever comes


async def test_foreign_text_is_only_text(open_app: OpenApp, store: Store) -> None:
    text = " ".join(each[:100] for each in FOREIGN.values())
    chat_id = fill(store, [f"user {text}", f"reply {text}"])
    async with open_app(GlassModel(["x"]), chat_id=chat_id, size=(60, 20)) as driver:
        await driver.press_and_rest("f3")
        for key in "12345":
            await driver.press_and_rest(key, "down", "end", "home", "right")
            shown(driver)


@pytest.mark.parametrize("size", [(20, 6), (120, 30)])
async def test_any_keys_in_any_order(open_app: OpenApp, size: tuple[int, int]) -> None:
    keys = [
        *("1", "2", "3", "4", "5", "x", "a", "k", "space", "enter", "backspace", "plus", "minus"),
        *("left", "right", "up", "down", "home", "end", "pageup", "pagedown", "tab", "shift+tab"),
        *("f3", "f3", "ctrl+up", "escape", "p"),
    ]
    rng = random.Random(3)
    settings = Settings(sampling=Sampling(seed=1, max_tokens=5))
    async with open_app(GlassModel(["It is a reply."]), size=size, settings=settings) as driver:
        await driver.say("Hello there, you.")
        await driver.press_and_rest("f3")
        for _ in range(40):
            await driver.press(rng.choice(keys))
            if inspector(driver) is None:
                await driver.press("f3")
        await driver.press_and_rest("escape")
        await driver.rest()
        shown(driver)


async def test_help_lists_its_keys(open_app: OpenApp) -> None:
    async with open_app(GlassModel(["Fine."]), size=(100, 260)) as driver:
        await driver.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        text = driver.screen_text
        for sentence in (
            "Look inside the model, also while you write",
            "Inspector: attention",
            "Pin the token, to choose what it attends to",
            "Average of all layers and heads",
            "Sample one token",
            "Keep these tokens",
            "Previous token",
            "Close the inspector",
        ):
            assert sentence in text


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
