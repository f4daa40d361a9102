"""The blind test on the screen: a key an answer, and nothing that gives the origin away."""

import asyncio

from chatapp.tasks.evaluation.blind_test import Trial
from chatapp.tui.blind import BlindTestApp

TRIALS = [
    Trial("It was [b]late", "and \x1b[2Jdark.", "human"),
    Trial("She went", "home.", "machine"),
    Trial("They ate", "bread.", "control"),
]


def shown(app: BlindTestApp) -> str:
    return "\n".join(str(app.query_one(f"#{part}").render()) for part in ("place", "text", "keys"))


async def press(app: BlindTestApp, key: str) -> None:
    """Press a key, without waiting for an idle CPU, which a busy machine never is."""
    app.simulate_key(key)
    for _ in range(200):
        await asyncio.sleep(0)


async def test_each_key_is_an_answer_until_the_last() -> None:
    app = BlindTestApp(TRIALS)
    async with app.run_test():
        first = shown(app)
        assert "Text 1 of 3" in first
        assert "It was [b]late … and" in first
        assert "\x1b" not in first
        assert "D don't know" in first
        await press(app, "x")
        await press(app, "enter")
        assert app.verdicts == []
        await press(app, "h")
        assert "Text 2 of 3" in shown(app)
        await press(app, "d")
        await press(app, "M")
    assert app.verdicts == ["human", "unknown", "machine"]
    assert app.failure is None


async def test_the_screen_does_not_depend_on_the_origin() -> None:
    texts = set()
    for origin in ("human", "machine", "control"):
        app = BlindTestApp([Trial("She went", "home.", origin)])
        async with app.run_test():
            texts.add(shown(app))
    assert len(texts) == 1


async def test_one_may_stop_early() -> None:
    app = BlindTestApp(TRIALS)
    async with app.run_test():
        await press(app, "m")
        await press(app, "ctrl+q")
    assert app.verdicts == ["machine"]
