"""/tools, calls folded in a reply, and the question whether a tool may run."""

import json
import threading

import pytest
from fakes import ScriptedModel
from textual.widgets import OptionList
from thinking_model import thinking_model
from tool_server import add_lasting_server, ends

from chatapp.common.paths import tools_dir
from chatapp.dialogue.session import Session
from chatapp.tui.widgets.approval import Approval


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def model(tmp_path, *replies):
    return thinking_model(tmp_path / "model", replies)


@pytest.fixture
def touch(tmp_path):
    """A tool of the user's own, and what it makes."""
    tools_dir().mkdir(parents=True)
    command = json.dumps(["touch", str(tmp_path / "touched")])
    (tools_dir() / "touch.toml").write_text(
        f'name = "touch"\ndescription = "Does it."\ncommand = {command}\n'
        '[parameters.properties.why]\ntype = "string"\n'
    )
    return tmp_path / "touched"


async def switch_on(driver, *names):
    """Let the model call these tools, and wait until it may."""
    await driver.order(f"/tools {' '.join(names)}")
    await driver.until(lambda: driver.chat.conversation.chat.tools == names)


async def asked(driver, text):
    """Send a message whose reply calls a tool that asks, and wait for the question."""
    await driver.order(text)
    approval = driver.chat.query_one(Approval)
    await driver.until(lambda: approval.display)
    return approval


async def test_a_call_is_folded_in_the_reply_and_opens_with_enter(open_app, tmp_path, store):
    replies = [f"See.{call('calculator', expression='1 [b]')}", "No.", "Ok."]
    scripted = model(tmp_path, *replies)
    async with open_app(scripted) as driver:
        await driver.ready()
        await switch_on(driver, "calculator", "clock")
        await driver.say("How many?")
        assert driver.texts == ["How many?", "See.\n\nNo."]
        assert "▸ calculator(expression=1 [b]) · failed" in driver.screen_text
        assert "cannot be calculated with" not in driver.screen_text
        await driver.press("ctrl+up", "enter")
        assert "▾ calculator(expression=1 [b]) · failed" in driver.screen_text
        assert "error: '[b]' cannot be calculated with" in driver.screen_text
        await driver.press("enter")
        assert "cannot be calculated with" not in driver.screen_text
        chat_id = driver.chat.conversation.chat.id
    async with open_app(scripted, chat_id=chat_id) as driver:
        await driver.shows("▸ calculator(expression=1 [b])")
        await driver.ready()
        assert driver.chat.conversation.chat.tools == ("calculator", "clock")


async def test_nothing_runs_until_the_user_says_yes(open_app, tmp_path, touch):
    replies = [call("touch", why="[b]\x1b[2J"), "Done."]
    async with open_app(model(tmp_path, *replies)) as driver:
        await driver.ready()
        await switch_on(driver, "touch")
        await asked(driver, "Do it")
        assert "The model wants to run touch. Allow it?" in driver.screen_text
        assert r'"why": "[b]\u001b[2J"' in driver.screen_text
        assert not touch.exists()
        await driver.press("down", "enter")
        await driver.idle()
        assert touch.exists()
        assert driver.texts[-1] == "Done."
        assert not driver.chat.query_one(Approval).display
        assert driver.app.focused is driver.prompt


async def test_enter_alone_says_no(open_app, tmp_path, touch):
    moves = ([], ["up"], ["end"], ["pagedown"], ["home"])  # keys that were meant for a message
    async with open_app(model(tmp_path, *[call("touch"), "Then not."] * len(moves))) as driver:
        await driver.ready()
        await switch_on(driver, "touch")
        for keys in moves:
            approval = await asked(driver, "Do it")
            assert approval.query_one(OptionList).highlighted == 0
            await driver.press(*keys, "enter")
            await driver.idle()
            assert not touch.exists()
            assert "touch() · not allowed" in driver.screen_text
            assert driver.texts[-1] == "Then not."


async def test_all_of_a_long_question_can_be_read(open_app, tmp_path, touch):
    hidden = call("touch", why=f"{'and then ' * 50}rm -rf ~{' and then' * 50}")
    async with open_app(model(tmp_path, hidden, "Then not."), size=(60, 20)) as driver:
        await driver.ready()
        await switch_on(driver, "touch")
        await asked(driver, "Do it")
        await driver.shows("e shows all of it")
        await driver.shows("PgDn scrolls", "e")
        assert "e shows all of it" not in driver.screen_text
        assert "rm -rf ~" not in driver.screen_text
        await driver.press("pagedown")
        assert "rm -rf ~" in driver.screen_text
        await driver.press(*["pagedown"] * 4)
        assert 'then"' in driver.screen_text
        await driver.press_and_rest("enter")
        assert not touch.exists()


async def test_esc_is_a_no_and_ends_the_reply(open_app, tmp_path, touch, store):
    async with open_app(model(tmp_path, call("touch"), "never")) as driver:
        await driver.ready()
        await switch_on(driver, "touch")
        approval = await asked(driver, "Do it")
        await driver.press_and_rest("escape")
        assert not touch.exists()
        assert not approval.display
        reply = store.path(1)[-1]
        assert (reply.status, reply.calls[0].status) == ("stopped", "stopped")


async def test_tools_are_listed_switched_and_refused(open_app, tmp_path, touch):
    (tools_dir() / "bad.toml").write_text('name = "bad"\n')
    async with open_app(ScriptedModel([" Hi."])) as driver:
        await driver.ready()
        await driver.order("/tools")
        off = "calculator, clock, manual, python, page, touch"
        listed = f"On: none. Off: {off}."
        await driver.until(lambda: listed in driver.notices)
        assert "bad.toml: 'description' is missing" in driver.problem
        await driver.order("/tools calculator")
        await driver.until(lambda: "Tools of this chat: calculator" in driver.notices)
        await driver.order("/tools calculater")
        await driver.until(lambda: "did you mean 'calculator'?" in driver.problem)
        driver.prompt.text = ""
        assert driver.chat.conversation.chat.tools == ("calculator",)
        await driver.order("/tools none")
        await driver.until(lambda: driver.chat.conversation.chat.tools == ())


async def test_code_is_shown_and_asked_for_each_time(open_app, tmp_path, store):
    code = "for number in range(3):\n    print(number)\nfile = open('made', 'w')\n"
    replies = [call("python", code=code), call("python", code="6 * 7"), "Done."]
    async with open_app(model(tmp_path, *replies), size=(100, 30)) as driver:
        await driver.ready()
        await switch_on(driver, "python")
        approval = await asked(driver, "Run it")
        assert "│ for number in range(3):" in driver.screen_text
        options = approval.query_one(OptionList)
        assert options.option_count == 2
        await driver.press("down", "down", "end", "enter")  # no answer is for more than this call
        await driver.shows("6 * 7")
        await driver.press_and_rest("enter")
        calls = store.path(1)[-1].calls
        assert [(each.status, each.result) for each in calls] == [
            ("done", "0\n1\n2"),
            ("refused", "error: the user did not allow this call"),
        ]


async def started_server(driver):
    """Have a server started that does not end by itself; its process."""
    add_lasting_server(tools_dir())
    await driver.ready()
    await driver.order("/tools demo")
    await driver.until(lambda: driver.chat.conversation.chat.tools)
    return int((tools_dir() / "pid").read_text())


async def test_a_server_ends_with_its_chat(open_app, tmp_path):
    async with open_app(model(tmp_path, "Hi.")) as driver:
        pid = await started_server(driver)
        await driver.press("ctrl+n")
        assert ends(pid)


async def test_a_chat_begun_anew_keeps_its_tools(open_app, tmp_path, touch):
    async with open_app(model(tmp_path, "Hi.")) as driver:
        await driver.ready()
        await switch_on(driver, "touch")
        (tools_dir() / "touch.toml").unlink()
        await driver.order("/template own")
        assert not driver.problem
        assert driver.chat.conversation.chat.tools == ("touch",)
        await driver.order("Do it")
        await driver.until(lambda: "there is no tool 'touch'" in driver.problem)
        assert driver.prompt.text == "Do it"


@pytest.fixture
def silent():
    """A server that never answers."""
    tools_dir().mkdir(parents=True)
    (tools_dir() / "silent.toml").write_text('name = "silent"\nserver = ["sleep", "600"]\n')


@pytest.mark.parametrize("command", ["/tools", "/tools silent"])
async def test_a_server_that_does_not_answer_holds_nothing_up(open_app, tmp_path, silent, command):
    async with open_app(model(tmp_path, "Hi.")) as driver:
        await driver.ready()
        await driver.order(command)
        if command == "/tools":
            await driver.until(lambda: "Asking silent for tools …" in driver.notices)
        await driver.say("Hello")
        assert driver.texts == ["Hello", "Hi."]
        assert driver.problem == ""
        await driver.order(command)
        assert "another command is still running; Esc stops it" in driver.problem
        driver.prompt.text = ""
        await driver.press("escape")
        await driver.until(lambda: "silent: stopped before it had listed" in driver.problem)
        await driver.order("/tools clock")
        await driver.until(lambda: "Tools of this chat: clock" in driver.notices)


async def test_tools_that_come_late_are_not_another_chats(open_app, tmp_path, silent):
    async with open_app(model(tmp_path, "Hi.")) as driver:
        await driver.ready()
        await driver.order("/tools silent")
        await driver.press("ctrl+n")
        await driver.until(lambda: not driver.app.workers)
        assert (driver.problem, driver.prompt.text) == ("", "")


@pytest.fixture
def readers(monkeypatch):
    """The threads that have asked a session for its writer, which may read a prompt file."""
    threads = []
    read = Session.writer.fget
    assert read is not None

    def noted(session):
        threads.append(threading.current_thread())
        return read(session)

    monkeypatch.setattr(Session, "writer", property(noted))
    return threads


async def test_choosing_and_listing_tools_reads_no_prompt_file_on_the_event_loop(
    open_app, tmp_path, readers
):
    async with open_app(model(tmp_path, "Hi.")) as driver:
        await driver.ready()
        await driver.idle()
        readers.clear()
        await switch_on(driver, "calculator")
        await driver.order("/tools")
        await driver.until(lambda: "On: calculator." in " ".join(driver.notices))
        await driver.order("/tools nosuch")
        await driver.until(lambda: "nosuch" in driver.problem)
        assert readers
        assert threading.main_thread() not in readers
