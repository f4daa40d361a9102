"""How fast the model is: alone, beside llama.cpp and transformers, and for many clients at once.

Each program is a process of its own, and they take turns. llama.cpp takes part where the package
xllamacpp is installed.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median, quantiles

from aiohttp import ClientError, ClientSession, TCPConnector
from completions_server import closed_port
from measure import ROOT, SMOLLM2, Table, is_tiny, models, run_chatapp, sized
from rivals import GPT2, Rival, text, write_shape
from tiny import write_tiny_gpt2

SHAPE = sized(GPT2, {"width": 32, "layers": 1, "heads": 2, "inner": 64, "words": 400})
PAUSE = sized(0.3, 0.0)
"""Seconds before each turn: llama.cpp's threads keep cores busy for a while."""
LLAMA_CPP = """
import sys, threading, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port = sys.argv[1], int(sys.argv[2])
options.n_parallel, options.n_ctx = 64, 64 * 512
for part in (options.cpuparams, options.cpuparams_batch):
    part.n_threads = 2
server = xllamacpp.Server(options)
threading.Event().wait()
"""


def spread(figures: list[float], unit: str = "") -> str:
    """Median, least and most."""
    low, middle, high = min(figures), median(figures), max(figures)
    return f"{middle:.3g}{unit} ({low:.3g}–{high:.3g})"


def models_table() -> Table:
    """README's speeds, by `chatapp bench` in a process of its own."""
    rounds, rows = sized(3, 1), []
    with tempfile.TemporaryDirectory() as folder:
        gpt2 = Path(folder, "gpt2.gguf")
        write_shape(gpt2, SHAPE)
        for name, source in ({"gpt2, random weights": str(gpt2)} | models()).items():
            speeds = []
            for precision in ("int8", "int4"):
                figures = [_bench(source, precision) for _ in range(rounds)]
                low, middle, high = min(figures), median(figures), max(figures)
                speeds.append(f"{middle:,.0f} ({low:,.0f}–{high:,.0f})")
            rows.append((name, *speeds))
    count = f"medians of n = {rounds} runs of `chatapp bench` (least–most)"
    return Table(("model", "int8, tokens/s", "int4, tokens/s"), rows, count)


def _bench(source: str, precision: str) -> float:
    """The tokens per second that `chatapp bench` prints."""
    command = [sys.executable, "-m", "chatapp", "bench", "--model", source, "--json"]
    command += ["--precision", precision]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=variables, check=True)
    return float(json.loads(done.stdout)["decode"])


def tokens_table() -> Table:
    """Milliseconds of a token and seconds of a prompt, beside other programs."""
    rounds, rows = sized(5, 1), []
    with tempfile.TemporaryDirectory() as folder:
        for name in (*sized(tuple(models()), ()), "GPT-2 124M, random"):
            path = _file_of(Path(folder), name)
            for precision in sized(("int8", "int4", "float32"), ("int8",)):
                found = _timed(path, precision, rounds)
                cells = []
                for what in ("token", "prompt"):
                    for program in ("chatapp", "llama.cpp", "transformers"):
                        figures = found[what].get(program)
                        cells.append(spread(figures) if figures else "–")
                rows.append((f"{name}, {precision}", *cells, spread(found["eight"]["chatapp"])))
    rivals = ("llama.cpp", "transformers")
    head = ("", "a token, ms", *rivals, "prompt of 512, s", *rivals, "eight at once, ×")
    count = (
        f"medians of n = {rounds} rounds (least–most); llama.cpp with the better of one and two "
        "threads and q8_0, q4_0, f32; transformers in float32; eight: tokens a second of eight "
        "sequences at once, as a multiple of one"
    )
    return Table(head, rows, count)


def replies_table() -> Table:
    """Tokens a second of short and long replies beside busy programs, with the threads that are
    chosen and with fixed ones.
    """
    rounds, rows = sized(7, 1), []
    ways: dict[str, dict[str, str]]
    ways = {"chosen": {}, "1 thread": {"OMP_NUM_THREADS": "1"}, "2": {"OMP_NUM_THREADS": "2"}}
    for name in models():
        path = ROOT / "chatapp" / "bundled" if name == "bundled" else SMOLLM2
        for busy, new in product(sized((0, 1, 2), (1,)), sized((10, 100, 1000), (3,))):
            found: defaultdict[str, list[float]] = defaultdict(list)
            with ExitStack() as stack:
                for _ in range(busy):
                    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    stack.callback(other.kill)
                for turn, (way, given) in product(range(rounds), ways.items()):
                    rival = Rival("replies", path, "auto", **given)  # a process knows no load yet
                    stack.callback(rival.close)
                    found[way].append(1 / rival.ask(reply=text(16, turn), new=new))
                    rival.close()
            best = max(median(found[way]) for way in ways if way != "chosen")
            share = f"{median(found['chosen']) / best:.2f}"
            rows.append(
                (f"{name}, {new} tokens, {busy} busy", *(spread(found[way]) for way in ways), share)
            )
    count = f"tokens a second, medians of n = {rounds} processes (least–most) that take turns"
    return Table(("", *ways, "chosen / best fixed"), rows, count)


def _file_of(folder: Path, model: str) -> Path:
    """A file of the model."""
    path = folder / f"{model}.gguf"
    if model == "bundled":
        run_chatapp("models", "export", "bundled", str(path), "--type", "f32", "--force")
    elif model not in models():
        write_shape(path, SHAPE)
    return path if path.exists() else SMOLLM2


def _timed(path: Path, precision: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Figures by kind of work and program."""
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.tasks.evaluation.peer import PACKAGE, llama_cpp

    prompt, new, long = sized((32, 48, 512), (8, 2, 16))
    found: defaultdict[str, defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        rivals = {"chatapp": Rival("chatapp", path, precision)}
        rivals["transformers"] = Rival("transformers", path, "float32")
        for rival in rivals.values():
            stack.callback(rival.close)
        peer = None
        if find_spec(PACKAGE) and not is_tiny():
            peer = stack.enter_context(llama_cpp(ModelFiles.read(path), precision, 2))
        assert rivals["chatapp"].is_there
        for turn in range(rounds + 1):
            short, whole = text(prompt, turn), text(long, 100 + turn)
            figures = {}
            for name, rival in rivals.items():
                if rival.is_there:
                    time.sleep(PAUSE)
                    figures[name] = 1000 * rival.ask(reply=short, new=new), rival.ask(prompt=whole)
            together = rivals["chatapp"].ask(eight=short, new=new)
            if peer:
                replies, reads = peer.seconds(short, new), peer.seconds(whole, 1)
                for threads, ((_, reply), (read, _)) in enumerate(
                    zip(replies, reads, strict=True), 1
                ):
                    figures[f"llama.cpp {threads}"] = 1000 * reply / new, read
            if turn:  # the first turn warms up
                for name, (reply, read) in figures.items():
                    found["token"][name].append(reply)
                    found["prompt"][name].append(read)
                found["eight"]["chatapp"].append(together * figures["chatapp"][0] / 1000)
    for work in found.values():
        both = [work.pop(name) for name in list(work) if name.startswith("llama.cpp")]
        if both:
            work["llama.cpp"] = min(both, key=median)
    return found


def clients_table() -> Table:
    """64 clients with greedy chats, each sending the next one when its reply has ended."""
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.engine.tokenizers import chat_tokenizer

    clients, seconds, turns = sized((64, 20.0, 3), (2, 0.3, 1))
    speeds: defaultdict[str, list[float]] = defaultdict(list)
    first: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        source = write_tiny_gpt2(folder / "tiny", context=256) if is_tiny() else SMOLLM2
        tokenizer, _ = chat_tokenizer(ModelFiles.read(source))
        asked = {
            server: (stack.enter_context(_running(command, folder / f"{server}.log")), model)
            for server, (command, model) in _servers(source, folder).items()
        }
        for turn in range(turns + 1):
            for server, (url, model) in asked.items():
                load = _Load(url, model, turn)
                elapsed = asyncio.run(load.run(clients, seconds if turn else seconds / 10))
                assert not load.errors, (server, load.errors[:3])
                if turn:  # the first turn warms up
                    written = sum(len(tokenizer.encode(text)) for text in load.texts)
                    speeds[server].append(written / elapsed)
                    first[server] += load.first
    rows = []
    for server, each in speeds.items():
        last = quantiles(first[server], n=100)[98] if len(first[server]) > 1 else first[server][0]
        rows.append((server, spread(each), f"{median(first[server]):.2f} s", f"{last:.2f} s"))
    count = (
        f"{clients} clients, at most 64 tokens a reply, n = {turns} turns of {seconds:.0f} s, "
        "in turn with the others; median (least–most)"
    )
    return Table(
        ("SmolLM2-135M", "tokens/s", "first token, median", "99th percentile"), rows, count
    )


def _servers(source: Path, folder: Path) -> dict[str, tuple[list[str], str]]:
    """The commands that serve the model, without the port, and its name there."""
    own = [sys.executable, "-m", "chatapp", "api", "--model", str(source), "--precision"]
    kinds = sized({"int8": "q8_0", "float32": "f32"}, {"float32": ""})
    commands = {f"chatapp api, {kind}": ([*own, kind, "--port"], str(source)) for kind in kinds}
    if find_spec("xllamacpp") and not is_tiny():
        for kind in kinds.values():
            path = folder / f"{kind}.gguf"
            run_chatapp("models", "export", str(source), str(path), "--type", kind, "--force")
            commands[f"llama.cpp, {kind}"] = (
                [sys.executable, "-c", LLAMA_CPP, str(path)],
                str(path),
            )
    return commands


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[str]:
    """The address of a server once it answers."""
    port = closed_port()
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, str(port)], stdout=output, stderr=output, env=variables
        )
    url = f"http://127.0.0.1:{port}"

    async def until_ready() -> None:
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

    try:
        asyncio.run(until_ready())
        yield url
    finally:
        server.kill()
        server.wait()


class _Load:
    """Clients that ask a server until they are cancelled.

    texts: the replies so far. first: seconds until each began. errors: what was no reply.
    """

    def __init__(self, url: str, model: str, turn: int) -> None:
        self._url, self._model, self._turn = url, model, turn
        self.texts: list[str] = []
        self.first: list[float] = []
        self.errors: list[str] = []

    async def run(self, clients: int, seconds: float) -> float:
        """Ask for some seconds, and until one reply has begun; returns the seconds."""
        started = time.perf_counter()
        # A connection for each chat: llama.cpp's server closes idle ones at any time.
        async with ClientSession(connector=TCPConnector(force_close=True)) as session:
            tasks = [asyncio.create_task(self._client(session, one)) for one in range(clients)]
            await asyncio.sleep(seconds)
            while not (self.first or self.errors):
                await asyncio.sleep(0.05)
            elapsed = time.perf_counter() - started
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return elapsed

    async def _client(self, session: ClientSession, client: int) -> None:
        number = 0
        while True:
            number += 1
            place = len(self.texts)
            self.texts.append("")
            try:
                question = (
                    f"Write a long story about {client} cats and {number} + {self._turn} dogs."
                )
                await self._ask(session, question, place)
            except (ClientError, ValueError) as error:
                self.errors.append(repr(error))

    async def _ask(self, session: ClientSession, question: str, place: int) -> None:
        body = {"messages": [{"role": "user", "content": question}], "model": self._model}
        body |= {"max_tokens": sized(64, 4), "temperature": 0, "stream": True}
        started = time.perf_counter()
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(await response.text())
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:]).get("choices")
                piece = choices[0]["delta"].get("content") if choices else None
                if piece and not self.texts[place]:
                    self.first.append(time.perf_counter() - started)
                self.texts[place] += piece or ""
