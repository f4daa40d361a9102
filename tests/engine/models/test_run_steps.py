"""The kept steps of a run, in order, and the one beside a model."""

import pytest

from chatapp.engine.models.resolving import kept_steps, step_beside, step_of


@pytest.fixture
def run(tmp_path):
    """A finished run that kept three steps, and one that is being written."""
    for name in ("steps/0", "steps/4", "steps/16", "steps/23.unfinished", "."):
        folder = tmp_path / "run" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
    return tmp_path / "run"


def test_the_run_comes_after_its_last_step(run):
    assert kept_steps(run) == [0, 4, 16]
    names = [str(run)]
    while (name := step_beside(names[0], -1)) is not None:
        names.insert(0, name)
    assert names == [*(str(run / "steps" / step) for step in ("0", "4", "16")), str(run)]
    assert [step_of(name) for name in names] == [0, 4, 16, None]
    assert step_beside(names[1], 1) == names[2]
    assert step_beside(str(run), 1) is None


def test_an_unfinished_run_ends_with_its_last_step(run):
    (run / "config.json").unlink()
    assert step_beside(str(run / "steps" / "16"), 1) is None


@pytest.mark.parametrize("model", ["bundled", "owner/name", "", "steps/x", "http://host/v1"])
def test_other_models_have_none_beside_them(model):
    assert step_of(model) is None
    assert step_beside(model, -1) is step_beside(model, 1) is None
