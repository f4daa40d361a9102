"""Tokens per second and peak memory of DPO and GRPO, beside TRL's DPOTrainer and GRPOTrainer.

The same random GPT-2 weights, full tuning in float32, no gradient checkpointing. DPO: the same
pairs as the same tokens in the same order; the time is that of the whole run, and so has our
reference, computed once, as well as TRL's, computed beside each step. GRPO: the same prompts, as
many replies of as many tokens to each, and the same check; the time is that of whole steps,
drawing included, by the engine here and by transformers' `generate` there.
Each measurement is a process of its own on one core, by the core's time, which other work on the
machine does not change. Needs trl, and the folder of the shared data in SHARED_DATA. Run with
`pytest -m benchmark -s tests/benchmarks/test_feedback_trl.py`.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scale import check_finite, is_tiny, sized
from shared_data import shared_data
from test_finetune_trl import SMALL, TURNS, by_itself, clock, make_model, taken, with_trl

STEPS, PAIRS = sized((12, 8), (2, 2))
DRAWS, PROMPTS, REPLIES, TOKENS = sized((4, 4, 8, 32), (2, 2, 2, 4))
LETTER = "z"


def setup(folder: Path, rows: int, **objective: Any) -> Any:
    """The first rows of the preferences, for one objective."""
    from finetune.config.sections import FinetuneConfig
    from finetune.training.setup import set_up_run

    path = folder / "rows.json"
    pairs = json.loads((shared_data() / "preference" / "raschka_1100_preference.json").read_text())
    pairs = [each for each in pairs if each["chosen"] != each["rejected"]][:rows]
    if objective["kind"] == "grpo":
        keys = ("instruction", "input", "output")
        pairs = [{key: each[key] for key in keys} for each in pairs]
    path.write_text(json.dumps(pairs))
    return set_up_run(
        FinetuneConfig.model_validate(
            {
                "model": str(folder),
                "output": str(folder / "run"),
                "data": {"train": str(path), "held_out": 0.0},
                "objective": objective,
                "train": {
                    "batch_size": PAIRS if objective["kind"] == "dpo" else PROMPTS,
                    "precision": "float32", "epochs": 1, "learning_rate": 1e-5, "warmup": 0.0,
                },
            }
        )
    )  # fmt: skip


def grpo_material(folder: Path) -> Any:
    checks = [{"kind": "regex", "pattern": LETTER}]
    drawn = {"replies": REPLIES, "max_tokens": TOKENS, "rewards": checks}
    return setup(folder, DRAWS * PROMPTS, kind="grpo", **drawn)


def arguments(output: Path, rows: int) -> dict[str, Any]:
    return {
        "output_dir": str(output), "use_cpu": True, "bf16": False, "num_train_epochs": 1,
        "per_device_train_batch_size": rows, "gradient_checkpointing": False,
        "learning_rate": 1e-5, "report_to": "none", "save_strategy": "no", "logging_steps": 1,
        "disable_tqdm": True,
    }  # fmt: skip


def ours_dpo(folder: Path) -> dict[str, float]:
    from rich.console import Console

    from finetune.training.setup import keep_reference

    made = setup(folder, STEPS * PAIRS, kind="dpo")
    begun = time.process_time()
    keep_reference(made, folder / "run", Console(quiet=True))
    told = taken(made, folder / "run", STEPS)
    seconds = time.process_time() - begun
    return {"rate": told.marks[-1][1] / seconds, "chosen_logp": told.first["chosen_logp"]}


def trl_dpo(folder: Path) -> dict[str, float]:
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from finetune.data.batches import BucketSampler
    from finetune.data.packing import response_labels

    rows = setup(folder, STEPS * PAIRS, kind="dpo").data.train
    pairs = []
    for index in BucketSampler(rows.lengths, PAIRS, 0):
        chosen, rejected = rows.first.examples[index], rows.second.examples[index]
        begun = int(response_labels(chosen).argmax())
        pairs.append(
            {
                "prompt_ids": chosen.ids[:begun].tolist(),
                "chosen_ids": chosen.ids[begun:].tolist(),
                "rejected_ids": rejected.ids[begun:].tolist(),
            }
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        args=DPOConfig(**arguments(folder / "trl", PAIRS)),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": "a", "chosen": " b", "rejected": " c"}]
        ),
        processing_class=tokenizer,
    )
    trainer.train_dataset = datasets.Dataset.from_list(pairs)
    trainer._get_train_sampler = lambda dataset=None: None  # the order in which they stand
    begun_at = time.process_time()
    trainer.train()
    seconds = time.process_time() - begun_at
    first, last = trainer.state.log_history[0], trainer.state.log_history[-2]
    return {"rate": last["num_tokens"] / seconds, "chosen_logp": first["logps/chosen"]}


def ours_grpo(folder: Path) -> dict[str, float]:
    told = taken(grpo_material(folder), folder / "run", DRAWS)
    return of_steps(told) | {"length": told.first["length"]}


def trl_grpo(folder: Path) -> dict[str, float]:
    import datasets
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    asked = grpo_material(folder).data.train.asked
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [float(LETTER in each) for each in completions],
        args=GRPOConfig(
            **arguments(folder / "trl", PROMPTS * REPLIES),
            num_generations=REPLIES, max_completion_length=TOKENS,
        ),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": tokenizer.decode(each.ids)} for each in asked]
        ),
        processing_class=tokenizer,
    )  # fmt: skip
    told = clock(lambda: trainer.state.num_input_tokens_seen, DRAWS)
    trainer.add_callback(told)
    trainer.train()
    return of_steps(told) | {"length": trainer.state.log_history[0]["completions/mean_length"]}


def of_steps(told: Any) -> dict[str, float]:
    """Tokens a second after the first step."""
    (begun, before), (ended, after) = told.marks[0], told.marks[-1]
    return {"rate": (after - before) / (ended - begun)}


RUNS = {"trl dpo": trl_dpo, "our dpo": ours_dpo, "trl grpo": trl_grpo, "our grpo": ours_grpo}


def figures(who: str, folder: str) -> dict[str, float]:
    """What one side takes. To be measured in a process of its own."""
    from finetune.training.display import peak_memory

    return RUNS[who](Path(folder)) | {"peak": peak_memory() / 2**30}


def sides(method: str, folder: Path) -> list[dict[str, float]]:
    """TRL and ours, each the faster of the runs that were taken in turn."""
    names = with_trl(f"trl {method}", f"our {method}")
    make_model(folder, SMALL)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(TURNS):
        for who, runs in found.items():
            run = figures if is_tiny() else partial(by_itself, __file__)
            runs.append(run(who, str(folder)))
            print(f"\n{who}: {runs[-1]}", end="")
            check_finite(runs[-1]["rate"], runs[-1]["peak"])
    return [max(runs, key=lambda run: run["rate"]) for runs in found.values()]


@pytest.mark.benchmark
def test_dpo_begins_where_trl_does_and_is_as_fast_in_less_memory(
    data: None, tmp_path: Path
) -> None:
    *trls, ours = sides("dpo", tmp_path)
    if is_tiny():
        return
    (trl,) = trls
    assert ours["chosen_logp"] == pytest.approx(trl["chosen_logp"], rel=1e-4)
    assert ours["rate"] >= trl["rate"]
    assert ours["peak"] < trl["peak"]


@pytest.mark.benchmark
def test_grpo_draws_as_long_replies_as_trl_and_is_as_fast_in_less_memory(
    data: None, tmp_path: Path
) -> None:
    *trls, ours = sides("grpo", tmp_path)
    if is_tiny():
        return
    (trl,) = trls
    assert ours["length"] == pytest.approx(trl["length"], rel=0.05)
    assert ours["rate"] >= trl["rate"]
    assert ours["peak"] < trl["peak"]


if __name__ == "__main__":
    print(json.dumps(figures(*sys.argv[1:])))
