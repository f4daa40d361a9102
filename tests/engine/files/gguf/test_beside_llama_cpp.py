"""Every pre-tokenizer beside llama.cpp itself, where the package xllamacpp is installed.

The vocabulary merges each text into one token, so that a cut at another place gives other ids.
"""

import json
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from gguf_files import LLAMA_KEYS, LLAMA_NAMES, write_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from chatapp.engine.files.gguf.pre_tokenizers import (
    BEGIN,
    CHARACTERS,
    PRE_TOKENIZERS,
    SPACES_MARKED,
    WHOLE_WORDS_FIRST,
)
from chatapp.engine.files.gguf.vocabulary import gguf_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="the package xllamacpp is not installed"
)

PIECES = [
    *("word", "Word", "WORD", "camelCase", "it's", "I'LL", "'s", "don't", "é", "ß", "Éa", "ǅ", "ʰ"),
    *("1", "12", "123", "1234567", "٣", "²", "½", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n"),
    *("\u00a0", "\u3000", ".", ",", "!", "?", "...", "-", "_", "/", "\\", "$", "=", "~", "`", "^"),
    *"( ) | “ ” 、 。 ！ λόγος ա Ж ый 日本 ひら カナ ｶ".split(),
    *"한국 ㄱ ㄅ हिन्दी العربية ไทย ລາວ မြန် ខ្មែរ \u0301 🦙 👩\u200d🚀 𐐀".split(),
    *("<sentinel:12>", "IMGIMGABZ", "𝟙", "€", "\u200b", "⅓", "豈", "\ufffd"),
]
TEXTS = ["".join(random.Random(seed).choices(PIECES, k=12)) for seed in range(60)] + [
    "Hello world, it's me; I'LL say: don't!  Two  spaces,\ttabs\n\nand lines \n end.  "
]

LLAMA_CPP = """
import json, os, sys, urllib.request
import xllamacpp
options = xllamacpp.CommonParams()
options.model.path = sys.argv[1]
options.n_ctx, options.n_parallel, options.warmup, options.fit_params = 64, 1, False, False
server = xllamacpp.Server(options)
for text in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": True}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body)
    print(json.load(urllib.request.urlopen(request))["tokens"], flush=True)
os._exit(0)  # the server's own end may hang
"""


def texts_for(name):
    """The texts; with "whitespace", llama.cpp ends its process at two spaces side by side."""
    return [" ".join(text.split()) for text in TEXTS] if name == "whitespace" else TEXTS


def vocabulary(name):
    """A vocabulary that is cut by a pre-tokenizer, and merges whatever it does not cut."""
    tokenizer = Tokenizer(models.BPE())
    if name in SPACES_MARKED:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    alphabet = pre_tokenizers.ByteLevel.alphabet() if name not in CHARACTERS else []
    if name not in CHARACTERS:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=100_000, initial_alphabet=alphabet, show_progress=False
    )
    if name == "whitespace":  # whose tokens hold none
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(texts_for(name), trainer)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gemma4" if name == "gemma4" else "gpt2",
        "tokenizer.ggml.pre": name,
        # Whole words that no merge leads to, and a token for the beginning of texts.
        "tokenizer.ggml.tokens": [*tokens, "wordcamelCase", "<s>"],
        "tokenizer.ggml.token_type": [1] * (len(tokens) + 1) + [3],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": len(tokens) + 1,
    }


def write_model(path, keys):
    """A file with a vocabulary and a model of one block, whose weights are zero."""
    size, width, inner = len(keys["tokenizer.ggml.tokens"]), 64, 96
    shapes = {"attn_k": (32, width), "attn_v": (32, width), "ffn_down": (width, inner)}
    shapes |= dict.fromkeys(("ffn_up", "ffn_gate"), (inner, width))
    shapes |= dict.fromkeys(("attn_norm", "ffn_norm"), (width,))
    tensors = {
        "token_embd.weight": torch.zeros(size, width),
        "output_norm.weight": torch.ones(width),
    }
    for name in LLAMA_NAMES.values():
        tensors[f"blk.0.{name}.weight"] = torch.zeros(shapes.get(name, (width, width)))

    def more(writer):
        writer.add_tokenizer_model(keys["tokenizer.ggml.model"])
        writer.add_tokenizer_pre(keys["tokenizer.ggml.pre"])
        writer.add_token_list(keys["tokenizer.ggml.tokens"])
        writer.add_token_types(keys["tokenizer.ggml.token_type"])
        writer.add_token_merges(keys["tokenizer.ggml.merges"])
        writer.add_bos_token_id(keys["tokenizer.ggml.bos_token_id"])

    write_file(path, {**LLAMA_KEYS, "llama.block_count": 1}, tensors, "F16", more=more)


def ids_of_llama_cpp(path, texts):
    """Of each text. Each file has a process of its own, as llama.cpp ends that of a wrong one."""
    done = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, str(path)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def distinct():
    """A name of each method."""
    rules = (BEGIN, CHARACTERS, SPACES_MARKED, WHOLE_WORDS_FIRST)
    methods = {
        (*patterns, *(name in rule for rule in rules)): name
        for name, patterns in PRE_TOKENIZERS.items()
    }
    return sorted(methods.values())


@pytest.mark.parametrize("name", distinct())
def test_each_method_gives_the_ids_of_llama_cpp(name, tmp_path):
    keys = vocabulary(name)
    path = tmp_path / f"{name}.gguf"
    write_model(path, keys)
    tokenizer = gguf_tokenizer(keys, name)
    begin = [keys["tokenizer.ggml.bos_token_id"]] * (name in BEGIN)
    texts = texts_for(name)
    for text, expected in zip(texts, ids_of_llama_cpp(path, texts), strict=True):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert begin + encoding.ids == expected, (text, encoding.tokens)
