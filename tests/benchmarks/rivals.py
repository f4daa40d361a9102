"""Programs that compute the same decoder, each in a process of its own, and the files they read.

`python rivals.py NAME FILE PRECISION` loads a GGUF file and answers requests, one JSON document a
line: {"reply": prompt, "new": n} the seconds of a token, {"prompt": ids} the seconds of a prompt,
{"eight": prompt, "new": n} the tokens a second of eight sequences. In one process they would
disturb each other.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMOLLM2 = Path(os.environ.get("SMOLLM2_GGUF", "smollm2.gguf"))

Answer = Callable[[dict[str, Any]], Any]
Shape = dict[str, int]

GPT2: Shape = {"width": 768, "layers": 12, "heads": 12, "inner": 3072, "words": 50257}


def write_shape(path: Path, shape: Shape) -> None:
    """A GGUF file of a GPT-2 with random weights in float32."""
    import gguf
    import numpy as np

    width, inner = shape["width"], shape["inner"]
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(shape["heads"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    names = ["a", "b", "ab", *(f"t{id}" for id in range(3, shape["words"]))]
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(names))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(names) - 1)
    writer.add_eos_token_id(len(names) - 1)
    draw = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, draw.standard_normal((rows, columns), np.float32) * 0.02)

    def vector(name: str, size: int, value: float) -> None:
        writer.add_tensor(name, np.full(size, value, np.float32))

    def product(name: str, rows: int, columns: int) -> None:
        matrix(f"{name}.weight", rows, columns)
        vector(f"{name}.bias", rows, 0.0)

    def norm(name: str) -> None:
        vector(f"{name}.weight", width, 1.0)
        vector(f"{name}.bias", width, 0.0)

    matrix("token_embd.weight", shape["words"], width)
    norm("output_norm")
    matrix("position_embd.weight", 1024, width)
    for layer in range(shape["layers"]):
        block = f"blk.{layer}."
        norm(f"{block}attn_norm")
        norm(f"{block}ffn_norm")
        product(f"{block}attn_qkv", 3 * width, width)
        product(f"{block}attn_output", width, width)
        product(f"{block}ffn_up", inner, width)
        product(f"{block}ffn_down", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def chatapp(path: Path, precision: str) -> Answer:
    """This program."""
    from chatapp.engine.backends.local import load_decoder
    from chatapp.engine.cache.key_values import RowCache
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.engine.kernels.machine import ComputeLock

    decoder, lock = load_decoder(ModelFiles.read(path), precision=precision), ComputeLock()

    def answer(request: dict[str, Any]) -> Any:
        ids = request.get("reply") or request.get("prompt") or request["eight"]
        cache = decoder.new_cache()
        started = time.perf_counter()
        with lock:
            id = int(decoder.forward(ids, cache).argmax())
        if "prompt" in request:
            return time.perf_counter() - started
        rows = RowCache(cache, 8, len(ids) + request["new"] + 1)
        if "eight" in request:
            for row in range(8):
                rows.put(row, cache)
        drawn = [id] * 8
        started = time.perf_counter()
        for _ in range(request["new"]):
            with lock:
                if "eight" in request:
                    drawn = decoder.forward_rows(drawn, rows).numpy().argmax(-1).tolist()
                else:
                    id = int(decoder.forward([id], cache).numpy().argmax())
        seconds = (time.perf_counter() - started) / request["new"]
        return 8 / seconds if "eight" in request else seconds

    return answer


def replies(path: Path, precision: str) -> Answer:
    """This program's replies as every door draws them: the seconds of a token."""
    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.events import Token
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.engine.model import Request, Sampling

    model = LocalModel.load(ModelFiles.read(path), precision=precision)
    model.end_ids = set()

    def answer(request: dict[str, Any]) -> Any:
        sampling = Sampling(max_tokens=request["new"], max_repeats=0, seed=0)
        started = time.perf_counter()
        events = list(model.generate(Request(request["reply"], sampling)))
        return (time.perf_counter() - started) / sum(isinstance(e, Token) for e in events)

    return answer


def transformers(path: Path, precision: str) -> Answer:
    """transformers in float32, with random weights of the shape that the file has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from chatapp.engine.files.model_files import ModelFiles

    values = dict(ModelFiles.read(path).config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(request: dict[str, Any]) -> Any:
        ids = request.get("reply") or request["prompt"]
        started = time.perf_counter()
        out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        id = int(out.logits[0, -1].argmax())
        if "prompt" in request:
            return time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(request["new"]):
            out = model(torch.tensor([[id]]), past_key_values=out.past_key_values, use_cache=True)
            id = int(out.logits[0, -1].argmax())
        return (time.perf_counter() - started) / request["new"]

    return answer


PROGRAMS = {each.__name__: each for each in (chatapp, replies, transformers)}


class Rival:
    """One of PROGRAMS in a process of its own; is_there: whether it could load the file."""

    def __init__(self, name: str, path: Path, given: str, **environment: str) -> None:
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, str(path), given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**bare, "PYTHONPATH": str(ROOT), **environment},
            text=True,
        )
        self.is_there: bool = self._read() == "ready"

    def ask(self, **request: Any) -> float:
        """What it answers."""
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


def text(size: int, seed: int, vocabulary: int = 340) -> list[int]:
    """Random tokens."""
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(size)]


def _serve(name: str, path: Path, given: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    if name in ("chatapp", "replies"):
        from chatapp.engine.kernels.machine import wait_briefly

        wait_briefly(os.environ)
    answer = PROGRAMS[name](path, given)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
