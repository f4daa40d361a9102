"""What transformers calls its cache; that it is there whenever it was asked for; no silent loss."""

import inspect
import typing
from dataclasses import dataclass
from typing import Any

import peft
import pytest
import torch
import transformers
from random_models import logits_of, randomize
from seq2seq_models import write_seq2seq
from transformers.models.auto import modeling_auto

from chatapp.engine.backends import transformers_internals
from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.transformers_internals import (
    OTHER_CACHES,
    accepts,
    cache_name,
    cache_of,
    cut_back,
    keeps_cache,
)
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.lab.traces import TransformersTrace

GREEDY = Sampling(temperature=0, max_tokens=6)
PROMPT = list(range(270, 290))
NO_CACHE = f"transformers {transformers.__version__} returned no {cache_name()}, so every reply"


@pytest.fixture
def model(gpt2):
    return TransformersModel.load(ModelFiles.read(gpt2[0]))


@pytest.fixture
def seq2seq(tmp_path):
    write_seq2seq("t5", tmp_path)
    return EncoderDecoderModel.load(ModelFiles.read(tmp_path))


def drop_cache(network):
    """As if a release of transformers put its cache elsewhere."""
    network.register_forward_hook(lambda _, inputs, output: type(output)(logits=output.logits))


def message(model, ids):
    """A greedy reply, and how many tokens of the prompt were not read again."""
    *tokens, end = model.generate(Request(ids, GREEDY))
    return [token.id for token in tokens if isinstance(token, Token)], end.reused_tokens


def test_the_second_message_reads_only_what_is_new(model):
    first, reused = message(model, PROMPT)
    assert reused == 0
    _, reused = message(model, [*PROMPT, *first, 300, 301])
    assert reused == len(PROMPT) + len(first) - 1


@pytest.mark.parametrize("call", ["generate", "score"])
def test_a_cache_that_is_not_there_is_an_error(model, call):
    drop_cache(model.network)
    calls = {
        "generate": lambda: message(model, PROMPT),
        "score": lambda: model.score([(PROMPT, [300])]),
    }
    with pytest.raises(ModelError, match=f"GPT2LMHeadModel: {NO_CACHE}"):
        calls[call]()


def test_so_it_is_of_an_encoder_and_a_decoder(seq2seq):
    drop_cache(seq2seq.network)
    with pytest.raises(ModelError, match=f"T5ForConditionalGeneration: {NO_CACHE}"):
        message(seq2seq, [5, 6, 7])


def test_so_it_is_of_attention_weights(model):
    trace = TransformersTrace(model, PROMPT)
    assert trace.attention(5).shape == (2, 4, 6)
    drop_cache(model.network)
    with pytest.raises(ModelError, match=NO_CACHE):
        trace.attention(5)


def test_attention_weights_are_computed_of_one_row(model):
    trace = TransformersTrace(model, PROMPT)
    sizes = []
    model.network.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    trace.attention(9)
    assert sizes == [9, 1]


def test_an_adapter_that_learns_keeps_its_cache(gpt2):
    """peft's wrapper names few of the arguments that its base takes."""
    network = transformers.AutoModelForCausalLM.from_pretrained(gpt2[0])
    whole = TransformersModel.load(ModelFiles.read(gpt2[0]))
    settings = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    wrapped = peft.get_peft_model(network, settings, adapter_name="default")
    assert accepts(wrapped, "logits_to_keep")
    model = TransformersModel(wrapped, whole.tokenizer, name="policy")
    assert model.can_cache
    first, _ = message(model, PROMPT)
    assert first == message(whole, PROMPT)[0]
    assert message(model, [*PROMPT, *first, 300])[1] == len(PROMPT) + len(first) - 1


def test_a_name_that_is_not_known_is_an_error(monkeypatch):
    @dataclass
    class Output:
        logits: Any = None
        kept: Any = None

    cache_name.cache_clear()
    monkeypatch.setattr("transformers.modeling_outputs.CausalLMOutputWithPast", Output)
    with pytest.raises(ModelError, match="have neither cache nor past_key_values"):
        cache_name()
    monkeypatch.undo()
    assert cache_name() in ("cache", "past_key_values")


def test_only_a_cache_that_cannot_go_back_is_given_up(gpt2):
    """A method that is called something else now would be every reply's loss."""
    with pytest.raises(AttributeError):
        cut_back(object(), 1)
    network = gpt2[1]
    with torch.no_grad():
        output = network(torch.tensor([PROMPT]), **transformers_internals.cache_arguments(None))
    kept = cache_of(output, network)
    assert cut_back(kept, 5)
    with torch.no_grad():
        again = network(
            torch.tensor([PROMPT[-5:]]), **transformers_internals.cache_arguments(kept)
        ).logits[0]
    torch.testing.assert_close(again, logits_of(network, PROMPT)[-5:], atol=1e-4, rtol=1e-4)


def causal_models():
    """transformers' causal models and those of an encoder and a decoder, by their type."""
    names = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names |= modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return {
        kind: getattr(transformers, name if isinstance(name, str) else name[0])
        for kind, name in names.items()
    }


def test_the_models_of_transformers_that_keep_something_else():
    """Each release is looked through, so that a new kind of states is not taken for a cache."""
    others, without = set(), set()
    for kind, model in causal_models().items():
        parameter = inspect.signature(model.forward).parameters.get(cache_name())
        if parameter is None:
            without.add(kind)
            continue
        choices = typing.get_args(parameter.annotation)
        known = (transformers.Cache, tuple, list)  # the old ones are written as tuples or lists
        is_cache = any(issubclass(typing.get_origin(each) or each, known) for each in choices)
        if not is_cache or (model._is_stateful and is_all_states(model)):
            others.add(kind)
    # Of these the configuration that transformers makes has no block of attention; real ones have.
    others -= {"bamba", "granitemoehybrid"}
    assert others <= OTHER_CACHES
    # RecurrentGemma takes a cache as all do; that it gives none is tested below.
    assert others | without == OTHER_CACHES - {"recurrent_gemma"} | without
    assert without - OTHER_CACHES == {
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "openai-gpt",
        "reformer",
        "rwkv",
        "xlnet",
    }


def test_a_model_that_gives_no_cache_reads_its_whole_prompt(gpt2):
    """RecurrentGemma keeps states within itself; continued without them its replies were wrong."""
    config = transformers.RecurrentGemmaConfig(
        hidden_size=32,
        intermediate_size=64,
        lru_width=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        vocab_size=340,
    )
    network = randomize(transformers.RecurrentGemmaForCausalLM(config))
    tokenizer = TransformersModel.load(ModelFiles.read(gpt2[0])).tokenizer
    model = TransformersModel(network, tokenizer, name="recurrent")
    assert not model.can_cache
    expected = list(PROMPT)
    for _ in range(GREEDY.max_tokens):
        expected.append(int(logits_of(network, expected)[-1].argmax()))
    for _ in range(2):
        assert message(model, PROMPT) == (expected[len(PROMPT) :], 0)


def is_all_states(model):
    made = transformers.DynamicCache(config=model.config_class())
    return len(made.layers) > 0 and all(made.is_linear)


@pytest.mark.parametrize("kind", sorted(OTHER_CACHES))
def test_they_are_computed_without(kind):
    model = causal_models()[kind]

    class Network:
        forward = model.forward
        config = model.config_class()

    assert not keeps_cache(Network())
