"""Pictures of the screens, compared with those that somebody has looked at.

`pytest tests/tui/test_snapshots.py --snapshot-update` takes them anew.
"""

import pytest
from chat_scenes import CHAT_SCENES
from inspector_scenes import INSPECTOR_SCENES
from scenes import SETTINGS, SMALL, USUAL
from screen_scenes import SCREEN_SCENES
from tui_driver import Driver

from chatapp.tui.app import ChatApp

SCENES = CHAT_SCENES | SCREEN_SCENES | INSPECTOR_SCENES
PICTURES = [(name, USUAL) for name, scene in SCENES.items() if scene.pictured]
PICTURES += [(name, SMALL) for name in ("streaming", "attention")]


@pytest.mark.parametrize(
    ("name", "size"),
    PICTURES,
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
def test_picture(snap_compare, store, stage, name, size):
    scene = SCENES[name]
    app = ChatApp(SETTINGS, load=lambda: scene.make_model(stage), store=store)

    async def play(pilot):
        driver = Driver(app, pilot)
        await driver.ready()
        await scene.act(driver)
        await driver.listed()

    assert snap_compare(app, terminal_size=size, run_before=play)
