"""Models of an encoder and a decoder behind the same protocol, against transformers itself."""

import json
import threading

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from seq2seq_models import SEQ2SEQ, write_seq2seq

from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.kernels.machine import Memory
from chatapp.engine.model import ContextOverflow, Request, Sampling
from chatapp.engine.models.description import describe
from chatapp.engine.models.loading import load_model

GREEDY = Sampling(temperature=0, max_tokens=16)
TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module", params=SEQ2SEQ)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seq2seq")
    write_seq2seq(request.param, folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def model(folder):
    model = load_model(str(folder))
    assert isinstance(model, EncoderDecoderModel)
    return model


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    write_seq2seq("t5", folder)
    return folder


def drawn(events):
    return [event.id for event in events if isinstance(event, Token)]


def the_end(events):
    assert isinstance(events[-1], Finished)
    return events[-1]


def opening_of(reference):
    """The decoder's tokens before a reply."""
    chosen = reference.generation_config
    ids = [chosen.decoder_start_token_id, chosen.forced_bos_token_id]
    return [id for id in ids if id is not None] or [reference.config.pad_token_id]


def greedy(reference, tokenizer, text, steps):
    """What transformers' own generation draws, without what stands around it."""
    ids = tokenizer(text, return_tensors="pt").input_ids
    opening = len(opening_of(reference))
    found = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=steps + opening,
        do_sample=False,
        use_cache=False,  # which fails where the decoder is deeper than the encoder
        forced_eos_token_id=None,
        decoder_start_token_id=opening_of(reference)[0],
    )[0, opening:].tolist()
    end = tokenizer.eos_token_id
    return found[: found.index(end)] if end in found else found[:steps]


def reference_logprobs(reference, encoder, reply):
    """Without any cache: the whole of both for one call."""
    opening = opening_of(reference)
    with torch.no_grad():
        logits = reference(
            input_ids=torch.tensor([encoder]),
            decoder_input_ids=torch.tensor([opening + reply[:-1]]),
        ).logits[0, len(opening) - 1 :]
    return [float(row.log_softmax(0)[id]) for row, id in zip(logits, reply, strict=True)]


def test_greedy_text_is_that_of_transformers(model, reference, tokenizer):
    sampling = Sampling(temperature=0, max_tokens=40, max_repeats=0)
    replies = []
    for text in (TEXT, TEXT[:20], "User: Hello, who are you?\nAssistant:"):
        events = list(model.generate(Request(model.tokenizer.encode(text), sampling)))
        replies.append(drawn(events))
        assert replies[-1] == greedy(reference, tokenizer, text, 40)
        told = "".join(event.text for event in events)
        assert told.strip() == model.tokenizer.decode(replies[-1]).strip()
    assert len({tuple(reply) for reply in replies}) > 1


def test_each_token_has_the_logarithm_that_transformers_gives_it(model, reference):
    ids = model.tokenizer.encode(TEXT)
    sampling = Sampling(temperature=1.2, seed=4, max_tokens=20, max_repeats=0)
    events = list(model.generate(Request(ids, sampling)))
    around = [*model.start, *ids, *model.end]
    expected = reference_logprobs(reference, around, drawn(events))
    found = [event.logprob for event in events if isinstance(event, Token)]
    assert found == pytest.approx(expected, abs=1e-4)
    assert drawn(list(model.generate(Request(ids, sampling)))) == drawn(events)


def test_a_forced_start_is_the_decoders(model, reference):
    """The encoder reads the prompt alone."""
    ids, forced = model.tokenizer.encode(TEXT), [20, 21]
    events = list(model.generate(Request(ids, GREEDY, forced=forced)))
    assert drawn(events)[:2] == forced
    expected = reference_logprobs(reference, [*model.start, *ids, *model.end], drawn(events))
    found = [event.logprob for event in events if isinstance(event, Token)]
    assert found[2:] == pytest.approx(expected[2:], abs=1e-4)


def test_two_replies_at_once_do_not_disturb_each_other(model):
    prompts = [model.tokenizer.encode(text) for text in (TEXT, TEXT[:20])]
    alone = [list(model.generate(Request(ids, GREEDY))) for ids in prompts]
    streams = [model.generate(Request(ids, GREEDY)) for ids in prompts]
    together = [[], []]
    for _ in range(20):
        for stream, events in zip(streams, together, strict=True):
            if (event := next(stream, None)) is not None:
                events.append(event)
    assert [drawn(events) for events in together] == [drawn(events) for events in alone]


def test_a_prompt_is_read_once(model):
    reads = []
    model.network.get_encoder().register_forward_hook(lambda *arguments: reads.append(1))
    ids = model.tokenizer.encode(TEXT)
    assert the_end(list(model.generate(Request(ids, GREEDY)))).reused_tokens == 0
    assert the_end(list(model.generate(Request(ids, GREEDY)))).reused_tokens == len(ids)
    model.score([(ids, [5, 6]), (ids, [7])])
    assert len(reads) == 1
    model.score([(ids[:3], [5]), (ids, [7]), (ids[:3], [8])])
    assert len(reads) == 3


def test_scores(model, reference):
    pairs = [([20, 21, 22], [9]), ([30], [31, 32, 33]), ([20, 21, 22], [9, 10, 11, 12])]
    list(model.generate(Request([20, 21, 22], GREEDY)))
    for (context, continuation), found in zip(pairs, model.score(pairs), strict=True):
        around = [*model.start, *context, *model.end]
        expected = reference_logprobs(reference, around, continuation)
        assert found == pytest.approx(expected, abs=1e-4)


def test_embeddings_are_the_encoders(model, reference):
    ids = model.tokenizer.encode(TEXT)
    tokens = torch.tensor([[*model.start, *ids, *model.end]])
    with torch.no_grad():
        encoded = reference.get_encoder()(input_ids=tokens, output_hidden_states=True)
    for layer in (0, 1, -1):
        states = encoded.hidden_states[layer][0, len(model.start) :][: len(ids)]
        assert model.embed(ids, layer) == pytest.approx(states.mean(0).numpy(), abs=1e-5)


def test_description(folder, reference):
    info = describe(ModelFiles.read(folder))
    decoder = reference.get_decoder()
    is_bart = reference.config.model_type == "bart"
    assert info.layers == len(decoder.layers if is_bart else decoder.block)
    assert info.heads == (2 if is_bart else 4)
    assert (info.hidden_size, info.vocabulary) == (32, reference.config.vocab_size)
    assert info.parameters == sum(parameter.numel() for parameter in reference.parameters())


def test_a_long_prompt_can_be_cancelled_while_it_is_read(model):
    class SecondLook(threading.Event):
        looks = 0

        def is_set(self):
            self.looks += 1
            return self.looks > 3

    ids = model.tokenizer.encode(TEXT)
    events = list(model.generate(Request(ids, GREEDY, cancel=SecondLook())))
    assert len(events) == 1
    assert the_end(events).reason == "cancelled"
    assert drawn(list(model.generate(Request(ids, GREEDY))))


def test_the_window(t5):
    model = load_model(str(t5))
    assert model.context == 199  # one is for what follows the text
    with pytest.raises(ContextOverflow, match="the prompt has 199 tokens"):
        model.generate(Request([5] * 199, GREEDY))
    events = list(model.generate(Request([5] * 195, Sampling(seed=1, max_tokens=40))))
    assert the_end(events).reason in ("context", "stop")
    with pytest.raises(ContextOverflow, match="199"):
        model.score([([5] * 150, [6] * 50)])


def test_what_cannot_be_shown_is_said(t5):
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_causal(ModelFiles.read(t5))


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_bad_ones_are_told_in_a_sentence(tmp_path):
    write_seq2seq("t5", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "decoder.block.1.layer.1.EncDecAttention.k.weight"
    save_file(
        {key: value for key, value in weights.items() if key != name},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match=f"{name}' is missing"):
        load_model(str(tmp_path))
    with pytest.raises(ModelError, match="transformers cannot read it"):
        load_model(str(changed(tmp_path, d_model="wide")))
    with pytest.raises(ModelError, match="an encoder and a decoder"):
        load_model(str(changed(tmp_path, d_model=32, architectures=["T5ForTokenClassification"])))
    with pytest.raises(ModelError, match="only gpt2"):
        load_model(str(changed(tmp_path, architectures=None)), precision="int8")


def test_a_model_that_does_not_say_how_replies_begin(tmp_path):
    write_seq2seq("t5", tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    changed(tmp_path, pad_token_id=None, decoder_start_token_id=None)
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        load_model(str(tmp_path))


def test_a_huge_one_is_told_before_it_is_loaded(t5, monkeypatch):

    from chatapp.engine.models import description

    monkeypatch.setattr(description, "machine_memory", lambda: Memory(1000, 500))
    with pytest.raises(ModelError, match=r"takes about .* of memory, and this machine has"):
        load_model(str(t5))
