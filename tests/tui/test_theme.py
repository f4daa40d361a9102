"""A theme that was chosen is there at the next start."""

from chatapp.common.paths import settings_path
from chatapp.common.settings import Settings, load_settings


async def test_a_chosen_theme_is_remembered(open_app):
    async with open_app(settings=load_settings()) as driver:
        assert not settings_path().exists()
        assert driver.app.theme == Settings().theme == "chatapp", "the program's own"
        await driver.order("/theme nord")
        await driver.until(settings_path().exists)
        await driver.order("/theme chatapp")
        await driver.until(lambda: load_settings().theme == "chatapp")
    async with open_app(settings=load_settings()) as driver:
        assert driver.app.theme == "chatapp"


async def test_a_theme_that_is_no_more_stays_in_the_file(open_app):
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text('theme = "[b]gone[/b]"\n')
    async with open_app(settings=load_settings()) as driver:
        await driver.until(
            lambda: any("'[b]gone[/b]'" in each.message for each in driver.app._notifications)
        )
        await driver.settle()
    assert settings_path().read_text() == 'theme = "[b]gone[/b]"\n'
