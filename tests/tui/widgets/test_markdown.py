"""Replies as Markdown: by default, while they are written, and never more than text."""

import threading

import pytest
from fakes import ScriptedModel
from markdown_it import MarkdownIt
from textual.widgets import Static
from tui_driver import fill

from chatapp.common.settings import Settings
from chatapp.tui.widgets.markdown import RenderedBody
from chatapp.tui.widgets.message_parts import TextBody

REPLY = "# Sea\n\nIt is *very* **wide**:\n\n- one\n- two\n\n```python\nx = [1]\n```\n"
HOSTILE = [
    "<b>bold</b> and <script>x</script>\n\n<div>block</div>",
    "entities &#27;[2J &#x9b;2J &lt;b&gt; &nbsp;",
    "[link](javascript:alert(1)) ![picture](file:///etc/passwd) <http://a.b/[/b]>",
    "| [/b] | [@click=app.quit]x[/] |\n|---|---|\n| [b]cell | \x1b[2J |\n| only one |",
    "```[b]odd lexer\n[/b] \x1b]52;c;eA==\x07\n```\n\n```\nnot closed",
    "999999999. one\n\n\n* a\n    * b\n        * c",
    "> " * 200 + "deep",
    "[" * 500 + "*" * 500 + "_" * 500,
    "# [/b] heading [link=x]\n\n####### seven\n\nsetext\n===\n\n---\n",
    "\ud800 lone \u202e right to left \x00",
    "[a]: http://x\n\n[a] [b][a] [^1]\n\n[^1]: note",
    "\t code\n\n    more [/b]\n",
    "|a|\n|-|\n",
    "~~struck~~ `code [/b]` \\[escaped\\] www.example.org",
]


def rendered(driver):
    """The replies that are shown as Markdown."""
    return [body for body in driver.transcript.query(RenderedBody) if body.display]


async def test_the_lines_of_a_poem_stay_lines(open_app):
    poem = "Roses are red,\nviolets are *blue*\n\n- one\n  and more\n\nnotes.md"
    async with open_app(ScriptedModel([poem]), markdown="on") as driver:
        await driver.say("Hello")
        rows = [row.strip() for row in driver.screen_text.split("\n")]
        place = rows.index("Roses are red,")
        assert rows[place : place + 7] == [
            "Roses are red,", "violets are blue", "", "• one", "and more", "", "notes.md",
        ]  # fmt: skip


async def test_it_is_opt_in_and_remembered(open_app, store):
    async with open_app(ScriptedModel([REPLY])) as driver:
        await driver.say("Hello")
        assert "**wide**" in driver.screen_text
        await driver.order("/markdown on")
        await driver.until(lambda: rendered(driver))
        assert "It is very wide:" in driver.screen_text
        assert "• one" in driver.screen_text
        assert "**" not in driver.screen_text
        assert "```" not in driver.screen_text
        await driver.order("/markdown off")
        assert "**wide**" in driver.screen_text
        await driver.order("/markdown on")
        await driver.press("ctrl+n")
        await driver.say("Plain")
        assert "**wide**" in driver.screen_text
        assert [store.chat(id).markdown for id in (1, 2)] == [True, False]
    async with open_app(chat_id=1) as driver:
        await driver.until(lambda: rendered(driver))
        assert "It is very wide:" in driver.screen_text
        await driver.press("ctrl+up", "y")
        assert driver.app.clipboard == REPLY.strip()


async def test_it_is_the_default_and_a_setting_turns_it_off(open_app, store):
    assert Settings().markdown == "on"
    async with open_app(ScriptedModel([REPLY, REPLY]), markdown="on") as driver:
        await driver.say("Hello")
        await driver.until(lambda: rendered(driver))
        await driver.order("/markdown off")
        await driver.press("ctrl+n")
        await driver.say("Hello")  # a new chat has the setting again
        await driver.until(lambda: rendered(driver))
    assert [store.chat(id).markdown for id in (1, 2)] == [False, True]


async def test_a_reply_is_laid_out_while_it_is_written(open_app, monkeypatch):
    parsed: list[str] = []
    parse = MarkdownIt.parse

    def counted(parser, text, names=None):
        parsed.extend([text] if text else [])
        return parse(parser, text, names)

    monkeypatch.setattr(MarkdownIt, "parse", counted)
    halted = threading.Event()

    class Halting(ScriptedModel):
        count = 0

        def _wait(self, cancel):
            self.count += 1
            if self.count > 10:
                self.gate = halted
            return super()._wait(cancel)

    model = Halting(["**one**\n\n- two\n\n```python\nx = 1\n```\n" + "**so** " * 20 + "end"])
    async with open_app(model, markdown="on") as driver:
        await driver.order("Hello")
        await driver.until(lambda: rendered(driver))
        assert "**one**" not in driver.screen_text
        halted.set()
        await driver.idle()
        await driver.until(lambda: "so so end" in driver.sentences)
        assert "• two" in driver.screen_text
        assert "```" not in driver.screen_text
        assert "one" in parsed[0]
        assert "one" not in parsed[-1], "only the end of it is laid out anew"
        assert not driver.transcript.views[-1].query_one(TextBody).display


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_foreign_text_is_only_text(open_app, store, text):
    chat_id = fill(store, ["Hello", text])
    store.set_markdown(chat_id, True)
    opened = []
    async with open_app(chat_id=chat_id, size=(80, 40)) as driver:
        driver.app.open_url = lambda url, **options: opened.append(url)
        await driver.until(lambda: rendered(driver))
        assert not [each for each in driver.screen_text if each < " " and each != "\n"]
        assert "\x9b" not in driver.screen_text
        assert "\u202e" not in driver.screen_text
        tooltips = [each.tooltip for each in driver.transcript.query("*") if each.tooltip]
        assert not tooltips
        await driver.settle()
        assert not opened
        assert driver.app.is_running


async def test_no_html_and_no_entity_is_lost(open_app, store):
    chat_id = fill(store, ["Hello", HOSTILE[0], "Hello", HOSTILE[1]])
    store.set_markdown(chat_id, True)
    async with open_app(chat_id=chat_id, size=(80, 40)) as driver:
        await driver.until(lambda: len(rendered(driver)) == 2)
        for words in ("<b>bold</b>", "<script>x</script>", "<div>block</div>", "&#27;[2J"):
            assert words in driver.screen_text


async def test_a_message_of_the_user_stays_as_it_is_written(open_app, store):
    chat_id = fill(store, ["*Hello*", "*Hi*"])
    store.set_markdown(chat_id, True)
    async with open_app(chat_id=chat_id) as driver:
        await driver.until(lambda: rendered(driver))
        assert "*Hello*" in driver.screen_text
        assert "*Hi*" not in driver.screen_text
        assert not driver.transcript.views[0].query(RenderedBody)
        assert driver.transcript.views[1].query(Static)


async def test_it_grows_as_if_laid_out_at_once(open_app, store):
    whole = (
        REPLY + "1. a\n2. b\n\n   more\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n[n]: http://x\n\nend"
    )
    chat_id = fill(store, ["Hello", whole, "Hello", REPLY])
    store.set_markdown(chat_id, True)
    async with open_app(chat_id=chat_id, size=(80, 70)) as driver:
        await driver.until(lambda: len(rendered(driver)) == 2)
        at_once, growing = rendered(driver)
        for end in range(len(whole) + 1):
            growing.show(whole[:end])
        await driver.settle()
        rows = [
            [str(body.render_line(y)) for y in range(body.size.height)]
            for body in (at_once, growing)
        ]
        assert rows[0] == rows[1]
        assert len(rows[0]) > 15
        styles = {
            str(segment.style)
            for y in range(at_once.size.height)
            for segment in at_once.render_line(y)
            if segment.text.strip()
        }
        assert len(styles) >= 5, "code is coloured"
