"""Speed of a model shaped as SmolLM2-135M, of random weights, beside transformers.

Run it with `pytest -m benchmark -s tests/benchmarks/test_llama.py` on a machine that does nothing
else. Both get the same weights, prompts and threads, each in a process of its own, and take turns;
medians count.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from decoders import Program, table, tell, text
from scale import check_finite, is_tiny, sized

pytestmark = pytest.mark.benchmark

VOCABULARY = 49152
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
SHAPE = sized(SHAPE, dict(zip(SHAPE, (16, 32, 1, 2, 1), strict=True)))
PROMPT, REPLY, PREFILL = sized((64, 64, 512), (4, 2, 8))
ROUNDS = sized(5, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        **SHAPE,
        max_position_embeddings=8192,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def programs(folder: Path) -> Iterator[dict[str, Program]]:
    started = {name: Program(name, folder) for name in ("chatapp", "transformers")}
    assert all(program.is_there for program in started.values())
    yield started
    for program in started.values():
        program.close()


def test_decoding_and_prefill(programs: dict[str, Program]) -> None:
    decodes: defaultdict[str, list[float]] = defaultdict(list)
    prefills: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(ROUNDS + 1):
        for name, program in programs.items():
            _, first, last = program.decode(text(PROMPT, turn, VOCABULARY), REPLY + 1)
            _, whole, _ = program.decode(text(PREFILL, 100 + turn, VOCABULARY), 1)
            if turn:  # the first turn warms up
                decodes[name].append((last - first) / REPLY)
                prefills[name].append(whole)
    decode = table("a token", {name: median(times) for name, times in decodes.items()})
    prefill = table(
        f"a prompt of {PREFILL} tokens", {name: median(times) for name, times in prefills.items()}
    )
    tell("decoding, times transformers", decode["transformers"], 3.0)
    tell("prompts, times transformers", prefill["transformers"], 3.0)
    check_finite(*decode.values(), *prefill.values())
    assert is_tiny() or decode["transformers"] > 1.0
    assert is_tiny() or prefill["transformers"] > 1.0
