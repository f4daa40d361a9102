"""Two whole steps of each objective beside TRL's trainer: loss, norm of the gradient, logged means.

The same weights of a tiny Llama, the same tokens, one micro-batch, AdamW at a constant rate.
"""

from copy import deepcopy
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import tiny_finetune as tiny
import tiny_grpo
import tiny_pairs
import torch
from torch import nn
from transformers import AutoTokenizer, LlamaForSequenceClassification

from finetune.config.objectives import DistillationSettings
from finetune.data.batches import Rows, collate
from finetune.data.encoding import Span
from finetune.data.preferences import EncodedVerdict
from finetune.objectives.distillation import Distillation
from finetune.objectives.grpo import REPLY_FIGURES, Grpo
from finetune.objectives.heads import add_head
from finetune.objectives.kto import Kto
from finetune.objectives.l3 import L3
from finetune.objectives.objective import through_head
from finetune.objectives.pairs import REWARD_SPEC, Cpo, Dpo, Orpo, Reward, Simpo
from finetune.objectives.rewards import Rewards
from finetune.objectives.rows import PairRows

BETA, RATE, LENGTH, SIZE = 0.3, 2e-3, 24, tiny.VOCABULARY + 1
REWARDS = {f"{side}_reward": f"rewards/{side}" for side in ("chosen", "rejected")}
REWARDS["margin"] = "rewards/margins"
PAIRED = {**REWARDS, "accuracy": "rewards/accuracies"}
LOGPS = {f"{side}_logp": f"logps/{side}" for side in ("chosen", "rejected")}


def split(example):
    """The ids of the prompt and of the reply."""
    is_reply = example.spans == Span.RESPONSE
    return example.ids[~is_reply].tolist(), example.ids[is_reply].tolist()


def labelled(example):
    return np.where(example.spans == Span.RESPONSE, example.ids, -100).tolist()


def supervised():
    return [{"input_ids": row.ids.tolist(), "labels": labelled(row)} for row in EXAMPLES]


def preferences():
    rows = []
    for one, other in zip(*tiny_pairs.pairs()[:2], strict=True):
        prompt, _ = split(one)
        row = {"prompt_ids": prompt, "prompt_input_ids": prompt, "margin": 0.0}
        row["prompt_attention_mask"] = [1] * len(prompt)
        for name, side in (("chosen", one), ("rejected", other)):
            row[f"{name}_ids"], ids = split(side)[1], side.ids.tolist()
            row |= {f"{name}_input_ids": ids, f"{name}_attention_mask": [1] * len(ids)}
            row[f"{name}_labels"] = labelled(side)
        rows.append(row)
    return rows


def rewarded():
    return [
        {f"{name}_ids": row[f"{name}_input_ids"] for name in ("chosen", "rejected")}
        for row in preferences()
    ]


def verdict_examples():
    """Long prompts with short replies, and the reverse: mixed, they are longer than a row."""
    made = tiny.examples([18, 20, 9, 14, 22, 8, 16, 11], seed=3)
    for number, example in enumerate(made):
        first = 3 if number % 2 else len(example.spans) - 3
        example.spans[:first], example.spans[first:] = Span.PROMPT, Span.RESPONSE
    return made


def verdicts():
    prompts, replies = zip(*map(split, verdict_examples()), strict=True)
    keys = ("prompt_ids", "completion_ids", "KL_completion_ids", "label")
    columns = (prompts, replies, [replies[-1], *replies[:-1]], LABELS)
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def verdicts_of_ours():
    pairs = zip(verdict_examples(), LABELS, strict=True)
    rows = [EncodedVerdict(reply, good, reply.key, reply.key) for reply, good in pairs]
    return PairRows(*Kto.sides(rows, LENGTH), "response", 0)


def distillation():
    settings = DistillationSettings(kind="distillation", teacher="x", beta=BETA)
    return Distillation(config=settings, teacher=tiny.llama(5, vocab_size=SIZE), window=64)


LABELS = [True, False, True, True, False, True, False, True]
EXAMPLES = tiny.examples([12, 5, 9, 20, 7, 16, 6, 11])
ADVANTAGES = torch.tensor([1.2, -0.4, 0.0, 0.7, -1.1, 0.3, -0.9, 0.2])
DPO = "trl:DPO"
CPO, ORPO, GKD = (f"trl.experimental.{name.lower()}:{name}" for name in ("CPO", "ORPO", "GKD"))
PAIRS, CHATS = tiny_pairs.rows, lambda: Rows(EXAMPLES, "prompt")
CASES = {
    "sft": (L3(aux_weight=0.0), CHATS, "trl:SFT", {}, supervised, {}),
    "gkd": (distillation, CHATS, GKD, {"lmbda": 0.0}, supervised, {}),
    "sigmoid": (Dpo(beta=BETA), PAIRS, DPO, {}, preferences, PAIRED),
    "ipo": (Dpo(beta=BETA, loss="ipo"), PAIRS, DPO, {"loss_type": ["ipo"]}, preferences, PAIRED),
    "hinge": (Dpo(beta=BETA, loss="hinge"), PAIRS, DPO, {"loss_type": ["hinge"]}, preferences,
              PAIRED),
    "robust": (Dpo(beta=BETA, smoothing=0.2), PAIRS, DPO,
               {"loss_type": ["robust"], "label_smoothing": 0.2}, preferences, PAIRED),
    "kto": (Kto(beta=BETA), verdicts_of_ours, "trl:KTO", {"max_length": LENGTH}, verdicts,
            {"kl": "kl", **REWARDS, **LOGPS}),
    "reward": (Reward(centring=0.1), PAIRS, "trl:Reward", {"center_rewards_coefficient": 0.1},
               rewarded, {"accuracy": "accuracy", "margin": "margin"}),
    "cpo": (Cpo(beta=BETA, weight=0.7), PAIRS, CPO, {"cpo_alpha": 0.7, "loss_type": "sigmoid"},
            preferences, {**PAIRED, **LOGPS}),
    "simpo": (Simpo(beta=BETA, gamma=1.2), PAIRS, CPO,
              {"cpo_alpha": 0.0, "loss_type": "simpo", "simpo_gamma": 1.2}, preferences, PAIRED),
    "orpo": (Orpo(beta=BETA, span="full"), partial(PAIRS, span="full"), ORPO, {}, preferences,
             {**PAIRED, **LOGPS}),
}  # fmt: skip
"""Our objective and its rows; TRL's trainer, its settings and the rows as its own columns; our
names of logged means -> TRL's."""


def scored(model):
    """TRL's reward model with the weights of ours."""
    config = deepcopy(model.config)
    config.num_labels, config.pad_token_id = 1, tiny.VOCABULARY
    made = LlamaForSequenceClassification(config)
    made.model.load_state_dict(model.model.state_dict())
    made.score = nn.Linear(config.hidden_size, 1)
    made.score.load_state_dict(model.task_head.state_dict())
    return made


def steps_of_trl(folder, model, case):
    """What TRL's trainer logs of two steps."""
    datasets = pytest.importorskip("datasets")
    _, _, place, settings, columns, _ = case
    module, _, name = place.partition(":")
    trl = import_module(module)
    kind = getattr(trl, f"{name}Trainer")
    tiny.base(folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(tiny.VOCABULARY)  # in no row
    rows = columns()
    # The rows are tokens; the trainers prepare nothing.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_prepare_dataset", lambda self, dataset, *_, **__: dataset, False)
        patch.setattr(datasets.Dataset, "map", lambda self, *_, **__: self)
        patch.setattr(datasets.Dataset, "filter", lambda self, *_, **__: self)
        arguments = {
            "output_dir": str(folder), "use_cpu": True, "bf16": False, "max_steps": 2,
            "per_device_train_batch_size": len(rows), "learning_rate": RATE, "report_to": "none",
            "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1,
            "disable_tqdm": True, "gradient_checkpointing": False,
        }  # fmt: skip
        if name not in ("SFT", "Reward"):
            arguments["beta"] = BETA
        more = {"teacher_model": tiny.llama(5, vocab_size=SIZE)} if name == "GKD" else {}
        more |= {"ref_model": deepcopy(model)} if name in ("DPO", "KTO") else {}
        trainer = kind(
            model=model,
            args=getattr(trl, f"{name}Config")(**arguments, **settings),
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            **more,
        )
        if name == "GKD":
            trainer.data_collator = padded
        trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


def padded(rows):
    sequence = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {
        "input_ids": sequence(ids),
        "attention_mask": sequence([torch.ones_like(row) for row in ids]),
        "labels": sequence([torch.tensor(row["labels"]) for row in rows], padding_value=-100),
    }


@pytest.mark.parametrize("name", CASES)
def test_two_steps_are_those_of_trl(tmp_path, name):
    pytest.importorskip("trl")
    objective, make_rows, place, _, _, means = case = CASES[name]
    objective = objective() if callable(objective) else objective
    model = tiny.llama(vocab_size=SIZE)
    if objective.added:
        add_head(model, REWARD_SPEC, seed=3)
    theirs = scored(model) if objective.added else deepcopy(model)
    wanted = steps_of_trl(tmp_path, theirs, case)
    rows = make_rows()
    if objective.needs_reference:
        tiny_pairs.with_reference(rows, model)
    made = tiny.trainer(
        tmp_path, model, rows, objective=objective, batch_size=len(rows), learning_rate=RATE
    )
    for ours, trl in zip(tiny.logged(made), wanted, strict=True):
        # TRL rounds its loss to four digits where it logs it.
        assert ours[objective.names[0]] == pytest.approx(trl["loss"], abs=6e-5), place
        assert ours["grad_norm"] == pytest.approx(trl["grad_norm"], rel=1e-4)
        for key, own in means.items():
            assert ours[key] == pytest.approx(trl[own], rel=1e-4, abs=1e-6), key


def padded_replies(trainer, reference):
    """The drawn replies as TRL's trainer has them: prompts padded at the left, replies at the
    right."""
    prompts, replies = zip(*map(split, EXAMPLES), strict=True)

    def block(rows, side):
        pad = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=side)
        ids = [torch.tensor(row) for row in rows]
        return pad(ids), pad([torch.ones_like(row) for row in ids])

    found = dict(zip(("prompt_ids", "prompt_mask"), block(prompts, "left"), strict=True))
    found |= zip(("completion_ids", "completion_mask"), block(replies, "right"), strict=True)
    pairs = ((found[f"prompt_{it}"], found[f"completion_{it}"]) for it in ("ids", "mask"))
    trainer.ref_model.load_state_dict(reference.state_dict())
    with torch.no_grad():
        logps, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.ref_model,
            *(torch.cat(pair, 1) for pair in pairs),
            found["completion_ids"].shape[1],
        )
    found |= {"advantages": ADVANTAGES, "ref_per_token_logps": logps}
    return found | {"num_items_in_batch": found["completion_mask"].sum()}


def test_two_steps_of_grpo_are_those_of_trl(tmp_path):
    """On the same replies with the same advantages; what draws them is no part of a step."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    model = tiny.llama(vocab_size=SIZE)
    reference = tiny.llama(5, vocab_size=SIZE).eval()
    model.save_pretrained(tmp_path / "theirs")
    objective = Grpo(config=tiny_grpo.settings(beta=BETA), rewards=Rewards([]))
    figures = (ADVANTAGES, ADVANTAGES, torch.zeros(len(EXAMPLES)))
    rows = Rows(EXAMPLES, "response", columns=dict(zip(REPLY_FIGURES, figures, strict=True)))
    batch = collate([rows[index] for index in range(len(rows))], 0)
    with torch.no_grad():
        batch["reference"] = through_head(
            reference,
            reference,
            batch,
            lambda hidden: objective.log_probs(hidden, reference, batch),
        )
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0)
    ours = []
    for _ in range(2):
        optimizer.zero_grad()
        counts = objective.count([batch], model, model)
        losses = objective.losses(model, model, batch, counts, 0.0)
        losses[0].backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        kl = losses.detach()[objective.names.index("kl")]
        ours.append((losses[0].item(), norm.item(), kl.item()))
    tiny.base(tmp_path / "base")
    arguments = {
        "output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "max_steps": 2,
        "per_device_train_batch_size": len(EXAMPLES), "num_generations": len(EXAMPLES),
        "learning_rate": RATE, "report_to": "none", "lr_scheduler_type": "constant",
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "beta": BETA,
        "gradient_checkpointing": False, "use_bias_correction_kl": True, "loss_type": "dapo",
    }  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=str(tmp_path / "theirs"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(**arguments),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * len(EXAMPLES)),
        processing_class=AutoTokenizer.from_pretrained(tmp_path / "base"),
    )
    drawn = padded_replies(trainer, reference)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_prepare_inputs", lambda batch: drawn)
        trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    for (loss, norm, kl), row in zip(ours, logged, strict=True):
        assert loss == pytest.approx(row["loss"], abs=6e-5)
        assert norm == pytest.approx(row["grad_norm"], rel=1e-4)
        assert kl == pytest.approx(row["kl"], rel=1e-4)
