"""Sixteen clients of `chatapp api`, beside llama.cpp's server and `transformers serve` with the
same weights.

`SMOLLM2_GGUF=FILE pytest -m benchmark -s tests/benchmarks/test_server_speed.py` on a machine that
does nothing else. llama.cpp takes part where the package xllamacpp is installed, transformers with
its extra `serving`. All servers run from the beginning, and are asked in turn. A client sends its
next chat when the reply has ended; what is received until the end of a turn counts, in tokens of
the model's tokenizer.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector
from completions_server import closed_port
from rivals import ROOT, SMOLLM2, convert
from scale import check_finite, is_tiny, sized
from tiny import write_tiny_gpt2

from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.tokenizers import chat_tokenizer

pytestmark = pytest.mark.benchmark

PORT = "PORT"
CLIENTS, TOKENS, SECONDS, ROUNDS = sized((16, 64, 20.0, 3), (2, 4, 0.3, 1))
LLAMA_CPP = """
import sys, threading, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port = sys.argv[1], int(sys.argv[2])
options.n_parallel, options.n_ctx = 16, 16 * 512
for part in (options.cpuparams, options.cpuparams_batch):
    part.n_threads = 2
server = xllamacpp.Server(options)
threading.Event().wait()
"""
TRANSFORMERS = "from transformers.cli.transformers import main; main()"


class Asked(NamedTuple):
    """A server, and its name for its model."""

    url: str
    model: str


def servers(folder: Path) -> dict[str, tuple[list[str], str]]:
    """The commands that serve the model at PORT, and its name there; by the servers' names."""
    own = [sys.executable, "-m", "chatapp", "api", "--port", PORT, "--precision"]
    if is_tiny():
        path = str(write_tiny_gpt2(folder / "tiny", context=256))
        return {"chatapp float32": ([*own, "float32", "--model", path], path)}
    source = str(SMOLLM2)
    known = {f"chatapp {kind}": [*own, kind, "--model", source] for kind in ("int8", "float32")}
    commands = {name: (command, source) for name, command in known.items()}
    if find_spec("xllamacpp"):
        for kind in ("q8_0", "f32"):
            path = str(folder / f"{kind}.gguf")
            convert(SMOLLM2, Path(path), kind)
            commands[f"llama.cpp {kind}"] = ([sys.executable, "-c", LLAMA_CPP, path, PORT], path)
    if find_spec("fastapi"):
        path = str(folder / "transformers")
        export = [sys.executable, "-m", "chatapp", "models", "export", source, path]
        subprocess.run([*export, "--type", "f32"], check=True)
        serve = [sys.executable, "-c", TRANSFORMERS, "serve", path, "--port", PORT]
        commands["transformers float32"] = (
            [*serve, "--device", "cpu", "--dtype", "float32"],
            path,
        )
    return commands


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[str]:
    """The address of a server once it answers."""
    command = [str(port) if part == PORT else part for part in command]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(until_ready(url, server, log))
        yield url
    finally:
        server.kill()
        server.wait()


async def until_ready(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    async with ClientSession() as session:
        while True:
            assert server.poll() is None, log.read_text()[-2000:]
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except ClientError:
                pass
            await asyncio.sleep(0.2)


class Load:
    """Clients that ask a server until they are cancelled.

    texts: the replies so far. first: seconds until each began. errors: what was no reply.
    """

    def __init__(self, server: Asked, turn: int) -> None:
        self._server, self._turn = server, turn
        self.texts: list[str] = []
        self.first: list[float] = []
        self.errors: list[str] = []

    async def run(self, clients: int, seconds: float) -> None:
        # A connection for each chat: llama.cpp's server closes idle ones at any time.
        async with ClientSession(connector=TCPConnector(force_close=True)) as session:
            tasks = [asyncio.create_task(self._client(session, one)) for one in range(clients)]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self, session: ClientSession, client: int) -> None:
        number = 0
        while True:
            number += 1
            question = f"Write a long story about {client} cats and {number} + {self._turn} dogs."
            place = len(self.texts)
            self.texts.append("")
            try:
                await self._ask(session, question, place)
            except (ClientError, ValueError) as error:
                self.errors.append(repr(error))

    async def _ask(self, session: ClientSession, question: str, place: int) -> None:
        body = {"messages": [{"role": "user", "content": question}], "model": self._server.model}
        body |= {"max_tokens": TOKENS, "temperature": 0, "stream": True}
        started = time.perf_counter()
        url = f"{self._server.url}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            if response.status != 200:
                raise ValueError(await response.text())
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:]).get("choices")
                text = choices[0]["delta"].get("content") if choices else None
                if text and not self.texts[place]:
                    self.first.append(time.perf_counter() - started)
                self.texts[place] += text or ""


def test_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_tiny() and not SMOLLM2.is_file():
        pytest.skip("SMOLLM2_GGUF names no file")
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    source = tmp_path / "tiny" if is_tiny() else SMOLLM2
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    first: defaultdict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        asked = {}
        for name, (command, model) in servers(tmp_path).items():
            log = tmp_path / f"{name}.log"
            url = stack.enter_context(running(command, closed_port(), log))
            asked[name] = Asked(url, model)
        tokenizer, _ = chat_tokenizer(ModelFiles.read(source))
        for turn in range(ROUNDS + 1):
            for name, server in asked.items():
                load = Load(server, turn)
                asyncio.run(load.run(CLIENTS, SECONDS if turn else SECONDS / 10))
                assert not load.errors, (name, load.errors[:3])
                if turn:  # the first turn warms up
                    tokens = sum(len(tokenizer.encode(text)) for text in load.texts)
                    speeds[name].append(tokens / SECONDS)
                    first[name] += load.first
    for name, each in speeds.items():
        last = quantiles(first[name], n=100)[98] if len(first[name]) > 1 else first[name][0]
        spread = f"{median(each):8.1f} tokens/s ({min(each):.1f} to {max(each):.1f})"
        print(f"  {name:22}{spread}, first token {median(first[name]):.2f} s, p99 {last:.2f} s")
    check_finite(*(median(each) for each in speeds.values()))
