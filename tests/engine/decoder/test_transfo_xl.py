"""Transformer-XL against Dai et al. (2019), written here as the paper has it: segment by segment,
with the hidden states of the segments before as memory.
"""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.language_modelling import perplexity

WIDTH, HEADS, SIZE, INNER, LAYERS, MEMORY = 32, 2, 16, 48, 3, 6
CONFIG = {
    "model_type": "transfo-xl",
    "architectures": ["TransfoXLLMHeadModel"],
    "d_model": WIDTH,
    "d_embed": WIDTH,
    "n_head": HEADS,
    "d_head": SIZE,
    "d_inner": INNER,
    "n_layer": LAYERS,
    "mem_len": MEMORY,
    "clamp_len": 4,
    "div_val": 1,
    "cutoffs": [],
    "same_length": True,
    "untie_r": True,
    "eos_token_id": 0,
}

_TOKENIZER = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}


def save(folder, bpe, **changes):
    """Write a model with random weights under the names of transformers 4; return the weights."""
    config = CONFIG | {"vocab_size": bpe.get_vocab_size()} | changes
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=draw) * 0.3

    vocabulary, inside = config["vocab_size"], HEADS * SIZE
    weights = {
        "transformer.word_emb.emb_layers.0.weight": random(vocabulary, WIDTH),
        "crit.out_layers.0.bias": random(vocabulary),
    }
    biases = ("r_w_bias", "r_r_bias")
    for n in range(LAYERS):
        block = f"transformer.layers.{n}"
        weights |= {
            f"{block}.dec_attn.qkv_net.weight": random(3 * inside, WIDTH),
            f"{block}.dec_attn.r_net.weight": random(inside, WIDTH),
            f"{block}.dec_attn.o_net.weight": random(WIDTH, inside),
            f"{block}.pos_ff.CoreNet.0.weight": random(INNER, WIDTH),
            f"{block}.pos_ff.CoreNet.0.bias": random(INNER),
            f"{block}.pos_ff.CoreNet.3.weight": random(WIDTH, INNER),
            f"{block}.pos_ff.CoreNet.3.bias": random(WIDTH),
        }
        for norm in ("dec_attn", "pos_ff"):
            weights[f"{block}.{norm}.layer_norm.weight"] = 1 + random(WIDTH)
            weights[f"{block}.{norm}.layer_norm.bias"] = random(WIDTH)
        weights |= {f"{block}.dec_attn.{name}": random(HEADS, SIZE) for name in biases}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER))
    return weights


def by_the_paper(w, segments, config):
    """Logits of a text in segments; each layer attends to its memory and to the segment."""
    memory = config["mem_len"]
    memories = [torch.zeros(0, WIDTH) for _ in range(LAYERS)]
    logits = []
    for segment in segments:
        embedding = w["transformer.word_emb.emb_layers.0.weight"]
        h = embedding[segment] * WIDTH**0.5
        for n in range(LAYERS):
            block = f"transformer.layers.{n}."
            both = torch.cat([memories[n], h])
            memories[n] = both[-memory:]
            h = F.layer_norm(
                h + attended(w, n, h, both, config["clamp_len"], memory),
                (WIDTH,),
                w[block + "dec_attn.layer_norm.weight"],
                w[block + "dec_attn.layer_norm.bias"],
            )
            inner = h @ w[block + "pos_ff.CoreNet.0.weight"].T + w[block + "pos_ff.CoreNet.0.bias"]
            out = inner.relu() @ w[block + "pos_ff.CoreNet.3.weight"].T
            h = F.layer_norm(
                h + out + w[block + "pos_ff.CoreNet.3.bias"],
                (WIDTH,),
                w[block + "pos_ff.layer_norm.weight"],
                w[block + "pos_ff.layer_norm.bias"],
            )
        logits.append(h @ embedding.T + w["crit.out_layers.0.bias"])
    return torch.cat(logits)


def attended(w, n, h, both, farthest, seen):
    """The output of attention, one query, key and head at a time (section 3.3 of the paper)."""
    name = f"transformer.layers.{n}.dec_attn."
    wq, wk, wv = w[name + "qkv_net.weight"].chunk(3)
    u, v = w[name + "r_w_bias"], w[name + "r_r_bias"]
    queries = (h @ wq.T).view(-1, HEADS, SIZE)
    keys, values = ((both @ m.T).view(-1, HEADS, SIZE) for m in (wk, wv))
    rates = 1 / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    heads = torch.zeros(len(h), HEADS, SIZE)
    for i in range(len(h)):
        place = len(both) - len(h) + i
        first = max(0, place - seen + 1)
        for head in range(HEADS):
            scores = []
            for j in range(first, place + 1):
                angles = min(place - j, farthest) * rates
                r = (torch.cat([angles.sin(), angles.cos()]) @ w[name + "r_net.weight"].T).view(
                    HEADS, SIZE
                )[head]
                q = queries[i, head]
                content = q @ keys[j, head] + u[head] @ keys[j, head]
                scores.append((content + q @ r + v[head] @ r) / SIZE**0.5)
            shares = torch.stack(scores).softmax(0)
            heads[i, head] = shares @ values[first : place + 1, head]
    return heads.flatten(1) @ w[name + "o_net.weight"].T


@pytest.mark.parametrize(
    ("changes", "size"),
    [({}, 8), ({}, 3), ({"clamp_len": 30}, 8)],
    ids=["segments longer than the memory", "shorter", "distances beyond the memory"],
)
def test_logits_are_those_of_the_paper(tmp_path, bpe, changes, size):
    """The text is four times as long as the memory, and read in segments of several sizes."""
    weights = save(tmp_path, bpe, **changes)
    ids = torch.randint(0, 300, (25,), generator=torch.Generator().manual_seed(1)).tolist()
    segments = [ids[at : at + size] for at in range(0, len(ids), size)]
    wanted = by_the_paper(weights, segments, CONFIG | changes)
    model = load_model(str(tmp_path))
    assert isinstance(model, LocalModel)
    rounded = load_model(str(tmp_path), precision="int8")
    assert isinstance(rounded, LocalModel)
    exact, near = wanted[-1].log_softmax(0), rounded.logits(ids).log_softmax(0)
    assert float((exact.exp() * (exact - near[: len(exact)])).sum()) < 0.02
    decoder = model.decoder
    torch.testing.assert_close(
        decoder.forward(ids, all_positions=True), wanted, atol=1e-4, rtol=1e-4
    )
    cache = decoder.new_cache()
    parts = [decoder.forward(segment, cache, all_positions=True) for segment in segments]
    torch.testing.assert_close(torch.cat(parts), wanted, atol=1e-4, rtol=1e-4)
    # Scored, where labels share a beginning, and written, they are the same numbers.
    (scores,) = model.score([(ids[:9], ids[9:14])])
    logprobs = wanted.log_softmax(-1)
    assert scores == pytest.approx([float(logprobs[n - 1, ids[n]]) for n in range(9, 14)], abs=1e-3)
    best = int(wanted[-1].argmax())
    events = list(model.generate(Request(ids, Sampling(temperature=0.0, max_tokens=1))))
    assert getattr(events[0], "id", None) == best


def test_perplexity_with_and_without_memory(tmp_path, bpe):
    weights = save(tmp_path, bpe)
    model = load_model(str(tmp_path))
    text = "the cat sat on the mat and the dog sat on the cat " * 4
    ids = [model.tokenizer.end_id, *model.tokenizer.encode(text)]
    found = perplexity(model, text)
    targets = torch.tensor(ids[1:])
    wanted = by_the_paper(weights, [ids[:-1]], CONFIG)
    assert found.negative_log_likelihood == pytest.approx(
        float(F.cross_entropy(wanted, targets, reduction="sum")), rel=1e-4
    )
    alone = [
        by_the_paper(weights, [ids[at : at + MEMORY]], CONFIG)
        for at in range(0, len(ids) - 1, MEMORY)
    ]
    without = F.cross_entropy(torch.cat(alone)[: len(targets)], targets, reduction="sum")
    assert found.without_memory == pytest.approx(float(without), rel=1e-4)


@pytest.mark.parametrize(
    ("key", "value"), [("cutoffs", [100]), ("untie_r", False), ("same_length", False)]
)
def test_files_of_other_programs_are_refused(tmp_path, bpe, key, value):
    save(tmp_path, bpe, **{key: value})
    with pytest.raises(ModelError, match=rf"config.json: {key} is"):
        load_model(str(tmp_path))
