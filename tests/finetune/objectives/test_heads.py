"""Heads: what they read, what their loss is, and that they come back as they were saved."""

import json
from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from fakes import WordTokenizer
from rich.console import Console
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from chatapp.engine.backends.head import HeadModel, HeadSpec
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.rows.reading import BadRow
from finetune.config.sections import ConfigError
from finetune.data.batches import collate
from finetune.data.formats import Labelled
from finetune.evaluation import evaluate
from finetune.objectives.heads import (
    ROLES,
    HeadExample,
    HeadObjective,
    HeadRows,
    add_head,
    class_logits,
    load_head_weights,
)
from finetune.objectives.objective import check_causal, check_head
from finetune.run import resume, train

QUIET = Console(stderr=True, quiet=True)
SPECS = {
    "classification": HeadSpec("classification", ("no", "yes"), "\n"),
    "entailment": HeadSpec("entailment", ("no", "yes"), "\n"),
    "similarity": HeadSpec("similarity", ("no", "yes"), " and "),
    "multiple-choice": HeadSpec("multiple-choice", (), "\n"),
}


def row(**fields):
    return Labelled("rows.jsonl, line 1", "0" * 16, fields)


EXAMPLES = {
    "classification": [
        HeadExample(((0, 5, 6, 0),), 1, "a"),
        HeadExample(((0, 7, 8, 9, 3, 0),), 0, "b"),
    ],
    "similarity": [
        HeadExample(((0, 5, 6, 0), (0, 6, 5, 0)), 1, "a"),
        HeadExample(((0, 7, 8, 9, 0), (0, 9, 7, 8, 0)), 0, "b"),
    ],
    "multiple-choice": [
        HeadExample(((0, 5, 6, 0), (0, 6, 5, 2, 0), (0, 1, 0)), 2, "a"),
        HeadExample(((0, 7, 8, 9, 0), (0, 9, 7, 8, 0)), 0, "b"),
    ],
}


def headed(task):
    model = tiny.gpt2()
    add_head(model, SPECS[task], seed=0)
    nn.init.normal_(model.task_head.weight)
    return model


def by_hand(model, task, examples):
    """L2 and L1 sequence by sequence, as the paper has them."""
    labels, texts = [], []
    for example in examples:
        states = []
        for ids in example.sequences:
            sequence = torch.tensor([ids])
            hidden = model.transformer(input_ids=sequence).last_hidden_state
            states.append(hidden[0, -1])
            logits = model.lm_head(hidden)[0, :-1]
            texts.append(functional.cross_entropy(logits, sequence[0, 1:], reduction="none"))
        if task == "multiple-choice":
            logits = torch.cat([model.task_head(state) for state in states])
        else:
            logits = model.task_head(sum(states))
        labels.append(functional.cross_entropy(logits[None], torch.tensor([example.label])))
    return torch.stack(labels).mean(), torch.cat(texts).mean()


@pytest.mark.parametrize("task", EXAMPLES)
def test_losses_and_gradients_are_those_by_hand(tmp_path, task):
    examples = EXAMPLES[task]
    model = headed(task)
    l2, l1 = by_hand(model, task, examples)
    (l2 + 0.5 * l1).backward()
    expected = {name: each.grad.clone() for name, each in model.named_parameters()}
    norm = torch.stack([each.norm() for each in expected.values()]).norm()

    rows = HeadRows(examples, pad_id=0)
    for size, accumulate in ((2, 1), (1, 2)):
        made = tiny.trainer(
            tmp_path, headed(task), rows, kind=HeadObjective, batch_size=size,
            accumulate=accumulate, steps=1, objective={"spec": SPECS[task]},
            collate=lambda batch: collate(batch, 0),
        )  # fmt: skip
        logs, gradients = tiny.step_gradients(made)
        assert logs["l2"] == pytest.approx(l2.item(), rel=1e-5)
        assert logs["l1"] == pytest.approx(l1.item(), rel=1e-5)
        assert logs["loss"] == pytest.approx((l2 + 0.5 * l1).item(), rel=1e-5)
        scale = min(1.0, 1.0 / norm.item())
        for name, gradient in expected.items():
            torch.testing.assert_close(
                gradients[name], gradient * scale, rtol=1e-4, atol=1e-6, msg=name
            )


def test_a_row_without_labels_counts_for_nothing():
    rows = HeadRows(EXAMPLES["multiple-choice"], pad_id=0)
    whole = [rows[0], rows[1]]
    off = {**rows[1], "response_mask": torch.zeros_like(rows[1]["response_mask"])}
    model = headed("multiple-choice")
    for batch, counted in ((collate(whole, 0), [True, True]), (collate([off], 0), [False])):
        hidden = model.transformer(input_ids=batch["input_ids"]).last_hidden_state
        logits, found = class_logits(model.task_head, hidden, batch, "multiple-choice")
        assert found.tolist() == counted
        assert logits.requires_grad


def labelled(path, task):
    lines = []
    for number in range(60):
        match task:
            case "multiple-choice":
                fields = {
                    "context": f"after {number}", "choices": ["comes", "What", "User"],
                    "label": number % 3,
                }  # fmt: skip
            case "similarity":
                other = "number" if number % 2 else "comes"
                fields = {"first": f"number {number}", "second": other, "label": number % 2}
            case "entailment":
                word = "after" if number % 2 else "User"
                fields = {"premise": f"it {number}", "hypothesis": word, "label": number % 2}
            case _:
                word = "after" if number % 2 else "User"
                fields = {"text": f"{word} {number}", "label": ("no", "yes")[number % 2]}
        lines.append(json.dumps(fields) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize("changes", [{}, {"method": "lora"}], ids=["full", "lora"])
def test_a_head_learns_is_saved_and_comes_back(tmp_path, changes):
    data = {"train": str(labelled(tmp_path / "labelled.jsonl", "classification")), "held_out": 0.3}
    config = tiny.config(
        tmp_path, data=data, head={"task": "classification"}, train={"epochs": 4, **changes}
    )
    run = train(config, QUIET)
    result = json.loads((run / "result.json").read_text())
    assert result["eval_accuracy"] > 0.9
    assert "eval_perplexity" not in result
    spec = HeadSpec.load(run)
    assert spec.labels == ("no", "yes")
    head = HeadModel.load("run", ModelFiles.read(run))
    (probabilities,) = head.outputs([head.encoder.sequences(["after 77"])])
    assert sum(probabilities) == pytest.approx(1)
    assert probabilities[1] > 0.5
    measured = evaluate(str(run), str(run), "", 0, 1, lambda *_: None).sets["held_out"]
    assert measured.figures["accuracy"] == pytest.approx(result["eval_accuracy"])
    assert measured.figures["loss"] == pytest.approx(result["eval_loss"], rel=1e-4)
    assert 0.4 < measured.figures["majority"] < 0.7
    assert measured.figures["macro_f1"] > 0.9


@pytest.mark.parametrize("task", ["entailment", "similarity", "multiple-choice"])
def test_every_task_trains_resumes_and_is_measured(tmp_path, task):
    data = {"train": str(labelled(tmp_path / "labelled.jsonl", task)), "held_out": 0.3}
    config = tiny.config(tmp_path, data=data, head={"task": task}, train={"epochs": 1})
    run = train(config, QUIET)
    steps = json.loads((run / "result.json").read_text())["steps"]
    resume(run, ["train.epochs=2"], QUIET)
    result = json.loads((run / "result.json").read_text())
    assert result["steps"] == 2 * steps
    found = evaluate(str(run), str(run), data["train"], 0, 1, lambda *_: None)
    (measured,) = found.sets.values()
    assert measured.examples == 60
    assert ("macro_f1" in measured.figures) is (task != "multiple-choice")


def test_what_is_wrong_with_a_head_is_named(tmp_path):
    path = labelled(tmp_path / "labelled.jsonl", "classification")
    data = {"train": str(path), "held_out": 0.3}
    head = {"task": "classification"}
    with pytest.raises(ConfigError, match=r"data\.template has no meaning with a head"):
        train(tiny.config(tmp_path, data={**data, "template": "chat"}, head=head), QUIET)
    with pytest.raises(BadRow, match=r"labelled\.jsonl, line 2: label is 'yes'; expected one of"):
        train(tiny.config(tmp_path, data=data, head={**head, "labels": ["no", "maybe"]}), QUIET)
    with pytest.raises(ConfigError, match="needs two labels or more"):
        train(tiny.config(tmp_path, data=data, head={**head, "labels": ["no"]}), QUIET)
    assert set(ROLES) == set(SPECS)
    (tmp_path / "head.json").write_text('{"task": "dance"}')
    with pytest.raises(ModelError, match=r"head\.json: expected the keys"):
        HeadSpec.load(tmp_path)
    model = headed("classification")
    (tmp_path / "head.safetensors").write_bytes(b"nonsense")
    (tmp_path / "head.json").write_text(
        json.dumps({"task": "similarity", "labels": ["a", "b"], "delimiter": "\n"})
    )
    with pytest.raises(ModelError, match="not the weights of this head"):
        load_head_weights(model, tmp_path)


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES = {
    **{name: {"num_key_value_heads": 1} for name in ("llama", "mistral", "qwen2", "phi")},
    **{name: {"num_key_value_heads": 1, "head_dim": 8} for name in ("qwen3", "gemma3_text")},
    "gpt_neox": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "bloom": {"n_head": 2},
}


def test_a_model_that_sees_its_labels_is_refused():
    shape = AutoConfig.for_model("bert", **SMALL)
    with pytest.raises(ConfigError, match=r"type bert see later tokens.*causal language model"):
        check_causal(AutoModelForCausalLM.from_config(shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_reads_any_family(family):
    torch.manual_seed(0)
    shape = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(shape)
    check_causal(model)
    check_head(model)
    spec = SPECS["classification"]
    add_head(model, spec, seed=0)
    nn.init.normal_(model.task_head.weight)
    examples = EXAMPLES["classification"]
    states = []
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda _, inputs: states.append(inputs[0][0, -1])
    )
    with torch.no_grad():
        for example in examples:
            model.eval()(input_ids=torch.tensor([example.sequences[0]]), use_cache=False)
        expected = model.task_head(torch.stack(states)).softmax(1)
    hook.remove()
    head = HeadModel(family, Path(), spec, model, model.task_head, WordTokenizer(), [])
    outputs = head.outputs([example.sequences for example in examples])
    torch.testing.assert_close(torch.tensor(outputs), expected, rtol=1e-4, atol=1e-5)
    batch = collate([*map(HeadRows(examples, pad_id=0).__getitem__, (0, 1))], 0)
    objective = HeadObjective(aux_weight=0.0, spec=spec)
    losses = objective.losses(model, model, batch, objective.count([batch], model, model), 0.0)
    labels = torch.tensor([int(example.label) for example in examples])
    assert losses[0].item() == pytest.approx(
        functional.nll_loss(expected.log(), labels).item(), rel=1e-3
    )
