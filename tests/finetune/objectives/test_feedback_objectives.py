"""Objectives on feedback: losses and gradients are those of the formulas, written plainly."""

import math
from statistics import fmean

import pytest
import tiny_finetune as tiny
import tiny_pairs
import torch
from torch.nn import functional

from finetune.config.objectives import KtoSettings
from finetune.data.encoding import Span
from finetune.data.preferences import EncodedVerdict
from finetune.objectives.heads import add_head
from finetune.objectives.kto import Kto, _mismatched, weights
from finetune.objectives.pairs import REWARD_SPEC, Cpo, Dpo, Orpo, Reward, Simpo
from finetune.objectives.rows import PairRows

BETA = 0.3
ARRANGED = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])


def ratios(model, reference):
    """(log p, the reference's) of each reply: the chosen ones, the rejected ones."""
    first, second, _ = tiny_pairs.pairs()
    with torch.no_grad():
        referred = [tiny_pairs.replies(reference, side) for side in (first, second)]
    learnt = [tiny_pairs.replies(model, side) for side in (first, second)]
    sides = [list(zip(*each, strict=True)) for each in zip(learnt, referred, strict=True)]
    return sides[0], sides[1]


def dpo_by_hand(kind, chosen, rejected, smoothing):
    losses = []
    for (won, won_before), (lost, lost_before) in zip(chosen, rejected, strict=True):
        if kind == "ipo":
            gap = (won - won_before).mean() - (lost - lost_before).mean()
            losses.append((gap - 1 / (2 * BETA)) ** 2)
            continue
        margin = BETA * ((won.sum() - won_before.sum()) - (lost.sum() - lost_before.sum()))
        if kind == "hinge":
            losses.append(torch.relu(1 - margin))
        else:
            right, wrong = -functional.logsigmoid(margin), -functional.logsigmoid(-margin)
            loss = (1 - smoothing) * right - smoothing * wrong
            losses.append(loss / (1 - 2 * smoothing))
    return torch.stack(losses).mean()


@ARRANGED
@pytest.mark.parametrize(
    ("kind", "smoothing", "weight"),
    [("sigmoid", 0.0, 0.0), ("sigmoid", 0.2, 0.7), ("ipo", 0.0, 0.0), ("hinge", 0.0, 0.5)],
)
def test_dpo(tmp_path, kind, smoothing, weight, packed):
    model, reference = tiny.gpt2(0), tiny.gpt2(1)
    chosen, rejected = ratios(model, reference)
    pair_loss = dpo_by_hand(kind, chosen, rejected, smoothing)
    l1 = -torch.cat([won for won, _ in chosen]).mean()
    made = tiny_pairs.with_reference(tiny_pairs.rows(packed), reference)
    assert (len(made) < 8) == packed
    objective = Dpo(loss=kind, beta=BETA, smoothing=smoothing, weight=weight)
    sizes = ((len(made), 1), (1, len(made)), (3, 3)) if not packed else ((8, 1), (1, len(made)))
    logs = tiny_pairs.assert_same_step(
        tmp_path, model, made, objective, pair_loss + weight * l1, sizes
    )
    assert logs["pair_loss"] == pytest.approx(pair_loss.item(), rel=1e-4)
    rewards = [
        [BETA * (now.sum() - before.sum()).item() for now, before in each]
        for each in (chosen, rejected)
    ]
    margins = [won - lost for won, lost in zip(*rewards, strict=True)]
    assert logs["margin"] == pytest.approx(sum(margins) / 8, rel=1e-4)
    assert logs["accuracy"] == pytest.approx(sum(margin > 0 for margin in margins) / 8)
    assert logs["chosen_reward"] == pytest.approx(sum(rewards[0]) / 8, rel=1e-4)
    assert logs["chosen_logp"] == pytest.approx(
        sum(won.sum().item() for won, _ in chosen) / 8, rel=1e-4
    )


@ARRANGED
@pytest.mark.parametrize("kind", ["orpo", "cpo", "simpo"])
def test_without_a_reference(tmp_path, kind, packed):
    model = tiny.gpt2(0)
    first, _, _ = tiny_pairs.pairs()
    chosen, rejected = ([now for now, _ in side] for side in ratios(model, model))
    objective = Simpo(beta=2.5, gamma=1.2)
    means, sums = (
        [torch.stack([take(now) for now in side]) for side in (chosen, rejected)]
        for take in (torch.mean, torch.sum)
    )
    loss = -functional.logsigmoid(2.5 * (means[0] - means[1]) - 1.2).mean()
    if kind == "cpo":
        objective = Cpo(beta=BETA, weight=0.7)
        nll = -torch.cat(chosen).mean()
        loss = -functional.logsigmoid(BETA * (sums[0] - sums[1])).mean() + 0.7 * nll
    elif kind == "orpo":
        objective = Orpo(beta=BETA)
        odds = [mean.exp() / (1 - mean.exp()) for mean in means]
        nll = -torch.cat([tiny_pairs.log_probs(model, each) for each in first]).mean()
        loss = nll - BETA * functional.logsigmoid((odds[0] / odds[1]).log()).mean()
    made = tiny_pairs.rows(packed, span="full" if kind == "orpo" else "response")
    tiny_pairs.assert_same_step(tmp_path, model, made, objective, loss, ((8, 1), (1, len(made))))


@ARRANGED
def test_reward(tmp_path, packed):
    margins = [0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 2.0, 0.1]
    model = tiny.gpt2(0)
    add_head(model, REWARD_SPEC, seed=3)
    with torch.no_grad():
        model.task_head.weight.mul_(20)
    sides = []
    for side in tiny_pairs.pairs()[:2]:
        ids = [torch.tensor(each.ids.astype("int64"))[None] for each in side]
        states = [model.transformer(input_ids=each).last_hidden_state[0, -1] for each in ids]
        sides.append(torch.stack([model.task_head(state)[0] for state in states]))
    loss = -functional.logsigmoid(sides[0] - sides[1] - torch.tensor(margins)).mean()
    loss = loss + 0.1 * ((sides[0] + sides[1]) ** 2).mean()
    made = tiny_pairs.rows(packed, margins)
    sizes = ((8, 1), (1, len(made)))
    logs = tiny_pairs.assert_same_step(tmp_path, model, made, Reward(centring=0.1), loss, sizes)
    assert logs["accuracy"] == pytest.approx((sides[0] > sides[1]).float().mean().item())


@ARRANGED
@pytest.mark.parametrize("seed", [1, 2])
def test_kto(tmp_path, packed, seed):
    model, reference = tiny.gpt2(0), tiny.gpt2(seed)
    replies, _, labels = tiny_pairs.pairs([1, 0, 1, 1, 0, 1, 0, 1])
    before = [replies[-1], *replies[:-1]]
    mismatched = [_mismatched(own, other, 64) for own, other in zip(replies, before, strict=True)]
    with torch.no_grad():
        divergence = torch.stack(
            [
                now.sum() - then.sum()
                for now, then in zip(
                    tiny_pairs.replies(model, mismatched),
                    tiny_pairs.replies(reference, mismatched),
                    strict=True,
                )
            ]
        )
        referred = [each.sum() for each in tiny_pairs.replies(reference, replies)]
    kl = divergence.mean().clamp(min=0)
    losses = []
    learnt = [each.sum() for each in tiny_pairs.replies(model, replies)]
    for now, then, label in zip(learnt, referred, labels, strict=True):
        if label:
            losses.append(1.5 * (1 - torch.sigmoid(BETA * (now - then - kl))))
        else:
            losses.append(2.0 * (1 - torch.sigmoid(BETA * (kl - (now - then)))))
    made = tiny_pairs.PairRows(
        replies, mismatched, labels, "response", 0, (48, 0) if packed else None
    )
    tiny_pairs.with_reference(made, reference)
    objective = Kto(beta=BETA, desirable=1.5, undesirable=2.0)
    loss = torch.stack(losses).mean()
    sizes = ((8, 1), (1, len(made)))
    logs = tiny_pairs.assert_same_step(tmp_path, model, made, objective, loss, sizes)
    assert logs["kl"] == pytest.approx(kl.item(), rel=1e-4)
    rewards = [BETA * (now - then).item() for now, then in zip(learnt, referred, strict=True)]
    good = [reward for reward, label in zip(rewards, labels, strict=True) if label]
    assert logs["chosen_reward"] == pytest.approx(sum(good) / len(good), rel=1e-4)


def test_mismatched_replies_stand_behind_their_own_prompt():
    (first, second, *_), _, _ = tiny_pairs.pairs()
    made = _mismatched(first, second, 64)
    prompt = first.ids[first.spans != Span.RESPONSE].tolist()
    reply = second.ids[second.spans == Span.RESPONSE].tolist()
    assert made.ids.tolist() == prompt + reply
    assert _mismatched(first, second, len(prompt) + 2).ids.tolist() == prompt + reply[:2]


def test_mismatched_replies_are_cut_at_the_length_of_a_row():
    """Not at that of the two sequences, of which each may be short."""
    verdicts = []
    for prompt, example in zip((40, 5), tiny.examples([45, 45]), strict=True):
        example.spans[:prompt], example.spans[prompt:] = Span.PROMPT, Span.RESPONSE
        verdicts.append(EncodedVerdict(example, True, example.key, example.key))
    for length, kept in ((80, 40), (60, 20)):
        made = PairRows(*Kto.sides(verdicts, length), "response", 0)
        replies = [int((mixed.spans == Span.RESPONSE).sum()) for mixed in made.second.examples]
        assert replies == [kept, 5]


def test_a_mean_over_good_replies_does_not_count_a_step_without_one(tmp_path):
    """Steps of one reply, logged alone and three together: what TRL sums and divides by replies."""
    model = tiny.llama()
    made = tiny_pairs.with_reference(tiny_pairs.rows(values=[1.0, 0.0, 0.0] + [1.0] * 5), model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)  # another model than the reference

    def rows(every):
        plan = {"steps": 6, "log_every": every}
        objective = Kto(beta=BETA)
        loop = tiny.trainer(
            tmp_path, model, made, objective=objective, batch_size=1, learning_rate=1e-12, **plan
        )
        return tiny.logged(loop)

    alone, together = rows(1), rows(3)
    sides = ("chosen_reward", "rejected_reward", "chosen_logp", "rejected_logp")
    assert all(("chosen_reward" in row) != ("rejected_reward" in row) for row in alone)
    assert "margin" not in alone[0]
    for part, row in zip((alone[:3], alone[3:]), together, strict=True):
        for key in sides:
            known = [one[key] for one in part if key in one]
            assert row.get(key) == (pytest.approx(fmean(known), rel=1e-5) if known else None)
        if {"chosen_reward", "rejected_reward"} <= row.keys():
            margin = row["chosen_reward"] - row["rejected_reward"]
            assert row["margin"] == pytest.approx(margin)


@pytest.mark.parametrize(
    ("good", "bad", "settings", "expected"),
    [
        (6, 6, {}, (1.0, 1.0)),
        (2, 6, {}, (3.0, 1.0)),
        (6, 2, {}, (1.0, 3.0)),
        (2, 6, {"desirable_weight": 0.5}, (0.5, 1.0)),
        (6, 0, {}, (1.0, 6.0)),
    ],
)
def test_the_rarer_verdict_weighs_as_much_altogether(good, bad, settings, expected):
    reply = tiny_pairs.pairs()[0][0]
    verdicts = [EncodedVerdict(reply, n < good, str(n), str(n)) for n in range(good + bad)]
    chosen = KtoSettings.model_validate({"kind": "kto", **settings})
    assert weights(chosen, verdicts) == expected


def test_odds_of_a_reply_that_is_certain_are_finite():
    zeros, ones = torch.zeros(1, requires_grad=True), torch.ones(1)
    certain = tiny_pairs.side_of(zeros)
    worth = Orpo().of_replies(certain, tiny_pairs.side_of(-ones))
    worth.loss.sum().backward()
    assert math.isfinite(worth.loss.item())
    assert zeros.grad is not None
    assert torch.isfinite(zeros.grad).all()
