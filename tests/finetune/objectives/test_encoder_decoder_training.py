"""An encoder-decoder model learns replies on its decoder, and is evaluated and chatted with."""

import json

import pytest
import seq2seq_models
import tiny_finetune
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy

from chatapp.engine.model import Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import collate
from finetune.run import train
from finetune.sharing import merge
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)
ROWS = [{"prompt": f"the {a} {b}", "completion": b} for a in ("cat", "dog") for b in ("sat", "ran")]


def config(folder, shape="t5", **changes):
    if not (folder / "model").exists():
        seq2seq_models.write_seq2seq(shape, folder / "model")
    (folder / "rows.json").write_text(json.dumps(ROWS * 4))
    settings = {
        "model": str(folder / "model"),
        "output": str(folder / "run"),
        "data": {"train": str(folder / "rows.json"), "held_out": 0.0, "template": "chat"},
        "train": {"max_steps": 150, "batch_size": 8, "learning_rate": 0.01, "precision": "float32"},
    }
    return FinetuneConfig.model_validate(settings | changes)


@pytest.mark.parametrize("shape", ["t5", "bart"])
def test_the_loss_is_transformers_own(tmp_path, shape):
    setup = set_up_run(config(tmp_path, shape), "cpu")
    rows = [setup.data.train[index] for index in range(3)]
    batch = collate(rows, 0)
    setup.model.eval()
    counts = setup.objective.count([batch], setup.model, setup.model)
    losses = setup.objective.losses(setup.model, setup.model, batch, counts, 0.0)
    total = 0.0
    speaker = setup.speaker()
    for row in rows:
        ids, first = row["input_ids"].tolist(), int(row["response_mask"].nonzero()[0])
        own = [*speaker.opening, *ids[first:]]
        with torch.no_grad():
            logits = setup.model(
                input_ids=torch.tensor([[*ids[:first], *speaker.end]]),
                decoder_input_ids=torch.tensor([own[:-1]]),
            ).logits[0, len(speaker.opening) - 1 :]
        total += float(cross_entropy(logits, torch.tensor(ids[first:]), reduction="sum"))
    assert losses[0].item() == pytest.approx(total / float(counts[0]), rel=1e-4)


def test_an_adapter_learns_and_is_merged(tmp_path):
    steps = {"method": "lora", "max_steps": 30, "learning_rate": 0.03, "precision": "float32"}
    run = train(config(tmp_path, train=steps), QUIET)
    losses = list(tiny_finetune.trace(run).values())
    assert losses[-1] < losses[0] - 0.3
    merge(str(run), tmp_path / "merged")
    text = load_model(str(run)).tokenizer.encode("the cat sat")
    own, merged = (
        load_model(str(at)).score([(text, text)])[0] for at in (run, tmp_path / "merged")
    )
    assert merged == pytest.approx(own, abs=1e-3)


def reply(model, prompt):
    """The greedy reply of a chat."""
    from chatapp.dialogue.writers.choosing import choose_template, writer_for
    from chatapp.dialogue.writers.prompt import Exchange

    speaker = load_model(str(model))
    template = choose_template(speaker, "")
    ids = writer_for(speaker, template).write(None, [Exchange(prompt)], max_tokens=8).ids
    greedy = Sampling(temperature=0.0, max_tokens=8)
    ((text, _),) = whole_replies(speaker.generate_many([Request(ids, greedy, template.stop)]))
    return text.strip()


def test_each_reply_of_a_chat_is_learned_after_what_precedes_it(tmp_path):
    made = config(tmp_path)
    turns = [("user", "the cat"), ("assistant", "sat"), ("user", "the dog"), ("assistant", "ran")]
    chat = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "rows.json").write_text(json.dumps([chat]))
    setup = set_up_run(made, "cpu")
    first, second = (setup.data.train[index] for index in range(2))
    decode = setup.tokenizer.decode
    assert decode(first["input_ids"][first["response_mask"]].tolist()).strip() == "sat"
    assert decode(second["input_ids"][second["response_mask"]].tolist()).strip() == "ran"
    assert "sat" in decode(second["input_ids"][~second["response_mask"]].tolist())


def test_what_is_trained_of_a_reply_are_its_own_tokens(tmp_path):
    """Not those of the rest of a line: T5's words begin with U+2581, and it has no line break."""
    few_shot = {"parts": ["cat: the cat\ndog:", " the dog", "\nfox:", " the fox"]}
    chat = {"prompt": "say", "completion": "the fox"}
    for template, row in (("alpaca", chat), ("chat", chat), ("chat", few_shot)):
        data = {"template": template, "train": str(tmp_path / "rows.json"), "held_out": 0.0}
        made = config(tmp_path, data=data)
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        setup = set_up_run(made, "cpu")
        trained = setup.data.train[len(setup.data.train) - 1]
        ids = trained["input_ids"][trained["response_mask"]].tolist()
        assert ids == [*setup.tokenizer.encode("the fox"), setup.tokenizer.end_id], template


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective": {"aux_weight": 0.5}}, "aux_weight is 0.5, .*predicts none of it"),
        ({"objective": {"kind": "dpo"}}, "expected objective.kind l3"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        train(config(tmp_path, **changes), QUIET)
