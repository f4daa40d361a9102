"""GRPO: its loss by hand, what is drawn from, and its rows."""

import json
from io import StringIO

import numpy as np
import pytest
import tiny_finetune as tiny
import tiny_pairs
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from tiny_grpo import config, settings
from torch import Tensor

from finetune.config.keys import keys
from finetune.config.sections import ConfigError
from finetune.data.batches import Rows, collate, pack
from finetune.objectives.grpo import REPLY_FIGURES, Grpo, PromptRows, advantages
from finetune.objectives.rewards import Rewards
from finetune.run import examine, show
from finetune.training.draws import Rollouts, current_tensors
from finetune.training.setup import set_up_run

LENGTHS = [9, 14, 8, 20, 6, 10, 13, 7]
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])


# --- the loss ----------------------------------------------------------------------------


class Drawn(Rows):
    """Eight replies in two groups; by the old model and the reference other models' words."""

    def __init__(self, packed, old, reference, temperature):
        examples = tiny.examples(LENGTHS, seed=1)
        bins = pack(LENGTHS, 48, 0) if packed else None
        alike = (REWARDS.std(1, keepdim=True) == 0).expand(2, 4)
        said = torch.stack([advantages(REWARDS, True), REWARDS, alike])
        columns = dict(zip(REPLY_FIGURES, said.flatten(1), strict=True))
        super().__init__(examples, "response", bins, columns)
        self._models = {"old": old, "reference": reference}
        self._temperature = temperature

    @torch.no_grad()
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)
        for name, model in self._models.items():
            each = [self.examples[i] for i in self.bins[index]]
            parts = [self._of(model, example) for example in each]
            row[name] = torch.cat(parts) * row["response_mask"]
        return row

    def _of(self, model, example):
        return torch.cat([torch.zeros(1), log_probs(model, example, self._temperature)])


def log_probs(model, example, temperature):
    ids = torch.tensor(example.ids.astype("int64"))
    logits = model(input_ids=ids[None]).logits[0, :-1] / temperature
    return logits.log_softmax(1).gather(1, ids[1:, None])[:, 0]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("beta", "temperature"), [(0.0, 1.0), (0.3, 0.7)])
def test_the_loss_is_that_of_the_formula(tmp_path, packed, beta, temperature):
    model, old, reference = tiny.gpt2(0), tiny.gpt2(0), tiny.gpt2(2)
    with torch.no_grad():
        for weight in old.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    rows = Drawn(packed, old, reference, temperature)
    given = ((REWARDS[0] - 0.5) / (REWARDS[0].std() + 1e-4)).tolist() + [0.0] * 4
    losses, kls, cut = [], [], []
    for example, advantage in zip(tiny.examples(LENGTHS, seed=1), given, strict=True):
        mask = torch.tensor(example.spans[1:] == 2)
        now = log_probs(model, example, temperature)[mask]
        with torch.no_grad():
            before = log_probs(old, example, temperature)[mask]
            referred = log_probs(reference, example, temperature)[mask]
        for p, was, ref in zip(now, before, referred, strict=True):
            ratio = (p - was).exp()
            plain, clipped = ratio * advantage, ratio.clamp(0.8, 1.3) * advantage
            kls.append(ratio * ((ref - p).exp() - (ref - p) - 1))
            cut.append(float(clipped < plain))
            losses.append(-min(plain, clipped) + beta * kls[-1])
    loss = torch.stack(losses).mean()
    assert 0 < sum(cut) < len(cut) / 2
    wanted = settings(epsilon_high=0.3, beta=beta, temperature=temperature, iterations=2)
    objective = Grpo(config=wanted, rewards=Rewards(wanted.rewards))
    sizes = ((len(rows), 1), (1, len(rows)))
    logs = tiny_pairs.assert_same_step(tmp_path, model, rows, objective, loss, sizes)
    assert logs["clipped"] == pytest.approx(sum(cut) / len(cut), abs=1e-6)
    assert logs["reward"] == pytest.approx(REWARDS.mean().item())
    assert logs["no_signal"] == pytest.approx(0.5)
    assert logs["length"] == pytest.approx(len(losses) / 8)
    if beta:
        assert logs["kl"] == pytest.approx(torch.stack(kls).mean().item(), rel=1e-4)


def test_only_what_has_a_signal_is_computed_unless_a_kl_holds_it():
    model = tiny.gpt2(0)
    computed = []
    model.register_forward_pre_hook(
        lambda _, __, given: computed.append(len(given["input_ids"])), with_kwargs=True
    )
    rows = Drawn(False, model, model, 1.0)
    batch = collate([rows[index] for index in range(len(rows))], 0)
    computed.clear()
    for beta in (0.0, 0.3):
        wanted = settings(beta=beta)
        objective = Grpo(config=wanted, rewards=Rewards(wanted.rewards))
        counts = objective.count([batch], model, model)
        for advantage in (batch["advantage"], torch.zeros_like(batch["advantage"])):
            objective.losses(model, model, {**batch, "advantage": advantage}, counts, 0.0)
    assert computed == [4, 1, 8, 8]


def test_equal_rewards_give_no_advantage_at_all(tmp_path):
    made = rollouts(tmp_path, rewards=[{"kind": "length", "weight": 0.8}], replies=7)
    rows = made.setup.data.train
    (batch,) = made([collate([rows[0], rows[1]], 0)], rows, 0)
    assert batch["no_signal"].any()
    assert not batch["advantage"].any()


def test_without_a_deviation_the_advantage_is_the_difference():
    assert advantages(REWARDS, False)[0].tolist() == [0.5, -0.5, -0.5, 0.5]
    assert advantages(REWARDS, True)[1].tolist() == [0.0] * 4


# --- what is drawn -----------------------------------------------------------------------


def rollouts(folder, **changes):
    return Rollouts(set_up_run(config(folder, **changes), "cpu"))


def drawn(made, sizes, step=3):
    """The real tokens of all rows that are drawn in micro-batches of these sizes."""
    rows, collate = made.setup.data.train, made.setup.data.collate
    starts = np.cumsum([0, *sizes])
    batches = [
        collate([rows[i] for i in range(start, start + size)])
        for start, size in zip(starts, sizes, strict=False)
    ]
    return [
        ids[real > 0].tolist()
        for batch in made(batches, rows, step)
        for ids, real in zip(batch["input_ids"], batch["example_ids"], strict=True)
    ]


def test_what_is_drawn_does_not_hang_on_how_a_step_is_cut(tmp_path):
    made = rollouts(tmp_path)
    whole = drawn(made, [4])
    assert drawn(made, [1, 1, 1, 1]) == whole
    assert len(whole) == 16
    assert len({tuple(ids) for ids in whole}) > 8  # they are drawn, not repeated
    assert drawn(made, [4], step=4) != whole
    assert len(drawn(made, [4], step=None)) == 4  # greedy ones, to measure


def test_the_end_of_a_reply_is_learnt(tmp_path):
    made = rollouts(tmp_path, max_tokens=150)
    end = made.setup.tokenizer.end_id
    prompts = made.setup.data.train.prompts
    replies = [ids[len(prompts[n // 4].ids) :] for n, ids in enumerate(drawn(made, [4]))]
    assert all(len(ids) == 150 or ids[-1] == end for ids in replies)
    assert {ids[-1] == end for ids in replies} == {True, False}
    assert all(end not in ids[:-1] for ids in replies)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")  # one that is untied
@pytest.mark.parametrize("changes", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_is_drawn_from_merged_and_stays_as_it_is(changes):
    model = tiny.gpt2(0)
    adapted = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM", target_modules="all-linear", fan_in_fan_out=True, **changes
        ),
    )
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    before = {name: value.clone() for name, value in adapted.state_dict().items()}
    ids = torch.arange(1, 9)[None]
    logits = adapted.eval()(input_ids=ids).logits
    found = current_tensors(adapted)
    for name, value in adapted.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(adapted(input_ids=ids).logits, logits)
    plain = tiny.gpt2(1)
    if changes.get("modules_to_save"):
        plain.lm_head.weight = torch.nn.Parameter(plain.lm_head.weight.clone())
    assert plain.state_dict().keys() == found.keys()
    plain.load_state_dict(found)
    torch.testing.assert_close(plain.eval()(input_ids=ids).logits, logits)


# --- rows and check ----------------------------------------------------------------------


def write_rows(folder, rows):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": str(path)}


def test_rows_may_be_prompts_alone(tmp_path):
    rows = [{"prompt": "What comes?"}, {"prompt": [{"role": "user", "content": "After 3?"}]}]
    made = set_up_run(config(tmp_path, data={**write_rows(tmp_path, rows), "held_out": 0.0}), "cpu")
    assert isinstance(made.data.train, PromptRows)
    assert [each.text for each in made.data.train.prompts] == ["What comes?", "After 3?"]
    assert [each.reference for each in made.data.train.prompts] == ["", ""]
    whole = [{"prompt": "What comes?", "completion": "It."}]
    other = set_up_run(
        config(tmp_path, data={**write_rows(tmp_path, whole), "held_out": 0.0}), "cpu"
    )
    assert other.data.train.prompts[0].ids == made.data.train.prompts[0].ids
    assert other.data.train.prompts[0].reference == "It."


@pytest.mark.parametrize(
    ("row", "rewards", "words"),
    [
        ({"prompt": "x"}, [{"kind": "exact_match"}], "reply, which the prompt 'x' has not"),
        ({"text": "plain"}, None, "line 1: a plain text has no question"),
        ({"prompt": ""}, None, "line 1: 'prompt' is empty"),
        ({"prompt": "x", "completion": " "}, None, "line 1: 'completion' is empty"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, None, "expected 'user'"),
    ],
)
def test_rows_that_cannot_be_asked_are_one_sentence(tmp_path, row, rewards, words):
    data = {**write_rows(tmp_path, [row]), "held_out": 0.0}
    with pytest.raises(ConfigError, match=words):
        set_up_run(config(tmp_path, rewards, data), "cpu")


def test_a_reply_must_fit_the_window(tmp_path):
    with pytest.raises(ConfigError, match=r"objective\.max_tokens is 192; the model's window"):
        set_up_run(config(tmp_path, max_tokens=192), "cpu")


def test_check_shows_prompts_and_what_their_own_replies_earn(tmp_path):
    checks = [{"kind": "exact_match"}, {"kind": "regex", "pattern": "never", "weight": 3.0}]
    console = Console(file=StringIO(), record=True, width=160)
    found = examine(config(tmp_path, checks), "cpu")
    show(found, console)
    text = console.export_text()
    assert "the rows' own replies earn 1 on average" in text
    assert "What comes after" in text
    assert found.document()["reference_reward"] == 1.0


def test_keys_tell_the_checks_apart():
    found = {(key.name, key.kind): key for key in keys("objective.rewards.N")}
    assert found["objective.rewards.N.pattern", "regex"].values == "text"
    assert '"exact_match"' in found["objective.rewards.N.kind", "grpo"].values
    assert found["objective.rewards.N.kind", "grpo"].default == ""
