"""Tokens per second and peak memory of fine-tuning, beside TRL's SFTTrainer.

The same random GPT-2 weights, the same 1,100 instructions as the same tokens with the same
labels, the same rows a step in the same order (packed, each packs in its own), float32, no gradient
checkpointing; and LoRA on a random Llama in
ChatML, whose chats TRL renders and masks by itself: there the first loss is compared too. A real
model is measured so with `python tests/benchmarks/test_finetune_trl.py (trl|ours)-chat FOLDER`.
Each measurement is a process
of its own on one core, by the core's time, which other work on the machine does not change.
Needs trl, and the folder of the shared data in
SHARED_DATA. Run with `pytest -m benchmark -s tests/benchmarks/test_finetune_trl.py`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scale import check_finite, is_tiny, sized
from shared_data import shared_data

WARM, STEPS, ROWS, LENGTH = sized((1, 5, 8, 512), (1, 1, 2, 256))
SMALL = dict(zip(("n_layer", "n_embd", "n_head"), sized((6, 384, 6), (1, 16, 2)), strict=True))
GPT2 = sized({"n_layer": 12, "n_embd": 768, "n_head": 12}, SMALL)
LLAMA = {
    "num_hidden_layers": 6,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
LLAMA = sized(LLAMA, dict(zip(LLAMA, (1, 16, 32, 2, 1), strict=True)))
LORA = {"rank": 8, "alpha": 16.0}
CHATS = sized(200, 8)
TURNS = sized(2, 1)
"""How often each is measured, in turn, so that a change of the machine's speed hits all alike."""

# ChatML as most tokenizers have it, and a turn with TRL's mark around what it learns.
TURN = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
MARKED = (
    "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{message['content'] + '<|im_end|>' + '\n'}}{% endgeneration %}"
    "{% else %}{{message['content'] + '<|im_end|>' + '\n'}}{% endif %}"
)
CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    f"{TURN}{{% endfor %}}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_model(folder: Path, shape: dict[str, int]) -> None:
    """A random GPT-2 with the published vocabulary, without dropout."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from chatapp.prompting.template import ALPACA, save_template

    torch.manual_seed(0)
    config = GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    save_template(ALPACA, folder)
    for source, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (folder / name).write_bytes((shared_data() / "gpt2_bpe" / source).read_bytes())


def make_chat_model(folder: Path) -> None:
    """A random Llama with GPT-2's vocabulary and a chat template."""
    import torch
    from transformers import GPT2TokenizerFast, LlamaConfig, LlamaForCausalLM

    for source, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (folder / name).write_bytes((shared_data() / "gpt2_bpe" / source).read_bytes())
    tokenizer = GPT2TokenizerFast.from_pretrained(folder)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer.add_special_tokens({**ends, "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = LlamaConfig(**LLAMA, vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)


def configuration(
    folder: Path, packing: bool, aux_weight: float = 0.0, precision: str = "float32"
) -> Any:
    from finetune.config.sections import FinetuneConfig

    return FinetuneConfig.model_validate(
        {
            "model": str(folder),
            "output": str(folder / "run"),
            "data": {
                "train": str(shared_data() / "instruct" / "raschka_1100.json"),
                "held_out": 0.0,
                "max_length": LENGTH,
                "packing": packing,
            },
            "objective": {"aux_weight": aux_weight},
            "train": {"batch_size": ROWS, "precision": precision, "epochs": 1},
        }
    )


class Marks:
    """Notes (seconds, tokens so far) after each step, and ends after the last."""

    def __init__(self, steps: int) -> None:
        self.marks: list[tuple[float, int]] = []
        self.steps = steps
        self.first: dict[str, float] = {}
        self.first_loss: float | None = None

    def note(self, tokens: int) -> bool:
        """Whether this was the last step."""
        self.marks.append((time.process_time(), tokens))
        return len(self.marks) == self.steps


def taken(setup: Any, output: Path, steps: int) -> Marks:
    """Some steps of ours."""
    from finetune.training.building import build_loop
    from finetune.training.loop import Loop, Observer

    class Clock(Marks, Observer):
        def step_ends(self, loop: Loop) -> None:
            loop.ends = self.note(loop.tokens_seen)

        def logged(self, loop: Loop, row: Any) -> None:
            self.first = self.first or dict(row)

    loop, told = build_loop(setup, output), Clock(steps)
    loop.plan = replace(loop.plan, save_every=0)
    loop.observers.append(told)
    loop.train()
    told.first_loss = told.first.get("l2")
    return told


def clock(tokens: Any, steps: int) -> Any:
    """The same for transformers' Trainer."""
    from transformers import TrainerCallback

    class Clock(Marks, TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = self.note(tokens())

    return Clock(steps)


def run_ours(folder: Path, packing: bool, aux_weight: float, steps: int, precision: str) -> Any:
    from finetune.training.setup import set_up_run

    config = configuration(folder, packing, aux_weight, precision)
    return taken(set_up_run(config), folder / "run", steps)


def run_trl(folder: Path, packing: bool, steps: int, precision: str) -> Any:
    import datasets
    import numpy as np
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from finetune.data.batches import BucketSampler
    from finetune.data.packing import response_labels
    from finetune.training.setup import set_up_run

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    rows = set_up_run(configuration(folder, False)).data.train
    examples = [rows.examples[index] for index in BucketSampler(rows.lengths, ROWS, 0)]
    dataset = datasets.Dataset.from_list(
        [
            {
                "input_ids": each.ids.tolist(),
                "labels": np.where(response_labels(each), each.ids, -100).tolist(),
            }
            for each in examples
        ]
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        args=SFTConfig(
            output_dir=str(folder / "trl"), use_cpu=True, bf16=precision == "bfloat16",
            per_device_train_batch_size=ROWS, max_length=LENGTH, packing=packing,
            completion_only_loss=True, num_train_epochs=1, gradient_checkpointing=False,
            train_sampling_strategy="sequential", learning_rate=5e-5,
            report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
        ),
        train_dataset=dataset,
        processing_class=tokenizer,
    )  # fmt: skip
    told = counted(trainer, steps)
    told.first_loss = trainer.state.log_history[0]["loss"]
    return told


def counted(trainer: Any, steps: int) -> Any:
    """Some steps of TRL's trainer, with the tokens it takes that are no padding."""
    seen = 0
    original = trainer.training_step

    def step(model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        nonlocal seen
        mask = inputs.get("attention_mask")
        seen += int(inputs["input_ids"].numel() if mask is None else mask.sum())
        return original(model, inputs, *rest, **more)

    trainer.training_step = step
    told = clock(lambda: seen, steps)
    trainer.add_callback(told)
    trainer.train()
    return told


def chat_material(folder: Path) -> Any:
    """The first rows as chats in the model's own template, to be learnt by LoRA."""
    from finetune.config.sections import FinetuneConfig
    from finetune.training.setup import set_up_run

    rows = json.loads((shared_data() / "instruct" / "raschka_1100.json").read_text())[:CHATS]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(rows, file)
        file.flush()
        config = FinetuneConfig.model_validate(
            {
                "model": str(folder),
                "output": "unused",
                "data": {
                    "train": file.name, "held_out": 0.0, "max_length": LENGTH, "packing": False,
                },
                "objective": {"aux_weight": 0.0},
                "adapter": LORA,
                "train": {
                    "method": "lora", "batch_size": ROWS, "precision": "float32", "epochs": 1,
                },
            }
        )  # fmt: skip
        return set_up_run(config)


def run_ours_chat(folder: Path, steps: int) -> Any:
    with tempfile.TemporaryDirectory() as output:
        return taken(chat_material(folder), Path(output), steps)


def run_trl_chat(folder: Path, steps: int) -> Any:
    import datasets
    import peft
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from finetune.data.batches import BucketSampler

    # Our order; what a row's tokens and labels are is for TRL to say.
    order = BucketSampler(chat_material(folder).data.train.lengths, ROWS, 0)
    rows = json.loads((shared_data() / "instruct" / "raschka_1100.json").read_text())[:CHATS]
    chats = []
    for row in (rows[index] for index in order):
        asked = "\n\n".join(filter(None, (row["instruction"].strip(), row["input"].strip())))
        turns = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": row["output"]},
        ]
        chats.append({"messages": turns})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert TURN in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(TURN, MARKED)
    with tempfile.TemporaryDirectory() as output:
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            args=SFTConfig(
                output_dir=output, use_cpu=True, bf16=False, per_device_train_batch_size=ROWS,
                max_length=LENGTH, assistant_only_loss=True, num_train_epochs=1,
                gradient_checkpointing=False, train_sampling_strategy="sequential",
                learning_rate=5e-5, report_to="none", save_strategy="no", logging_steps=1,
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_list(chats),
            processing_class=tokenizer,
            peft_config=peft.LoraConfig(
                task_type="CAUSAL_LM", r=LORA["rank"], lora_alpha=LORA["alpha"], lora_dropout=0.0,
                target_modules="all-linear",
            ),
        )  # fmt: skip
        told = counted(trainer, steps)
    told.first_loss = trainer.state.log_history[0]["loss"]
    return told


def figures(
    who: str,
    folder: str,
    packing: str = "padding",
    aux_weight: str = "0",
    steps: str = str(WARM + STEPS),
    precision: str = "float32",
) -> dict[str, float]:
    """Tokens per second, peak memory and the first loss. To be measured in a process of its own."""
    from finetune.training.display import peak_memory

    wide = packing == "packing"
    runs = {
        "trl": lambda: run_trl(Path(folder), wide, int(steps), precision),
        "ours": lambda: run_ours(Path(folder), wide, float(aux_weight), int(steps), precision),
        "trl-chat": lambda: run_trl_chat(Path(folder), int(steps)),
        "ours-chat": lambda: run_ours_chat(Path(folder), int(steps)),
    }
    told = runs[who]()
    (begun, before), (ended, after) = told.marks[WARM - 1], told.marks[-1]
    rate = (after - before) / (ended - begun)
    return {"tokens_per_second": rate, "peak": peak_memory(), "first_loss": told.first_loss}


def by_itself(program: str, *arguments: str) -> dict[str, float]:
    """What a program of this folder prints, which has a process and one core for itself."""
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env={**os.environ, **own}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def with_trl(*sides: str) -> list[str]:
    """Who takes part, TRL's side first: where nothing is measured, TRL may be missing."""
    if not is_tiny():
        pytest.importorskip("trl")
    return [side for side in sides if find_spec("trl") or not side.startswith("trl")]


def measured(
    who: str, folder: Path, packing: bool, aux_weight: float = 0.0, steps: int = WARM + STEPS
) -> dict[str, float]:
    mode = "packing" if packing else "padding"
    arguments = [who, str(folder), mode, str(aux_weight), str(steps)]
    found = figures(*arguments) if is_tiny() else by_itself(__file__, *arguments)
    check_finite(*found.values())
    print(
        f"\n{who} {mode} λ={aux_weight:g}: {found['tokens_per_second']:,.0f} tokens/s, "
        f"peak {found['peak'] / 2**30:.2f} GiB, first loss {found['first_loss']}",
        end="",
    )
    return found


@pytest.mark.benchmark
def test_as_fast_as_trl_padded_and_half_as_fast_again_packed(data: None, tmp_path: Path) -> None:
    sides = with_trl("trl", "ours")
    make_model(tmp_path, SMALL)
    rates: dict[tuple[str, bool], list[float]] = {}
    losses: dict[str, float] = {}
    for _ in range(TURNS):
        for packing in (False, True):
            for who in sides:
                found = measured(who, tmp_path, packing)
                rates.setdefault((who, packing), []).append(found["tokens_per_second"])
                if not packing:
                    losses[who] = found["first_loss"]
    measured("ours", tmp_path, True, 0.25)
    if is_tiny():
        return
    best = {key: max(values) for key, values in rates.items()}
    padded = best["ours", False] / best["trl", False]
    packed = best["ours", True] / best["trl", True]
    across = best["ours", True] / best["trl", False]
    print(f"\nagainst TRL: padding {padded:.2f}, packing {packed:.2f}, packing against "
          f"TRL's padding {across:.2f}")  # fmt: skip
    assert losses["ours"] == pytest.approx(losses["trl"], abs=1e-3)
    assert padded >= 1.0
    assert packed >= 1.5


@pytest.mark.benchmark
def test_lora_on_chats_begins_at_trls_loss_and_is_as_fast(data: None, tmp_path: Path) -> None:
    sides = with_trl("trl-chat", "ours-chat")
    make_chat_model(tmp_path)
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(TURNS):
        for who in sides:
            found.setdefault(who, []).append(measured(who, tmp_path, False))
    if is_tiny():
        return
    trl, ours = found["trl-chat"], found["ours-chat"]
    assert ours[0]["first_loss"] == pytest.approx(trl[0]["first_loss"], abs=1e-3)
    rates = [max(each["tokens_per_second"] for each in runs) for runs in (trl, ours)]
    print(f"\nagainst TRL: {rates[1] / rates[0]:.2f}")
    assert rates[1] >= rates[0]
    assert min(each["peak"] for each in ours) < min(each["peak"] for each in trl)


@pytest.mark.benchmark
def test_gpt2_fits_eight_rows_of_512_tokens_in_8_gib(data: None, tmp_path: Path) -> None:
    make_model(tmp_path, GPT2)
    peak = measured("ours", tmp_path, True, 0.25, WARM + 1)["peak"]
    if is_tiny():  # then it is the peak of all tests that this process has run
        return
    assert peak < 8 * 2**30


if __name__ == "__main__":
    print(json.dumps(figures(*sys.argv[1:])))
