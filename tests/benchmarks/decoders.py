"""Programs that decode a GPT-2, each in a process of its own, for comparing their speed.

`python decoders.py NAME FOLDER` loads the checkpoint in FOLDER, in int8 where the program can,
and answers requests, one JSON document a line: {"ids": …, "new": …} with the tokens drawn
greedily and the seconds until the first and the last, {"peak": true} with the most memory it
has had, in bytes. In one process they would disturb each other: each has threads that go on
waiting for work for a while.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Decode = Callable[[list[int], int], Iterator[int]]
THREADS = os.cpu_count() or 1


def chatapp(folder: Path) -> Decode:
    """This program; what a text shares with the ones before it is not computed again."""
    from chatapp.engine.backends.local import load_decoder
    from chatapp.engine.cache.key_values import CachePool
    from chatapp.engine.files.model_files import ModelFiles

    model = load_decoder(ModelFiles.read(folder), precision="int8")
    pool = CachePool(model.new_cache, 2**28)

    def decode(ids: list[int], new: int) -> Iterator[int]:
        ids = list(ids)
        for _ in range(new):
            cache, reused = pool.take(ids)
            ids.append(int(model.forward(ids[reused:], cache).argmax()))
            yield ids[-1]

    return decode


def transformers(folder: Path) -> Decode:
    """transformers' generate, float32."""
    from threading import Thread

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    class Stream(BaseStreamer):
        """The tokens after the prompt, as they come."""

        def __init__(self) -> None:
            from queue import SimpleQueue

            self.queue: SimpleQueue[int | None] = SimpleQueue()
            self.is_prompt = True

        def put(self, value: Any) -> None:
            if not self.is_prompt:
                self.queue.put(int(value))
            self.is_prompt = False

        def end(self) -> None:
            self.queue.put(None)

    def decode(ids: list[int], new: int) -> Iterator[int]:
        stream = Stream()
        options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "streamer": stream}
        options |= {"max_new_tokens": new, "min_new_tokens": new}
        thread = Thread(target=model.generate, args=(torch.tensor([ids]),), kwargs=options)
        thread.start()
        while (id := stream.queue.get()) is not None:
            yield id
        thread.join()

    return decode


def ctranslate2(folder: Path) -> Decode:
    """CTranslate2, int8."""
    import ctranslate2 as ct2
    from ctranslate2.specs import common_spec, transformer_spec
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config.n_layer, config.n_head, pre_norm=True, activation=common_spec.Activation.GELUTanh
    )
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}

    def fill(part: Any, name: str, transposed: bool = False) -> None:
        matrix, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        if hasattr(part, "gamma"):
            part.gamma, part.beta = matrix, bias
            return
        part.weight = matrix.T.copy() if transposed else matrix
        if bias is not None:
            part.bias = bias

    decoder = spec.decoder
    decoder.scale_embeddings = False
    fill(decoder.embeddings, "transformer.wte")
    decoder.position_encodings.encodings = weights["transformer.wpe.weight"]
    fill(decoder.layer_norm, "transformer.ln_f")
    fill(decoder.projection, "lm_head")
    for index, layer in enumerate(decoder.layer):
        block = f"transformer.h.{index}"
        fill(layer.self_attention.layer_norm, f"{block}.ln_1")
        fill(layer.self_attention.linear[0], f"{block}.attn.c_attn", transposed=True)
        fill(layer.self_attention.linear[1], f"{block}.attn.c_proj", transposed=True)
        fill(layer.ffn.layer_norm, f"{block}.ln_2")
        fill(layer.ffn.linear_0, f"{block}.mlp.c_fc", transposed=True)
        fill(layer.ffn.linear_1, f"{block}.mlp.c_proj", transposed=True)
    names = [f"t{id}" for id in range(config.vocab_size)]
    spec.register_vocabulary(names)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[-1]
    spec.validate()
    spec.optimize(quantization="int8")
    target = folder / "ctranslate2"
    target.mkdir()
    spec.save(str(target))
    generator = ct2.Generator(str(target), device="cpu", compute_type="int8", intra_threads=THREADS)

    def decode(ids: list[int], new: int) -> Iterator[int]:
        steps = generator.generate_tokens(
            [names[id] for id in ids], max_length=new, min_length=new, sampling_topk=1
        )
        for step in steps:
            yield step.token_id

    return decode


def llama_cpp(folder: Path) -> Decode:
    """llama.cpp through llama-cpp-python, q8_0; it keeps what a text shares with the last."""
    import gguf
    from llama_cpp import Llama
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    names = [f"t{id}" for id in range(config["vocab_size"])]
    writer.add_token_list(names)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(names))
    writer.add_token_merges(["t0 t1"])
    writer.add_bos_token_id(len(names) - 1)
    writer.add_eos_token_id(len(names) - 1)
    parts = {
        "wte": "token_embd",
        "wpe": "position_embd",
        "ln_f": "output_norm",
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }
    q8 = gguf.GGMLQuantizationType.Q8_0
    for stored, tensor in load_file(folder / "model.safetensors").items():
        name, _, kind = stored.removeprefix("transformer.").rpartition(".")
        layer = ""
        if name.startswith("h."):
            _, index, name = name.split(".", 2)
            layer = f"blk.{index}."
            tensor = tensor.T.copy()
        target = f"{layer}{parts[name]}.{kind}"
        if tensor.ndim == 2 and name != "wpe":
            writer.add_tensor(target, gguf.quantize(tensor, q8), raw_dtype=q8)
        else:
            writer.add_tensor(target, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = Llama(
        str(path),
        n_ctx=config["n_positions"],
        n_threads=THREADS,
        n_threads_batch=THREADS,
        verbose=False,
    )

    def decode(ids: list[int], new: int) -> Iterator[int]:
        drawn = model.generate(ids, top_k=1, temp=0.0)
        for _, id in zip(range(new), drawn, strict=False):
            yield id

    return decode


PROGRAMS = {each.__name__: each for each in (chatapp, transformers, ctranslate2, llama_cpp)}


class Program:
    """One of PROGRAMS in a process of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            text=True,
        )
        self.is_there: bool = self._read() == "ready"

    def decode(self, ids: list[int], new: int) -> tuple[list[int], float, float]:
        """The tokens drawn, and the seconds until the first and until the last."""
        ids, first, last = self._ask({"ids": ids, "new": new})
        return ids, first, last

    def peak(self) -> int:
        """The most memory the process has had, in bytes."""
        return int(self._ask({"peak": True}))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


def text(size: int, seed: int = 0, vocabulary: int = 50257) -> list[int]:
    """Random tokens."""
    draw = random.Random(seed)
    return [draw.randrange(vocabulary) for _ in range(size)]


def tell(what: str, ratio: float, wanted: float) -> None:
    """Say whether an aim was reached: on another machine, or a busy one, it may not be."""
    print(
        f"{what}: {ratio:.2f}, wanted {wanted:g}: {'reached' if ratio >= wanted else 'not reached'}"
    )


def table(title: str, times: dict[str, float]) -> dict[str, float]:
    """Print the times and how many times ours they are; returns the latter."""
    ratios = {name: each / times["chatapp"] for name, each in times.items()}
    print(f"\n{title}")
    for name, each in times.items():
        print(f"  {name:14}{each * 1e3:9.1f} ms{ratios[name]:8.2f}")
    return ratios


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _serve(name: str, folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    decode = PROGRAMS[name](folder)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any
        if "peak" in request:
            answer = _peak()
        else:
            times: list[float] = []
            drawn: list[int] = []
            started = time.perf_counter()
            for id in decode(request["ids"], request["new"]):
                drawn.append(id)
                times.append(time.perf_counter() - started)
            answer = drawn, times[0], times[-1]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
