"""A reply drawn step by step in the inspector, and a reply branched from an alternative."""

from glass import GlassModel, random_gpt2
from inspector_driver import SETTINGS, alternatives, go_to, inspector, notes, text_of, words
from textual.widgets import OptionList

from chatapp.dialogue.reading import read
from chatapp.engine.events import Token
from chatapp.engine.model import Request
from chatapp.tui.inspector import step
from chatapp.tui.inspector.step import StepView
from chatapp.tui.inspector.tabs import TokensView

# Branches


async def test_enter_on_an_alternative_branches_the_reply(open_app, store, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
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


async def test_what_cannot_be_branched_is_said(open_app, store):
    reply = " It is a reply of a few words that go on and on."
    async with open_app(GlassModel([reply]), size=(140, 30)) as driver:
        await driver.say("Hello there")
        await driver.press_and_rest("f3")
        text = text_of(driver, TokensView)
        options = driver.chat.query_one("#tokens-alternatives", OptionList)
        for _ in range(60):
            if any("●" in each for each in alternatives(driver)):
                break
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


def taken(driver):
    return [each.id for each in driver.chat.query_one(StepView)._step.taken]


async def test_steps_draw_what_generate_draws(open_app, gpt2):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
        prompt = read(session, session.chat.messages[-1].id).prompt.ids
        events = gpt2.generate(Request(prompt, SETTINGS.sampling))
        expected = [event.id for event in events if isinstance(event, Token)][:4]
        await driver.press_and_rest("f3", "8", "space", "space", "space", "space")
        assert taken(driver) == expected
        await driver.press_and_rest("backspace")
        assert taken(driver) == expected[:3]
        options = driver.chat.query_one("#step-candidates", OptionList)
        choice = int(str(options.options[2].id))
        options.highlighted = 2
        await driver.press_and_rest("enter")
        assert taken(driver) == [*expected[:3], choice]


async def test_it_plays_pauses_and_ends(open_app, monkeypatch):
    monkeypatch.setattr(step, "_PAUSE", 0.001)
    model = random_gpt2()
    async with open_app(model, settings=SETTINGS) as driver:
        await driver.say("he has it")
        session = driver.chat.conversation.session
        model.context = len(read(session, session.chat.messages[-1].id).prompt.ids) + 5
        await driver.press_and_rest("f3", "8")
        view = driver.chat.query_one(StepView)
        await driver.press("p")
        await driver.until(lambda: len(taken(driver)) >= 2)
        await driver.press_and_rest("p")
        paused = len(taken(driver))
        await driver.press_and_rest("1", "8")
        assert len(taken(driver)) == paused
        await driver.press("p")
        await driver.until(lambda: view._step.next is None)
        await driver.rest()
        assert "has ended" in words(driver, "step-sentence")
        ended = len(taken(driver))
        await driver.press_and_rest("space", "p")
        assert len(taken(driver)) == ended
        await driver.press_and_rest("backspace")
        assert len(taken(driver)) == ended - 1


async def test_steps_can_be_kept_as_a_branch(open_app, store):
    model = GlassModel(["It is a reply.", " and more."])
    async with open_app(model, settings=SETTINGS) as driver:
        await driver.press_and_rest("f3", "8", "k")
        assert "no reply here" in notes(driver)
        await driver.press_and_rest("escape")
        await driver.say("Hello there")
        await driver.press_and_rest("f3", "8", "k")
        assert "No token has been sampled" in notes(driver)
        await driver.press_and_rest("enter")
        (id,) = taken(driver)
        await driver.press_and_rest("k")
        await driver.rest()
        assert inspector(driver) is None
        assert driver.texts[-1] == (model.tokenizer.piece(id) + " and more.").strip()
        assert len(driver.texts) == 2
