"""Peak memory, also where Python has no module `resource`."""

import subprocess
import sys
from pathlib import Path

from finetune.training.display import peak_memory

# As on Windows, where the import fails; packages that ask for it elsewhere come first.
WITHOUT_RESOURCE = """
import sys
from transformers import Trainer
sys.modules["resource"] = None
import finetune.run, finetune.pretrain, finetune.check
from finetune.training.display import peak_memory
print(peak_memory())
"""


def test_what_was_held_stays_in_the_peak() -> None:
    before = peak_memory()
    bytearray(b"x" * 2**27)
    assert peak_memory() >= before > 2**24


def test_without_the_module_resource_training_starts_and_tells_what_is_held() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RESOURCE],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2**24
