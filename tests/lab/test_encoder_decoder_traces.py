"""Both stacks of T5 and BART, and the attention between them, are transformers' own."""

import numpy as np
import pytest
import torch
from seq2seq_models import SEQ2SEQ, write_seq2seq

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.errors import ModelError
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.lab.encoder_decoder import EncoderDecoderTrace, reply_of
from chatapp.lab.inspectable import inspectable
from chatapp.lab.views.attention_views import Attention, CrossAttention
from chatapp.lab.views.layer_views import Layers
from chatapp.lab.views.text_views import Tokens


@pytest.fixture(scope="module", params=SEQ2SEQ)
def pair(request, tmp_path_factory):
    """A model, the trace of a prompt with its reply, and transformers' output for both."""
    folder = tmp_path_factory.mktemp("seq2seq")
    write_seq2seq(request.param, folder)
    model = load_model(str(folder))
    assert isinstance(model, EncoderDecoderModel)
    prompt = model.tokenizer.encode("The lazy dog likes my friend.")
    reply = reply_of(model, prompt)[:6]
    assert len(reply) == 6
    opened = inspectable(model)
    trace = opened.inspect(prompt, reply=reply)
    assert isinstance(trace, EncoderDecoderTrace)
    network = model.network
    network.set_attn_implementation("eager")
    with torch.no_grad():
        output = network(
            input_ids=torch.tensor([[*model.start, *prompt, *model.end]]),
            decoder_input_ids=torch.tensor([[*model.opening, *reply]]),
            output_attentions=True,
            output_hidden_states=True,
        )
    return model, trace, output


def test_predictions_begin_with_the_reply(pair):
    model, trace, output = pair
    tokens = Tokens.of(trace, 3)
    size = trace.encoded
    assert tokens.expected[:size] == (None,) * size
    first = len(model.opening) - 1
    wanted = output.logits[0, first:, : model.vocabulary].log_softmax(-1)
    for place, id in enumerate(trace.ids[size:]):
        actual = tokens.actual(size + place)
        assert actual.id == id
        assert actual.rank == 1  # it is the greedy reply
        assert actual.probability == pytest.approx(float(wanted[place, id].exp()), abs=1e-5)


def test_attention_of_both_stacks_and_between_them(pair):
    model, trace, output = pair
    start, size, opening = len(model.start), trace.encoded, len(model.opening)
    own = slice(start, start + size)
    encoder, decoder, cross = (
        torch.stack(weights)[:, 0].numpy()
        for weights in (
            output.encoder_attentions, output.decoder_attentions, output.cross_attentions
        )
    )  # fmt: skip
    assert np.allclose(trace.attention(1), encoder[:, :, start + 1, own], atol=1e-5)
    for place in (0, 3, 5):
        row = opening + place
        weights = trace.attention(size + place)
        assert np.allclose(weights[..., :size], cross[:, :, row, own], atol=1e-5)
        assert np.allclose(weights[..., size:], decoder[:, :, row, opening : row + 1], atol=1e-5)
    rows = CrossAttention.of(trace, 1, 0)
    assert np.allclose(rows.weights, cross[1, 0, opening:, own], atol=1e-5)
    assert "layer 1 and head 0" in rows.reading
    mean = CrossAttention.of(trace).weights
    assert np.allclose(mean, cross[:, :, opening:, own].mean((0, 1)), atol=1e-5)
    assert trace.layers == len(decoder)


def test_a_sentence_has_both_sums(pair):
    _, trace, _ = pair
    size = trace.encoded
    reply = Attention.of(trace, size + 2)
    assert f"{sum(reply.weights[:size]):.4f}, those on the reply add up to" in reply.sums
    prompt = Attention.of(trace, 1)
    assert len(prompt.texts) == size
    assert prompt.position == 1
    assert "reply" not in prompt.sums
    heads = prompt.by_head.shape[1]
    with pytest.raises(UserError, match=f"head {heads} of {heads}"):
        Attention.of(trace, 1, 0, heads)


def test_what_the_decoders_layers_predict(pair):
    model, trace, output = pair
    size = trace.encoded
    row = len(model.opening) + 1
    lens = trace.layer_logits(size + 1)
    assert lens.shape == (trace.layers + 1, model.vocabulary)
    assert torch.allclose(lens[-1], output.logits[0, row, : model.vocabulary], atol=1e-4)
    # The last state goes through the same head as the earlier ones.
    states = list(trace._states)
    decoder = model.network.get_decoder()
    seen = []
    hook = (decoder.block if hasattr(decoder, "block") else decoder.layers)[-1]
    handle = hook.register_forward_hook(
        lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        model.network(
            input_ids=torch.tensor([[*model.start, *trace.ids[:size], *model.end]]),
            decoder_input_ids=torch.tensor([[*model.opening, *trace.ids[size:]]]),
        )
    handle.remove()
    trace._states = [seen[0].reshape(-1, seen[0].shape[-1]), states[-1]]
    try:
        assert torch.allclose(trace.layer_logits(size + 1)[0], lens[-1], atol=1e-4)
    finally:
        trace._states = states
    assert Layers.of(trace, size - 1).actual is not None
    with pytest.raises(ModelError, match="the encoder predicts no tokens"):
        trace.layer_logits(0)
    with pytest.raises(ModelError, match="choose a token with --token"):
        trace.attentions()


def test_a_reply_in_steps_is_the_generated_one(pair):
    model, trace, _ = pair
    opened = inspectable(model)
    assert opened is not None
    prompt, reply = trace.ids[: trace.encoded], trace.ids[trace.encoded :]
    greedy = Sampling(temperature=0.0)
    stepper = opened.stepper(prompt, greedy)
    assert [stepper.draw() for _ in reply] == list(reply)
    after = opened.stepper(prompt, greedy, reply=reply[:3])
    assert after.draw() == reply[3]
