"""The inspector on a chat with a server: what was sent, and how likely the server said it was."""

import math

import pytest
from completions_server import CompletionsServer, delta, replied
from textual.widgets import Static

from chatapp.engine.models.loading import load_model


def told(token, *others):
    """An event with a token and the likeliest ones in its place."""
    tops = [{"token": text, "logprob": math.log(share)} for text, share in others]
    logprob = math.log(dict(others).get(token, 0.01))
    row = {"token": token, "logprob": logprob, "top_logprobs": tops}
    return delta(content=token, logprobs={"content": [row]})


@pytest.fixture
def server():
    with CompletionsServer().running() as server:
        server.protocols = ("chat/completions", "completions")
        server.models = [{"id": "tiny", "max_model_len": 512}]
        server.stream = [
            told("Paris", ("Lyon", 0.5), ("Paris", 0.25)),
            told(" it\x1b[2J", (" is", 0.5)),
            *replied("!"),
        ]
        yield server


async def look(driver):
    await driver.press("f3")
    await driver.until(lambda: "of reply" in words(driver, "inspector-about"))
    await driver.until(lambda: words(driver, "tokens-detail"))
    await driver.idle()


def words(driver, id):
    """What a part of the inspector says; nothing before the inspector stands there."""
    return "".join(str(static.content) for static in driver.chat.query(f"#{id}").results(Static))


async def test_tokens_of_a_chat_with_a_server(open_app, server):
    async with open_app(load=lambda: load_model(server.url), size=(160, 40)) as driver:
        await driver.ready()
        assert "server's own" in driver.screen_text
        await driver.say("Where?")
        await look(driver)
        assert "3 of reply · template server's own" in words(driver, "inspector-about")
        detail = words(driver, "tokens-detail")
        assert "p 25.0%" in detail
        assert "rank 2" in detail
        assert "entropy" not in detail
        assert " 1   │Lyon│" in driver.screen_text
        await driver.press("right")
        await driver.until(lambda: "p 1.0%" in words(driver, "tokens-detail"))
        assert "rank" not in words(driver, "tokens-detail")
        assert "\x1b" not in driver.screen_text
        await driver.press("right")
        assert "cannot be inspected" in words(driver, "tokens-detail")
        await driver.press("1")
        assert words(driver, "prompt-text") == "User:\nWhere?\n\nAssistant:\nParis it␛[2J!"
        assert "are sent as messages" in words(driver, "prompt-notes")


async def test_a_server_that_has_neither_protocol(open_app, server):
    server.protocols = ()
    async with open_app(load=lambda: load_model(server.url)) as driver:
        await driver.until(lambda: driver.problem)
        assert "offers neither chat nor completions" in driver.problem
