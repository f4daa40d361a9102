"""Every scene of this kind shows in a small and in a wide terminal what it is there to show."""

import pytest
from scenes import check_small_and_wide
from screen_scenes import SCREEN_SCENES


@pytest.mark.parametrize("name", SCREEN_SCENES)
async def test_what_it_shows(open_app, stage, name):
    await check_small_and_wide(open_app, stage, SCREEN_SCENES[name])
