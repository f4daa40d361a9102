"""Models written as GGUF: read again, they are the same; what a file cannot say is refused."""

import json

import pytest
import torch
import transformers
from gguf_files import IDS
from random_models import GPT2_SIZES, LLAMA3, SIZES, logits_of, save_random
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chatapp.engine.errors import ModelError
from chatapp.engine.exporting import write_gguf
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.files.model_files import read_generation_config
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model


def export(folder, kind="f32", template=None):
    path = folder / "out" / "model.gguf"
    seen = []
    write_gguf(find_model(str(folder)), path, kind, template or {}, lambda *at: seen.append(at))
    assert seen[-1][0] == seen[-1][1] == len(GGUFFile(path).names)
    assert list(path.parent.iterdir()) == [path]
    return path


def test_sampling_defaults_go_with_it(tmp_path, bpe):
    save_random(tmp_path, "gpt2", bpe, **GPT2_SIZES)
    assert not read_generation_config(find_model(str(export(tmp_path)))).sampling
    values = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **values}))
    found = read_generation_config(find_model(str(export(tmp_path))))
    assert found.sampling == values
    assert not found.ignored
    file = GGUFFile(tmp_path / "out" / "model.gguf")
    assert file.metadata["general.sampling.top_k"] == 20
    assert file.metadata["general.sampling.temp"] == pytest.approx(0.6)


@pytest.mark.parametrize(("kind", "error"), [("f16", 0.01), ("q8_0", 0.3)])
def test_matrices_are_stored_as_asked_for(kind, error, tmp_path, bpe):
    model = save_random(tmp_path, "gpt2", bpe, **GPT2_SIZES)
    path = export(tmp_path, kind)
    file = GGUFFile(path)
    assert file.kind("blk.0.ffn_up.weight") == kind.upper()
    assert file.kind("blk.0.ffn_up.bias") == file.kind("position_embd.weight") == "F32"
    assert "output.weight" not in file.names
    difference = (load_model(str(path)).logits(IDS) - logits_of(model, IDS)[-1, :340]).abs().max()
    assert 0 < difference < error


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3_text"])
def test_norms_of_gemma_are_stored_with_one_added(kind, tmp_path, bpe):
    model = save_random(tmp_path, kind, bpe, **SIZES, head_dim=32, query_pre_attn_scalar=32)
    stored = GGUFFile(export(tmp_path)).read("output_norm.weight")
    assert torch.equal(stored, model.model.norm.weight + 1)


def test_a_gpt_neox_has_all_queries_first_then_keys_then_values(tmp_path, bpe):
    sizes = {key: size for key, size in SIZES.items() if key != "num_key_value_heads"}
    model = save_random(tmp_path, "gpt_neox", bpe, **sizes)
    weight = model.gpt_neox.layers[0].attention.query_key_value.weight
    heads = weight.split(16)  # query, key and value of the first of four heads, then of the next
    stored = GGUFFile(export(tmp_path)).read("blk.0.attn_qkv.weight")
    assert torch.equal(stored, torch.cat([*heads[0::3], *heads[1::3], *heads[2::3]]))


def test_numbers_too_large_for_half_precision_are_kept(tmp_path, bpe):
    model = save_random(tmp_path, "gpt2", bpe, **GPT2_SIZES)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = 1e6
    model.save_pretrained(tmp_path)
    file = GGUFFile(export(tmp_path, "f16"))
    assert file.kind("blk.0.ffn_up.weight") == "F32"
    assert file.array("blk.0.ffn_up.weight").max() == 1e6


def test_templates_and_ends_go_with_it(tmp_path, bpe):
    save_random(tmp_path, "gpt2", bpe, **GPT2_SIZES)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    fast.chat_template = {"default": "{{ messages }}", "rag": "{{ documents }}"}
    fast.save_pretrained(tmp_path)
    config = transformers.GenerationConfig(eos_token_id=[0, 7])
    config.save_pretrained(tmp_path)
    metadata = GGUFFile(export(tmp_path)).metadata
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["tokenizer.chat_template.rag"] == "{{ documents }}"
    assert metadata["tokenizer.ggml.eos_token_id"] == 0
    assert metadata["tokenizer.ggml.eot_token_id"] == 7
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.ggml.tokens"][340:] == [f"[PAD{id}]" for id in range(340, 352)]
    own = export(tmp_path, template={"tokenizer.chat_template": "mine"})
    assert GGUFFile(own).metadata["tokenizer.chat_template"] == "mine"


@pytest.mark.parametrize(
    ("cuts", "name"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "gpt-2"),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            ),
            "smollm",
        ),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex("."), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            None,
        ),
    ],
)
def test_the_way_of_cutting_is_recognised_or_refused(cuts, name, tmp_path, bpe):
    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.pre_tokenizer = cuts
    save_random(tmp_path, "gpt2", tokenizer, **GPT2_SIZES)
    if name is not None:
        assert GGUFFile(export(tmp_path)).metadata["tokenizer.ggml.pre"] == name
        return
    with pytest.raises(ModelError, match=r"in a way that llama.cpp does not know"):
        export(tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_sentencepiece_vocabulary_is_cut_as_before(tmp_path):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*"▁abc", "ab", "▁a", "▁ab", "bc", "abc"]
    merges = [
        ("a", "b"),
        ("▁", "a"),
        ("▁", "ab"),
        ("▁a", "b"),
        ("b", "c"),
        ("ab", "c"),
        ("a", "bc"),
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in pieces[:3]])
    save_random(tmp_path, "llama", tokenizer, **SIZES)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(tmp_path)
    path = export(tmp_path)
    loaded, again = load_model(str(path)), load_model(str(tmp_path))
    assert GGUFFile(path).metadata["tokenizer.ggml.model"] == "llama"
    for text in ("abc", "a bc  ab", "bcabc 🦙", " a"):
        assert loaded.tokenizer.encode(text) == again.tokenizer.encode(text)
    assert loaded.tokenizer.end_id == 2


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        (
            "opt",
            {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
            | {"ffn_dim": 64, "word_embed_proj_dim": 64},
            "model_type is 'opt'; what can be",
        ),
        ("gpt2", GPT2_SIZES | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
        ("gpt2", GPT2_SIZES | {"activation_function": "relu"}, "activation_function is 'relu'"),
        ("gemma2", SIZES | {"query_pre_attn_scalar": 11}, "query_pre_attn_scalar is 11; a GGUF"),
        (
            "llama",
            SIZES | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type is 'dynamic'; expected",
        ),
        ("llama", SIZES | {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.0}}, "rope_scaling"),
    ],
)
def test_what_a_file_cannot_say_is_refused(kind, config, words, tmp_path, bpe):
    save_random(tmp_path, kind, bpe, **config)
    with pytest.raises(ModelError, match=words):
        export(tmp_path)
    assert not list(tmp_path.rglob("*.gguf*"))
