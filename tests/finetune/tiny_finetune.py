"""Tiny models and encoded examples for the tests of training."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)

from chatapp.prompting.messages import END_OF_TEXT, Segment
from chatapp.prompting.template import CHAT, DialogueTemplate, save_template
from finetune.config.sections import FinetuneConfig, Steps
from finetune.data.batches import BucketSampler, collate
from finetune.data.corpus import train_tokenizer
from finetune.data.encoding import Encoded, Span
from finetune.data.packing import Rows
from finetune.objectives.l3 import L3
from finetune.training.trainer import FiniteTrainer, ObjectiveTrainer

VOCABULARY = 40


def gpt2(seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.3,
    }
    return GPT2LMHeadModel(GPT2Config(**(settings | changes)))


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes)))


def examples(lengths: Sequence[int], seed: int = 0) -> list[Encoded]:
    """Random tokens: a marker, a prompt, a marker, and for the second half a response."""
    draw = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        spans = np.full(length, Span.PROMPT, np.uint8)
        spans[[0, length // 2 - 1]] = Span.TEMPLATE
        spans[length // 2 :] = Span.RESPONSE
        ids = draw.integers(1, VOCABULARY, length).astype(np.int32)
        ids[-1] = 0
        made.append(Encoded(ids, spans, f"row {number}"))
    return made


def trainer(
    output: Path,
    model: Any,
    rows: Any,
    *,
    kind: type[L3] = L3,
    held_out: dict[str, Rows] | None = None,
    batch_size: int = 4,
    accumulate: int = 1,
    processes: int = 1,
    objective: dict[str, Any] | None = None,
    steps: Steps = Steps(schedule="constant"),  # noqa: B008
    collate: Any = partial(collate, pad_id=0),  # noqa: B008
    **arguments: Any,
) -> ObjectiveTrainer:
    """A trainer on the CPU that logs every step, in float32."""
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "gradient_accumulation_steps": accumulate,
        "learning_rate": 0.01,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_total_limit": 2,
        "dataloader_pin_memory": False,
    }
    made = ObjectiveTrainer(
        steps=steps,
        objective=kind(**({"aux_weight": 0.5} | (objective or {}))),
        model=model,
        args=TrainingArguments(**(settings | arguments)),
        rows=rows,
        order=BucketSampler(rows.lengths, batch_size * accumulate * processes, 0),
        held_out=held_out or {},
        collate=collate,
    )
    made.remove_callback(PrinterCallback)
    return made


def step_gradients(made: ObjectiveTrainer) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Losses and summed gradients of the first step; the optimizer then stops."""
    found: dict[str, Tensor] = {}

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            if not found:
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        found[name] = parameter.grad.clone()

    made.add_callback(Keep())
    made.train()
    return made.state.log_history[0], found


def assert_same(
    found: tuple[dict[str, float], dict[str, Tensor]],
    expected: tuple[dict[str, float], dict[str, Tensor]],
) -> None:
    for key in ("loss", "l2", "l1", "accuracy", "grad_norm"):
        assert found[0][key] == pytest.approx(expected[0][key], rel=1e-5), key
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(
            found[1][name], gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max()), msg=name
        )


def base(folder: Path, seed: int = 0, template: DialogueTemplate | None = CHAT) -> Path:
    """The folder of a tiny GPT-2 with a byte-level tokenizer and a template."""
    folder.mkdir()
    text = "What comes after the number? User: Assistant: It comes after. " * 9
    tokenizer = train_tokenizer([[Segment("instruction", text)]], 300)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT.text}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    size = tokenizer.get_vocab_size()
    gpt2(seed, vocab_size=size, n_positions=192, initializer_range=0.1).save_pretrained(folder)
    if template:
        save_template(template, folder)
    return folder


CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def chatml_base(folder: Path) -> Path:
    """The folder of a tiny Llama whose tokenizer brings a chat template."""
    base(folder, template=None)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    shape = {"max_position_embeddings": 256, "initializer_range": 0.1}
    end = tokenizer.token_to_id("<|im_end|>")
    model = llama(vocab_size=tokenizer.get_vocab_size(), eos_token_id=end, **shape)
    model.save_pretrained(folder)
    return folder


def pairs(path: Path, count: int = 40) -> Path:
    """Instructions in the Alpaca layout."""
    rows = [
        {"instruction": f"What comes after {i}?", "input": "", "output": f"{i + 1} comes after."}
        for i in range(count)
    ]
    path.write_text(json.dumps(rows))
    return path


def config(folder: Path, **sections: dict[str, Any] | str) -> FinetuneConfig:
    """A configuration over `base` and `pairs` in a folder: 40 rows, five steps an epoch."""
    if not (folder / "base").exists():
        base(folder / "base")
        pairs(folder / "rows.json")
    data = {"train": str(folder / "rows.json"), "held_out": 0.15, "packing": False}
    train = {
        "learning_rate": 0.01,
        "epochs": 2,
        "batch_size": 8,
        "save_every": 1000,
        "precision": "float32",
    }
    made: dict[str, Any] = {
        "model": str(folder / "base"),
        "output": str(folder / "run"),
        "data": data,
        "objective": {"aux_weight": 0.25},
        "train": train,
    }
    for name, section in sections.items():
        if name == "objective" and isinstance(section, dict) and "kind" in section:
            made[name] = section
        else:
            made[name] = made.get(name, {}) | section if isinstance(section, dict) else section
    return FinetuneConfig.model_validate(made)


def saved_config(folder: Path, **sections: Any) -> FinetuneConfig:
    """A configuration as in `config`, whose run saves every third step."""
    train = {"save_every": 3, **sections.pop("train", {})}
    return config(folder, train=train, **sections)


def written(config: FinetuneConfig, path: Path) -> Path:
    """The configuration as a TOML file."""
    plain = config.model_dump(mode="json", exclude_defaults=True)
    plain["data"]["train"] = [source["path"] for source in plain["data"]["train"]]
    sections = {key: value for key, value in plain.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(plain[key])}" for key in plain.keys() - sections.keys()]
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    path.write_text("\n".join(lines))
    return path


def trace(run: Path, key: str = "l3") -> dict[int, float]:
    """A figure of each step of a run, the training loss."""
    rows = [json.loads(text) for text in (run / "log.jsonl").read_text().splitlines()]
    return {row["step"]: row[key] for row in rows if key in row}


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> None:
    """Let `action()` run at the end of a step of every trainer."""

    class Act(TrainerCallback):
        def on_step_end(self, args: object, state: Any, control: object, **_: object) -> None:
            if state.global_step == step:
                action()

    original = FiniteTrainer.train

    def changed(self: FiniteTrainer, **arguments: Any) -> Any:
        self.callback_handler.callbacks.insert(0, Act())
        return original(self, **arguments)

    monkeypatch.setattr(FiniteTrainer, "train", changed)


class Killed(BaseException):
    """Stands for a signal: nothing after it runs."""


def raising(error: BaseException) -> Callable[..., None]:
    """A function that raises the error."""

    def act(*_: object, **__: object) -> None:
        raise error

    return act


def environment() -> dict[str, str]:
    """For a command in a process of its own; several talk over the loopback alone."""
    own = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **own}
