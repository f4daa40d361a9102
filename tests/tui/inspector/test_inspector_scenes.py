"""Every scene of this kind shows in a small and in a wide terminal what it is there to show."""

import pytest
from inspector_scenes import INSPECTOR_SCENES
from scenes import check_small_and_wide, played


@pytest.mark.parametrize("name", INSPECTOR_SCENES)
async def test_what_it_shows(open_app, stage, name):
    await check_small_and_wide(open_app, stage, INSPECTOR_SCENES[name])


@pytest.mark.parametrize("name", ["tokens", "attention"])
async def test_list_chat_and_inspector_stand_side_by_side(open_app, stage, name):
    async with played(open_app, stage, INSPECTOR_SCENES[name], (130, 40)) as driver:
        first, *_, last = driver.screen_text.split("\n")
        assert first.split()[:8] == "Chats Tell me about the sea. ▌ 1".split()
        assert "^Q Quit" in last
        assert "Esc closes" in last
        assert INSPECTOR_SCENES[name].shows[0][:20] in driver.sentences
