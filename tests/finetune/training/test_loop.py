"""A step is its rows: the same losses and gradients however it is cut, padded or packed."""

import pytest
import tiny_finetune as tiny
import torch
from torch.nn import functional
from transformers import MistralConfig, MistralForCausalLM

from finetune.data.batches import Rows, collate
from finetune.data.preparation import HELD_OUT
from finetune.objectives.objective import model_inputs
from finetune.training.loop import NotFinite

LENGTHS = [12, 5, 9, 20, 7, 16, 6, 11]


def step(tmp_path, rows, model=None, **settings):
    return tiny.step_gradients(
        tiny.trainer(tmp_path, model or tiny.gpt2(), rows, steps=1, **settings)
    )


@pytest.mark.parametrize("aux_norm", ["token", "sequence"])
def test_the_cut_into_micro_batches_changes_nothing(tmp_path, aux_norm):
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    objective = {"aux_weight": 0.7, "aux_norm": aux_norm}
    whole = step(tmp_path, rows, batch_size=8, objective=objective)
    for size in (4, 1, 3):
        cut = step(tmp_path, rows, batch_size=size, accumulate=-(-8 // size), objective=objective)
        tiny.assert_same(cut, whole)


@pytest.mark.parametrize("model", [tiny.gpt2, tiny.llama])
@pytest.mark.parametrize("aux_norm", ["token", "sequence"])
def test_padding_packing_and_bucketing_change_nothing(tmp_path, model, aux_norm):
    examples = tiny.examples(LENGTHS)
    objective = {"aux_norm": aux_norm}
    padded = step(tmp_path, Rows(examples, "prompt"), model(), batch_size=8, objective=objective)
    rows = Rows.packed(examples, "prompt", 32, seed=0)
    assert len(rows) < 5
    packed = step(tmp_path, rows, model(), batch_size=len(rows), objective=objective)
    tiny.assert_same(packed, padded)
    one_row = Rows.packed(examples, "prompt", sum(LENGTHS), seed=0)
    kind = tiny.gpt2(n_positions=8 * 32) if model is tiny.gpt2 else model()
    reference = tiny.gpt2(n_positions=8 * 32) if model is tiny.gpt2 else model()
    tiny.assert_same(
        step(tmp_path, one_row, kind, batch_size=1, objective=objective),
        step(tmp_path, Rows(examples, "prompt"), reference, batch_size=8, objective=objective),
    )


def test_a_sliding_window_stays_within_an_example():
    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=tiny.VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=4,
        )
    ).eval()
    examples = tiny.examples([9, 7])
    packed = collate([Rows.packed(examples, "full", 16, seed=0)[0]], 0)
    together = model(**model_inputs(packed)).logits[0]
    for length in (9, 7):
        (row,) = (r for r in Rows(examples, "full") if len(r["input_ids"]) == length)
        alone = model(**model_inputs(collate([row], 0))).logits[0]
        start = 0 if length == 9 else 9
        torch.testing.assert_close(together[start : start + length], alone)


def test_held_out_losses_are_exact_means_over_all_rows(tmp_path):
    examples = tiny.examples(LENGTHS)
    rows = Rows(examples, "prompt")
    few = Rows(examples[:3], "prompt")
    model = tiny.gpt2()
    made = tiny.trainer(tmp_path, model, rows, held_out={HELD_OUT: rows, "qa": few}, batch_size=3)
    metrics = made.evaluate()
    for ending, some in (("", rows), ("_qa", few)):
        batch = collate(list(some), 0)
        with torch.no_grad():
            logits = model.eval()(input_ids=batch["input_ids"]).logits[:, :-1]
        nll = functional.cross_entropy(
            logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none"
        )
        chosen = batch["response_mask"][:, 1:]
        assert metrics[f"eval_loss{ending}"] == pytest.approx(nll[chosen].mean().item(), rel=1e-5)
        right = (logits.argmax(-1) == batch["input_ids"][:, 1:])[chosen].float().mean()
        assert metrics[f"eval_accuracy{ending}"] == pytest.approx(right.item())
        aux = nll[batch["aux_mask"][:, 1:]].mean().item()
        assert metrics[f"eval_l1{ending}"] == pytest.approx(aux, rel=1e-5)


def test_lambda_falls_to_zero(tmp_path):
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    made = tiny.trainer(
        tmp_path, tiny.gpt2(), rows, steps=4, objective={"aux_decays": True, "aux_weight": 0.8}
    )
    told = tiny.logged(made)
    weights = [(row["loss"] - row["l2"]) / row["l1"] for row in told]
    assert weights == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=1e-4)
    assert [row["aux_weight"] for row in told] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_loss_that_is_no_number_stops_before_the_weights_are_touched(tmp_path):
    model = tiny.gpt2()
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    before = model.transformer.h[0].mlp.c_fc.weight.detach().clone()
    with torch.no_grad():
        model.transformer.wte.weight[5] = torch.nan
    with pytest.raises(NotFinite, match="loss is nan at step 1") as caught:
        tiny.trainer(tmp_path, model, rows).train()
    assert (caught.value.batches[0]["input_ids"] == 5).any()
    assert torch.equal(model.transformer.h[0].mlp.c_fc.weight, before)


def test_a_gradient_that_is_no_number_stops_too(tmp_path):
    model = tiny.gpt2()
    model.transformer.h[0].ln_1.weight.register_hook(lambda gradient: gradient * torch.inf)
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    with pytest.raises(NotFinite, match=r"gradient is (nan|inf) at step 1"):
        tiny.trainer(tmp_path, model, rows).train()


def test_a_request_to_stop_saves_after_the_step(tmp_path):
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    made = tiny.trainer(tmp_path, tiny.gpt2(), rows, steps=9, save_every=100)
    made.stop_requested = True
    made.train()
    assert made.progress.step == 1
    assert (tmp_path / "checkpoint-1" / "model.safetensors").exists()
