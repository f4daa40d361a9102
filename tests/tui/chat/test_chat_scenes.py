"""Every scene of this kind shows in a small and in a wide terminal what it is there to show."""

import pytest
from chat_scenes import CHAT_SCENES
from scenes import check_small_and_wide


@pytest.mark.parametrize("name", CHAT_SCENES)
async def test_what_it_shows(open_app, stage, name):
    await check_small_and_wide(open_app, stage, CHAT_SCENES[name])
