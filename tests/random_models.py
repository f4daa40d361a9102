"""Tiny models with random weights, written to disk once a session as transformers writes them."""

import os

# Before torch and tokenizers start their threads: tiny models are slower with several.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.view import Subject, View

# The same examples each time, and no clock on a machine that does other things as well.
settings.register_profile("chatapp", deadline=None, derandomize=True)
settings.load_profile("chatapp")

END = "<|endoftext|>"
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "User: Hello, who are you?\nAssistant: I am a small model, and I like to talk.",
    "A naïve café owner said: “It costs 5 €, my friend!”",
] * 3


SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
"""Of a small Llama, as its configuration names them."""
GPT2_SIZES = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
"""Scaled positions."""


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    """A byte-level BPE of 340 tokens, the end-of-text token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def randomize(model: Any, seed: int = 0) -> Any:
    """Weights large enough that no logit is near another one by accident of smallness."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15, generator=generator)
    return model.eval()


def add_usual_norms(model: Any) -> None:
    """Add 1 to the weights of norms, where the family does not do so itself."""
    if model.config.model_type.startswith("gemma"):
        return
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ("norm" in name or ".ln_" in name) and name.endswith("weight"):
                parameter += 1


def save_random(folder: Path, kind: str, tokenizer: Tokenizer, **config: Any) -> Any:
    """A random model of a model type with its tokenizer in a folder; returns transformers' model.

    It has 352 tokens, of which the last 12 pad the 340 of `bpe`.
    """
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    made = AutoConfig.for_model(kind, **{"vocab_size": 352, **ends, **config})
    model = randomize(AutoModelForCausalLM.from_config(made))
    add_usual_norms(model)
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.save_pretrained(folder)
    return model


MakeGPT2 = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="session")
def make_gpt2(tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer) -> MakeGPT2:
    """Write a random GPT-2 to a new folder; returns the folder and transformers' model."""

    def make(*, shard: str = "1GB", seed: int = 0, **config: Any) -> tuple[Path, Any]:
        shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "vocab_size": 340}
        folder = tmp_path_factory.mktemp("gpt2")
        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        model = randomize(GPT2LMHeadModel(GPT2Config(**shape | ends | config)), seed)
        model.save_pretrained(folder, max_shard_size=shard)
        bpe.save(str(folder / "tokenizer.json"))
        return folder, model

    return make


@pytest.fixture(scope="session")
def gpt2(make_gpt2: MakeGPT2) -> tuple[Path, Any]:
    """The default tiny GPT-2: its folder and transformers' model. Not to be changed."""
    return make_gpt2()


@pytest.fixture
def local(gpt2: tuple[Path, Any]) -> LocalModel:
    return LocalModel.load(ModelFiles.read(gpt2[0]))


def view_of(
    view: type[View], model: Any, ids: Any, *options: Any, at: int = -1, **named: Any
) -> Any:
    """A view of a text at one of its tokens, as a command asks for it."""
    subject = Subject(model, tuple(ids), at % len(ids))
    return view.look(subject, view.Options(*options, **named))


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """transformers' logits (len(ids), vocabulary)."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits
