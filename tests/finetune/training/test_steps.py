"""What a run's steps cost, measured on real ones that leave nothing behind."""

import tiny_finetune as tiny
from rich.console import Console
from transformers import AutoModelForCausalLM

from finetune.config.sections import FinetuneConfig
from finetune.measuring.run_report import header
from finetune.run import examine, show
from finetune.training.building import FEW_STEPS, steps_of_run, timed_steps, too_few
from finetune.training.setup import set_up_run


def test_timed_steps(tmp_path):
    config = tiny.config(tmp_path, train={"method": "last-blocks", "last_blocks": 1})
    parameters, seconds, memory = timed_steps(set_up_run(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    expected = [*model.transformer.h[1].parameters(), *model.transformer.ln_f.parameters()]
    assert parameters == sum(each.numel() for each in expected)
    assert seconds > 0
    assert memory > 10**7
    assert not (tmp_path / "run").exists()


def test_the_defaults_train_a_small_set_in_many_steps(tmp_path):
    tiny.base(tmp_path / "base")
    config = FinetuneConfig.model_validate(
        {
            "model": str(tmp_path / "base"),
            "output": str(tmp_path / "run"),
            "data": {"train": str(tiny.pairs(tmp_path / "rows.json", 200))},
        }
    )
    setup = set_up_run(config)
    examples = setup.data.examples
    assert steps_of_run(config.train, len(setup.data.train)) == 2 * -(-examples // 8) >= FEW_STEPS
    assert too_few(steps_of_run(config.train, len(setup.data.train))) == ""
    assert "about 8 examples a step" in "\n".join(header(setup))


def test_a_run_of_few_steps_is_warned_of(tmp_path):
    config = tiny.config(tmp_path, train={"batch_size": 32})
    told = "\n".join(header(set_up_run(config)))
    assert "2 steps are few to learn from; raise train.epochs, or lower train.batch_size" in told
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(examine(config), console)
    assert "2 steps are few to learn from" in console.export_text()
