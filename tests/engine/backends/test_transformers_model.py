"""Other architectures behind the same protocol, against plain calls of transformers."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
import transformers
from random_models import END, SENTENCES, logits_of, randomize
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.description import describe
from chatapp.engine.models.loading import load_model
from chatapp.engine.tokenizers import BPETokenizer, TransformersTokenizer

GREEDY = Sampling(temperature=0, max_tokens=12)


def pieces_tokenizer(*, start=False):
    """SentencePiece-like: words begin with U+2581, unknown characters fall back to bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    # The bytes are ordinary tokens, only reserved during training.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": 340}
CONFIGS = {
    "llama": transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        **ENDS,
    ),
    "sliding mistral": transformers.MistralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        sliding_window=8,
        **ENDS,
    ),
    "gpt-neo": transformers.GPTNeoConfig(
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=5,
        max_position_embeddings=96,
        **ENDS,
    ),
    "opt": transformers.OPTConfig(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        max_position_embeddings=96,
        **ENDS,
    ),
    "gpt": transformers.OpenAIGPTConfig(n_embd=32, n_layer=2, n_head=4, n_positions=96, **ENDS),
    "xlnet": transformers.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, **ENDS),
    "mamba": transformers.MambaConfig(
        hidden_size=32, state_size=4, num_hidden_layers=2, time_step_rank=2, **ENDS
    ),
}
REUSES_CACHE = {"llama", "gpt-neo", "opt"}


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request):
    name = request.param
    return name


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp(kind)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind])
    randomize(model).save_pretrained(folder)
    pieces_tokenizer(start=kind == "opt").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def model(folder):
    return TransformersModel.load(ModelFiles.read(folder), name=str(folder))


def reply(model, ids, sampling=GREEDY):
    return [
        event.id for event in model.generate(Request(ids, sampling)) if isinstance(event, Token)
    ]


def finished(model, ids):
    event = list(model.generate(Request(ids, GREEDY)))[-1]
    assert isinstance(event, Finished)
    return event


def slow_greedy(reference, ids, steps):
    """Without any cache: one plain call of the whole sequence for each token."""
    ids = list(ids)
    found = []
    while len(found) < steps:
        with torch.no_grad():
            id = int(last_logits(reference, ids).argmax())
        if id == 2:
            break
        ids.append(id)
        found.append(id)
    return found


def last_logits(reference, ids):
    with torch.no_grad():
        inputs = {"input_ids": torch.tensor([ids])}
        if reference.config.model_type == "xlnet":
            inputs = reference.prepare_inputs_for_generation(inputs["input_ids"])
        logits = reference(**inputs).logits[0, -1]
    return logits


def start_of(kind):
    return [1] if kind == "opt" else []


def test_greedy_text_with_and_without_a_changed_prefix(kind, model, reference):
    start = start_of(kind)
    prompt = list(range(270, 290))
    first = reply(model, prompt)
    assert first == slow_greedy(reference, start + prompt, 12)
    longer = prompt + first + [300, 301]
    if kind in REUSES_CACHE:
        assert finished(model, longer).reused_tokens >= len(prompt) + len(first) - 1
    assert reply(model, longer) == slow_greedy(reference, start + longer, 12)
    changed = [*prompt[:7], 333, *prompt[8:]]
    if kind in REUSES_CACHE:
        assert finished(model, changed).reused_tokens == 7
    assert reply(model, changed) == slow_greedy(reference, start + changed, 12)


def test_scores(kind, model, reference):
    start = start_of(kind)
    pairs = [([280, 290, 300], [281]), ([290], [300, 301, 302, 303]), ([270] * 9, [5, 6])]
    for (context, continuation), found in zip(pairs, model.score(pairs), strict=True):
        expected = []
        for place, id in enumerate(continuation):
            logits = last_logits(reference, start + context + continuation[:place])
            expected.append(float(logits.log_softmax(0)[id]))
        assert found == pytest.approx(expected, abs=1e-4)


def test_embeddings(kind, model, reference):
    ids, start = [280, 290, 300, 281], start_of(kind)
    with torch.no_grad():
        tokens = torch.tensor([start + ids])
        states = reference(input_ids=tokens, output_hidden_states=True).hidden_states
    for layer in (0, 1, -1):
        expected = states[layer][0, len(start) :].mean(0).numpy()
        assert model.embed(ids, layer) == pytest.approx(expected, abs=1e-5)


def test_the_window(kind, model):
    limits = {"xlnet": 1024, "mamba": 1024, "opt": 95}
    assert model.context == limits.get(kind, 96)


def test_the_same_seed_gives_the_same_text(model):
    sampling = Sampling(temperature=1.5, seed=2, max_tokens=10)
    first = reply(model, [270, 271], sampling)
    reply(model, [300])
    assert reply(model, [270, 271], sampling) == first


def test_description(kind, folder, reference):
    info = describe(ModelFiles.read(folder))
    assert (info.layers, info.hidden_size, info.vocabulary) == (2, 32, 340)
    assert info.heads == (0 if kind == "mamba" else 4)
    assert info.context == (1024 if kind in ("xlnet", "mamba") else 96)
    assert info.parameters == sum(parameter.numel() for parameter in reference.parameters())


def test_the_sizes_of_an_encoder_decoder_model_are_its_decoders(tmp_path):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "vocab_size": 340}
    config = transformers.T5Config(num_layers=2, num_decoder_layers=3, **sizes)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    info = describe(ModelFiles.read(tmp_path))
    assert (info.layers, info.heads, info.hidden_size, info.vocabulary) == (3, 4, 32, 340)


@pytest.fixture(scope="module")
def tokenizer():
    return TransformersTokenizer(pieces_tokenizer())


@pytest.mark.parametrize(
    "text", ["The lazy dog", "User: naïve 😀 中文!", "  two  spaces\nand lines ", "<s> is no token"]
)
def test_streaming_without_bytes(tokenizer, text):
    ids = tokenizer.encode(text)
    assert not {1, 2} & set(ids)
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    parts = [stream.push(id) for id in ids]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)
    assert stream.flush() == ""


def test_streaming_ends_in_the_middle_of_a_character(tokenizer):
    stream = tokenizer.stream()
    *ids, _ = tokenizer.encode("dog😀")
    assert "".join(stream.push(id) for id in ids) == "dog"
    assert stream.flush() == ""


def test_pieces_and_surrogates(tokenizer):
    assert "".join(map(tokenizer.piece, tokenizer.encode("The lazy"))) == "The lazy"
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.size == 340


def test_byte_level_tokenizers_stream_by_bytes(gpt2, tmp_path, bpe):
    config = transformers.LlamaConfig(**CONFIGS["llama"].to_dict() | {"eos_token_id": [0, 7]})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END).save_pretrained(
        tmp_path
    )
    model = TransformersModel.load(ModelFiles.read(tmp_path))
    assert isinstance(model.tokenizer, BPETokenizer)
    assert model.end_ids == {0, 7}
    assert LocalModel.load(ModelFiles.read(gpt2[0])).tokenizer.encode(
        "a 😀"
    ) == model.tokenizer.encode("a 😀")


def test_a_gpt2_with_another_tokenizer(gpt2, tmp_path):
    folder = Path(shutil.copytree(gpt2[0], tmp_path / "model"))
    pieces_tokenizer().save_pretrained(folder)
    model = load_model(str(folder))
    assert isinstance(model.tokenizer, TransformersTokenizer)
    assert reply(model, [270, 271]) == slow_greedy(gpt2[1], [270, 271], 12)


@pytest.fixture(scope="module")
def adapter(make_gpt2, tmp_path_factory):
    """A LoRA adapter's folder and the adapted model itself."""
    base, model = make_gpt2(seed=5)
    config = peft.LoraConfig(
        r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    adapted = peft.get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    randomize(adapted, seed=6)
    # The base's weights were randomized as well: they go back to what is on disk.
    stored = load_file(base / "model.safetensors")
    layers = adapted.base_model.model.state_dict()
    for name, tensor in stored.items():
        layers[
            name
            if name in layers
            else name.replace(".weight", ".base_layer.weight").replace(".bias", ".base_layer.bias")
        ].copy_(tensor)
    folder = tmp_path_factory.mktemp("adapter")
    adapted.save_pretrained(folder)
    return folder, adapted.eval()


def test_an_adapter_with_its_base(adapter):
    folder, adapted = adapter
    model = load_model(str(folder))
    assert model.files == ModelFiles.read(folder)
    assert reply(model, [270, 271, 5]) == slow_greedy(adapted, [270, 271, 5], 12)
    [found] = model.score([([7, 8], [9, 10])])
    rows = logits_of(adapted, [7, 8, 9, 10]).log_softmax(-1)
    assert found == pytest.approx([float(rows[1, 9]), float(rows[2, 10])], abs=1e-4)
    config = json.loads((folder / "adapter_config.json").read_text())
    [before] = load_model(config["base_model_name_or_path"]).score([([7, 8], [9, 10])])
    assert found != pytest.approx(before, abs=1e-3)


def test_description_of_an_adapter(adapter):
    folder, adapted = adapter
    info = describe(ModelFiles.read(folder))
    assert info.architecture == "LORA adapter of GPT2LMHeadModel"
    assert info.parameters == sum(parameter.numel() for parameter in adapted.parameters())
    assert (info.folder, info.layers) == (folder, 2)


def broken_adapter(adapter, tmp_path, **changes):
    folder = Path(shutil.copytree(adapter[0], tmp_path / "adapter"))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def refusal(folder):
    with pytest.raises(ModelError) as error:
        load_model(str(folder))
    message = str(error.value)
    assert "\n" not in message
    return message


def test_adapters_that_cannot_be_loaded(adapter, tmp_path):
    folder = broken_adapter(adapter, tmp_path, base_model_name_or_path=None)
    assert "base_model_name_or_path" in refusal(folder)
    shutil.rmtree(folder)
    folder = broken_adapter(adapter, tmp_path, base_model_name_or_path="./gone")
    assert "./gone" in refusal(folder)
    shutil.rmtree(folder)
    folder = broken_adapter(adapter, tmp_path, r=5)
    assert "does not fit" in refusal(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "only safetensors" in refusal(folder)


def test_prompt_tuning_is_refused(gpt2, tmp_path):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    tuned = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained(gpt2[0]), config)
    tuned.peft_config["default"].base_model_name_or_path = str(gpt2[0])
    tuned.save_pretrained(tmp_path)
    assert "PROMPT_TUNING" in refusal(tmp_path)


@pytest.fixture
def llama(tmp_path):
    folder = tmp_path / "llama"
    transformers.LlamaForCausalLM(CONFIGS["llama"]).save_pretrained(folder)
    pieces_tokenizer().save_pretrained(folder)
    return folder


def test_missing_tensors_are_not_made_up(llama):
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    assert "model.layers.1.mlp.up_proj.weight" in refusal(llama)


def test_misshaped_tensors_are_refused(llama):
    tensors = load_file(llama / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    assert str(llama) in refusal(llama)


def test_what_is_no_causal_model(llama):
    path = llama / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"architectures": ["LlamaForSequenceClassification"]}))
    assert "LlamaForSequenceClassification" in refusal(llama)
    path.write_text(json.dumps({"model_type": "no such thing"}))
    assert str(llama) in refusal(llama)


def test_missing_tokenizers(llama):
    for path in llama.glob("tokenizer*"):
        path.unlink()
    assert "tokenizer" in refusal(llama)


def test_code_of_a_folder_is_never_run(llama):
    path = llama / "config.json"
    (llama / "evil.py").write_text("raise SystemExit('ran')\nclass Config: pass\n")
    auto = {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Config"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | auto | {"model_type": "unheard"}))
    assert str(llama) in refusal(llama)
