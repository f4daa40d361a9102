"""The inspector follows the model from step to step of a run."""

from inspector_driver import notes, text_of, words
from tiny import write_tiny_gpt2

from chatapp.common.settings import Settings
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import used_models
from chatapp.tui.inspector.tabs import TokensView


async def test_the_keys_step_through_a_run(open_app, tmp_path):
    steps = [str(write_tiny_gpt2(tmp_path / "steps" / name)) for name in ("0", "8")]
    settings = Settings(model=steps[1], precision="float32", device="cpu")
    async with open_app(load=lambda: load_model(steps[1]), settings=settings) as driver:
        await driver.ready()
        await driver.press("f3")
        await driver.until(lambda: "step 8 of the run" in words(driver, "inspector-about"))
        texts = text_of(driver, TokensView).texts
        await driver.press("shift+left")
        await driver.until(lambda: "step 0 of the run" in words(driver, "inspector-about"))
        model = driver.chat.conversation.model
        assert model.name == driver.chat.widgets.status.model == steps[0]
        assert text_of(driver, TokensView).texts == texts
        await driver.press("shift+left")
        await driver.until(lambda: "no run that kept another" in notes(driver))
        assert not used_models()
