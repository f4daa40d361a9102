"""Peak memory, also where Python has no module `resource`."""

import importlib
import sys

from finetune.training.display import peak_memory


def test_what_was_held_stays_in_the_peak():
    before = peak_memory()
    bytearray(b"x" * 2**27)
    assert peak_memory() >= before > 2**24


def test_without_the_module_resource_training_can_start_and_tell_what_is_held(monkeypatch):
    """As on Windows, where that import fails: all modules are imported once more without it."""
    known = {name: each for name, each in sys.modules.items() if name.split(".")[0] == "finetune"}
    monkeypatch.setitem(sys.modules, "resource", None)
    try:
        for name in known:
            del sys.modules[name]
        for name in ("run", "pretrain", "cli"):
            importlib.import_module(f"finetune.{name}")
        display = importlib.import_module("finetune.training.display")
        assert display.peak_memory is not peak_memory
        assert display.peak_memory() > 2**24
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "finetune"]:
            del sys.modules[name]
        sys.modules.update(known)
