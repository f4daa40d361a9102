"""A real server: llama-cpp-python's own on localhost, with a small random GPT-2.

Its answers are compared with those of this program's own decoder on the same weights. Runs
where llama-cpp-python with its server, and gguf, are installed.
"""

import json
import subprocess
import sys
import threading
import time

import pytest
from completions_server import closed_port
from safetensors.numpy import load_file, save_file
from tiny import END, write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import PLAIN

pytest.importorskip("llama_cpp.server.app", reason="llama-cpp-python[server] is not installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed")

CONTEXT = 256
PROMPT = "User: Hello, who are you?\nAssistant:"
GREEDY = Sampling(temperature=0.0, max_tokens=24)
PLAIN_SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=24, seed=5)

# The names of a GPT-2's tensors in the two formats.
BLOCK = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random GPT-2 whose logits differ enough that rounding does not reorder them."""
    folder = write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=CONTEXT)
    weights = load_file(folder / "model.safetensors")
    spread = {name: 10 * tensor if tensor.ndim == 2 else tensor for name, tensor in weights.items()}
    save_file(spread, folder / "model.safetensors")
    return folder


def write_gguf(folder, path):
    """The model of a folder in the format of llama.cpp."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL if t == END else gguf.TokenType.NORMAL for t in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_bos_token_id(tokens.index(END))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(False)
    names = {
        "wte.weight": "token_embd.weight",
        "wpe.weight": "position_embd.weight",
        "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias",
    }
    for layer in range(config["n_layer"]):
        for ours, theirs in BLOCK.items():
            for part in ("weight", "bias"):
                names[f"h.{layer}.{ours}.{part}"] = f"blk.{layer}.{theirs}.{part}"
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        ours = name.removeprefix("transformer.")
        is_turned = ours.startswith("h.") and tensor.ndim == 2
        writer.add_tensor(names[ours], (tensor.T if is_turned else tensor).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def url(folder, tmp_path_factory):
    """The address of the server."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(folder, path)
    port = closed_port()
    options = {"model": path, "model_alias": "tiny", "host": "127.0.0.1", "port": port}
    options |= {"n_ctx": CONTEXT, "n_threads": 1, "n_threads_batch": 1}
    command = [sys.executable, "-m", "llama_cpp.server"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    log = (path.parent / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/v1"
    patience = time.monotonic() + 120
    while True:
        try:
            load_model(url)
            break
        except ModelError:
            if process.poll() is not None or time.monotonic() > patience:
                process.kill()
                log.seek(0)
                pytest.fail(f"the server did not start: {log.read()[-2000:]}")
            time.sleep(0.1)
    yield url
    process.terminate()
    process.wait(120)
    log.close()


@pytest.fixture
def model(url):
    model = load_model(url)
    assert isinstance(model, RemoteModel)
    return model


def run(model, sampling, **options):
    *tokens, finished = model.generate(Request(model.tokenizer.encode(PROMPT), sampling, **options))
    assert finished.reason != "error", finished.message
    return [token for token in tokens if isinstance(token, Token)]


def test_it_says_what_the_decoder_here_says(model, folder):
    assert model.server.model == "tiny"
    ours = run(LocalModel.load(ModelFiles.read(folder)), GREEDY, top=3)
    theirs = run(model, GREEDY, top=3)
    assert len(ours) == GREEDY.max_tokens
    assert "".join(token.piece for token in theirs) == "".join(token.piece for token in ours)
    assert [token.piece for token in theirs] == [token.piece for token in ours]
    for token, other in zip(theirs, ours, strict=True):
        assert token.logprob == pytest.approx(other.logprob, abs=1e-3)
        best = {each.text: each.logprob for each in other.alternatives}
        for each in token.alternatives:
            assert each.logprob == pytest.approx(best.get(each.text, each.logprob), abs=1e-3)


def test_the_seed(model):
    first, again = (run(model, PLAIN_SAMPLING) for _ in range(2))
    assert [token.piece for token in first] == [token.piece for token in again]


def test_a_stop_string(model):
    whole = "".join(token.piece for token in run(model, GREEDY))
    stop = whole[8:10]
    text = "".join(token.text for token in run(model, GREEDY, stop=[stop]))
    assert whole.startswith(text)
    assert stop not in text


def test_cancelling_leaves_it_able_to_go_on(model):
    cancel = threading.Event()
    sampling = Sampling(temperature=0.0, max_tokens=200)
    events = model.generate(Request(model.tokenizer.encode(PROMPT), sampling, cancel=cancel))
    next(events)
    cancel.set()
    *_, finished = events
    assert finished.reason == "cancelled"
    assert run(model, GREEDY)


def test_a_chat(model, tmp_path):
    store = Store(tmp_path / "chats.db")
    session = Session(Chat(store), model, template=PLAIN, sampling=PLAIN_SAMPLING)
    for text in ("Hello", "And now?"):
        *_, finished = session.say(text)
        assert finished.reason in ("stop", "length")
        assert finished.prompt_tokens > 0
    assert [message.status for message in session.chat.messages] == ["complete"] * 4
    store.close()


def test_a_model_it_does_not_have(url):
    with pytest.raises(ModelError, match="there is no model 'huge'; it has tiny"):
        load_model(f"{url}#huge")
