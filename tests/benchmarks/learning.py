"""What teaching costs and gives: λ of the prompts, and the speed of pretraining.

`python tests/benchmarks/learning.py (loop|ours) (float32|bfloat16)` measures one side of the speed
in a process of its own, on one core, by the core's time, which other work does not change.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from measure import ROOT, Table, is_tiny, sized
from shared_data import shared_data

SHAPE = sized((6, 6, 192, 4096), (1, 2, 8, 300))
"""Layers, heads, hidden size and vocabulary: the bundled model's."""
ROWS, WINDOW, WARM, STEPS = sized((8, 512, 3, 12), (2, 8, 1, 1))

Marks = list[float]
"""The time at the beginning of each step."""


def lambda_table() -> Table:
    """Loss on held-out replies after training with prompts that count λ times."""
    prompts, seeds = sized((400, 150), (12, 6)), sized((0, 1, 2), (0,))
    weights = sized((0.0, 0.25, 1.0), (0.0, 1.0))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_prompts(folder, *prompts)
        for weight in weights:
            results = [_taught(folder, weight, seed) for seed in seeds]
            rows.append((f"{weight:g}", _mean(results)))
    count = (
        f"bundled, one epoch over {prompts[0]} prompts of the P3 collection at 1e-3, nats a "
        f"token on {prompts[1]} others; n = {len(seeds)} seeds, ± between them"
    )
    return Table(("λ", "loss of held-out replies"), rows, count)


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _write_prompts(folder: Path, train: int, held_out: int) -> None:
    """Write train.jsonl and held_out.jsonl from prompts of at most 700 characters."""
    path = shared_data() / "instruct" / "t0_templates_sample.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    rows = [
        json.dumps({"prompt": pair["prompt"], "completion": pair["completion"]}) + "\n"
        for pair in pairs
        if len(pair["prompt"]) <= 700 and pair["completion"].strip()
    ]
    random.Random(0).shuffle(rows)
    (folder / "train.jsonl").write_text("".join(rows[:train]), "utf-8")
    (folder / "held_out.jsonl").write_text("".join(rows[train : train + held_out]), "utf-8")


def _taught(folder: Path, weight: float, seed: int) -> float:
    """The loss on held-out replies after training."""
    from rich.console import Console

    from finetune.config.sections import FinetuneConfig
    from finetune.run import train
    from finetune.training.record import LOG_FILE, read_log

    values = {
        "model": "bundled",
        "output": str(folder / f"{weight}-{seed}"),
        "seed": seed,
        "data": {
            "train": str(folder / "train.jsonl"),
            "held_out": str(folder / "held_out.jsonl"),
            "too_long": "drop",
        },
        "objective": {"aux_weight": weight},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3},
    }
    with open(os.devnull, "w") as nowhere:
        output = train(FinetuneConfig.model_validate(values), Console(file=nowhere))
    losses = [row["eval_loss"] for row in read_log(output / LOG_FILE) if "eval_loss" in row]
    return float(losses[-1])


def pretraining_table() -> Table:
    """Tokens a second and the peak of memory, beside transformers' GPT-2 in a plain loop."""
    turns, rows = sized(3, 1), []
    for precision in ("float32", "bfloat16"):
        found: dict[str, list[dict[str, float]]] = {"ours": [], "loop": []}
        for _ in range(turns):
            for side, figures in found.items():
                figures.append(_side(side, precision) if is_tiny() else _by_itself(side, precision))
        cells = []
        for figures in found.values():
            rates = [figure["rate"] for figure in figures]
            peak = max(figure["peak"] for figure in figures) / 2**30
            cells += [f"{fmean(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})", f"{peak:.2f}"]
        rows.append((precision, *cells))
    count = (
        f"the bundled model's shape, {ROWS} windows of {WINDOW} tokens a step, one core, by its "
        f"own time; n = {turns} runs of {STEPS} steps in turn, mean (least–most), highest peak"
    )
    return Table(("", "`pretrain`, tokens/s", "GiB", "plain loop, tokens/s", "GiB"), rows, count)


def _by_itself(side: str, precision: str) -> dict[str, float]:
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, side, precision]
    done = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _side(side: str, precision: str) -> dict[str, float]:
    """rate: tokens a second. peak: bytes."""
    from finetune.training.display import peak_memory

    marks = {"ours": _pretrained, "loop": _looped}[side](precision)
    seconds = marks[WARM + STEPS] - marks[WARM]
    return {"rate": STEPS * ROWS * WINDOW / seconds, "peak": peak_memory()}


def _pretrained(precision: str) -> Marks:
    from rich.console import Console

    from finetune.config.sections import PretrainConfig
    from finetune.pretrain import pretrain
    from finetune.training.loop import Loop

    marks: Marks = []
    take, Loop._take = Loop._take, _noting(Loop._take, marks)
    layers, heads, hidden, vocabulary = SHAPE
    try:
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
            text = Path(folder, "text.txt")
            rows = json.loads((shared_data() / "instruct" / "raschka_1100.json").read_text("utf-8"))
            text.write_text("\n".join(row["output"] for row in rows), "utf-8")
            train = {"batch_size": ROWS, "max_steps": WARM + STEPS + 1, "window": WINDOW}
            config = {
                "output": str(Path(folder, "run")),
                "data": {"train": [{"path": str(text)}], "held_out": 0.0},
                "shape": {
                    "layers": layers,
                    "heads": heads,
                    "hidden": hidden,
                    "vocabulary": vocabulary,
                },
                "train": train | {"precision": precision, "save_every": 1000},
            }
            pretrain(PretrainConfig.model_validate(config), Console(file=nowhere))
    finally:
        Loop._take = take
    return marks


def _noting(take: Any, marks: Marks) -> Any:
    def step(loop: Any, batches: Any) -> None:
        marks.append(time.process_time())
        take(loop, batches)

    return step


def _looped(precision: str) -> Marks:
    """What one writes by hand: AdamW, clipped gradients, a cosine schedule, autocast."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, heads, hidden, vocabulary = SHAPE
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": hidden, "vocab_size": vocabulary}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: Any = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, WARM + STEPS + 1)
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    marks = []
    for ids in torch.randint(vocabulary, ((WARM + STEPS + 1) * ROWS, WINDOW)).split(ROWS):
        marks.append(time.process_time())
        with autocast:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return marks


if __name__ == "__main__":
    print(json.dumps(_side(*sys.argv[1:])))
