"""What a run's steps cost, measured on real ones that leave nothing behind."""

from pathlib import Path

import tiny_finetune as tiny
from transformers import AutoModelForCausalLM

from finetune.material import gather
from finetune.steps import timed_steps


def test_timed_steps(tmp_path: Path) -> None:
    config = tiny.config(tmp_path, train={"method": "last-blocks", "last_blocks": 1})
    parameters, seconds, memory = timed_steps(gather(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    expected = [*model.transformer.h[1].parameters(), *model.transformer.ln_f.parameters()]
    assert parameters == sum(each.numel() for each in expected)
    assert seconds > 0
    assert memory > 10**7
    assert not (tmp_path / "run").exists()
