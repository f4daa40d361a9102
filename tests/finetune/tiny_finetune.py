"""Tiny models and encoded examples for the tests of training."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from chatapp.prompting.messages import END_OF_TEXT, Segment
from chatapp.prompting.template import CHAT, ShippedTemplate, save_template
from finetune.config.sections import FinetuneConfig, Steps
from finetune.data.batches import BucketSampler, Rows, collate
from finetune.data.corpus import train_tokenizer
from finetune.data.encoding import Encoded, Span
from finetune.objectives.l3 import L3
from finetune.objectives.objective import Objective
from finetune.run import resume, train
from finetune.training.loop import Loop, Plan, RunObserver

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


class Kept(RunObserver):
    """Keeps what a loop tells."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def logged(self, loop: Loop, row: Mapping[str, float]) -> None:
        self.rows.append(dict(row))


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
    objective: dict[str, Any] | Objective | None = None,
    learning_rate: float = 0.01,
    max_grad_norm: float = 1.0,
    collate: Any = partial(collate, pad_id=0),  # noqa: B008
    **plan: Any,
) -> Loop:
    """A loop of two steps on the CPU, in float32, at a constant rate."""
    settings = Steps(
        schedule="constant",
        batch_size=batch_size,
        accumulate=accumulate,
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
    )
    if not isinstance(objective, Objective):
        objective = kind(**({"aux_weight": 0.5} | (objective or {})))
    return Loop(
        model,
        objective,
        rows,
        BucketSampler(rows.lengths, batch_size * accumulate * processes, 0),
        collate,
        settings=settings,
        plan=Plan(**({"output": output, "steps": 2} | plan)),
        held_out=held_out,
    )


def logged(made: Loop) -> list[dict[str, Any]]:
    """What a loop tells of its steps, which it takes."""
    kept = Kept()
    made.observers.append(kept)
    made.train()
    return kept.rows


def step_gradients(made: Loop) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Losses and summed gradients of the first step; the optimizer then goes on."""
    found: dict[str, Tensor] = {}
    step = made.learner.optimizer.step

    def keep(*arguments: Any) -> Any:
        if not found:
            for name, parameter in made.called.named_parameters():
                if parameter.grad is not None:
                    found[name] = parameter.grad.clone()
        return step(*arguments)

    made.learner.optimizer.step = keep
    return logged(made)[0], found


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


def base(folder: Path, seed: int = 0, template: ShippedTemplate | None = CHAT) -> Path:
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


def rows_of(run: Path, log: str = "log.jsonl") -> list[dict[str, Any]]:
    """The log of a run."""
    return [json.loads(line) for line in (run / log).read_text().splitlines()]


def trace(run: Path, key: str = "l3", log: str = "log.jsonl") -> dict[int, float]:
    """A figure of each step of a run, the training loss."""
    return {row["step"]: row[key] for row in rows_of(run, log) if key in row}


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> None:
    """Let `action()` run at the end of a step of every loop."""

    class Act(RunObserver):
        def step_ends(self, loop: Loop) -> None:
            if loop.progress.step == step:
                action()

    original = Loop.train

    def changed(self: Loop, checkpoint: Path | None = None) -> None:
        self.observers.insert(0, Act())
        original(self, checkpoint)

    monkeypatch.setattr(Loop, "train", changed)


def broken_off(config: Any, monkeypatch: pytest.MonkeyPatch, step: int, then: Any = None) -> Path:
    """A run that is killed after a step, and continued by `then`, by default `resume`."""
    quiet = Console(quiet=True)
    with monkeypatch.context() as patch:
        at_step(patch, step, raising(Killed()))
        with pytest.raises(Killed):
            (then or train)(config, quiet)
    return Path(then(config, quiet) if then else resume(Path(config.output), [], quiet, "cpu"))


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
