"""Tokens per second and peak memory of pretraining, beside a plain torch loop.

The bundled model's shape with random weights, windows of 512 tokens, eight a step. The loop is what
one writes by hand: transformers' GPT-2, AdamW, clipped gradients, a cosine schedule, autocast in
bfloat16. Each measurement is a process of its own on one core, in turn, by the core's time.
Run with `pytest -m benchmark -s tests/benchmarks/test_pretrain_loop.py`.
"""

import json
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from scale import check_finite, is_tiny, sized
from shared_data import shared_data
from test_finetune_trl import by_itself

WARM, STEPS, ROWS, WINDOW = sized((3, 12, 8, 512), (1, 1, 2, 8))
VOCABULARY, LAYERS, HEADS, HIDDEN = sized((4096, 6, 6, 192), (300, 1, 2, 8))
TURNS = sized(3, 1)

Marks = list[float]
"""The time at the beginning of each step."""


def pretrained(precision: str) -> Marks:
    from rich.console import Console

    from finetune.config.sections import PretrainConfig
    from finetune.pretrain import pretrain
    from finetune.training.loop import Loop

    marks, original = [], Loop._take

    def step(loop: Loop, batches: Any) -> None:
        marks.append(time.process_time())
        original(loop, batches)

    Loop._take = step  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        rows = json.loads((shared_data() / "instruct" / "raschka_1100.json").read_text())
        text.write_text("\n".join(row["output"] for row in rows))
        shape = {"layers": LAYERS, "heads": HEADS, "hidden": HIDDEN, "vocabulary": VOCABULARY}
        train = {"batch_size": ROWS, "max_steps": WARM + STEPS + 1, "window": WINDOW}
        config = {
            "output": str(Path(folder, "run")),
            "data": {"train": [{"path": str(text)}], "held_out": 0.0},
            "shape": shape,
            "train": train | {"precision": precision, "save_every": 1000},
        }
        with open("/dev/null", "w") as nowhere:
            pretrain(PretrainConfig.model_validate(config), Console(file=nowhere))
    return marks


def network() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": HIDDEN, "vocab_size": VOCABULARY}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config)


def random_windows() -> Any:
    import torch

    return torch.randint(VOCABULARY, ((WARM + STEPS + 1) * ROWS, WINDOW))


def looped(precision: str) -> Marks:
    import torch

    model = network()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, WARM + STEPS + 1)
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    marks = []
    for ids in random_windows().split(ROWS):
        marks.append(time.process_time())
        with autocast:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        check_finite(loss.item())
    return marks


SIDES = {"loop": looped, "ours": pretrained}


def figures(who: str, precision: str) -> dict[str, float]:
    """Tokens per second and peak memory. To be measured in a process of its own."""
    from finetune.training.display import peak_memory

    marks = SIDES[who](precision)
    seconds = marks[WARM + STEPS] - marks[WARM]
    return {"tokens_per_second": STEPS * ROWS * WINDOW / seconds, "peak": peak_memory()}


@pytest.mark.benchmark
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_pretraining_is_as_fast_as_a_plain_loop(precision: str, data: None) -> None:
    rates: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for who in SIDES:
            row = figures(who, precision) if is_tiny() else by_itself(__file__, who, precision)
            check_finite(*row.values())
            rates.setdefault(who, []).append(row["tokens_per_second"])
            print(f"\n{who} {precision}: {row['tokens_per_second']:,.0f} tokens/s, "
                  f"peak {row['peak'] / 2**30:.2f} GiB", end="")  # fmt: skip
    if is_tiny():
        return
    ratio = median(rates["ours"]) / median(rates["loop"])
    print(f"\nagainst the loop: {ratio:.2f}")
    assert ratio >= 1.0


if __name__ == "__main__":
    print(json.dumps(figures(*sys.argv[1:])))
