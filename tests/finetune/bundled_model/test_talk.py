"""How a model talks is measured on what it has not seen."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import ScriptedModel

from finetune.bundled_model import talk
from finetune.bundled_model.generators import abstention, everyday
from finetune.bundled_model.generators.words import table


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with 90 kept-out talks of each kind, some with the same first message."""
    (tmp_path / "kept_out").mkdir()
    for name in ("persona_chat", "topical_chat"):
        rows = [
            {"messages": [{"role": "user", "content": f"Do you like {name} {number // 2}?"}]}
            for number in range(180)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "kept_out" / f"{name}.jsonl").write_text(lines)
    return tmp_path


def test_first_messages_are_those_of_kept_out_talks_and_sixty_more(data: Path) -> None:
    messages = talk.first_messages(data, 200, seed=0)
    assert messages == talk.first_messages(data, 200, seed=0)
    assert len(set(messages)) == 200
    own = table("first_messages")["said"]
    assert messages[-60:] == own
    assert talk.first_messages(data, 5, seed=0) == own[-5:]
    taught = {said.lower() for some, _ in everyday.talks() for said in some}
    assert not taught & {each.lower() for each in own}


def test_shares_are_of_what_was_said_and_how_it_ended(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "MESSAGES", 70)
    unknown = set(abstention.held_out_questions(150, 0))

    def reply(prompt: str) -> str:
        asked = prompt.split("User: ")[1].split("\nAssistant:")[0]
        return " I don't know that." if asked in unknown else " It is so."

    shares, some = talk.evaluate(ScriptedModel(reply), data)
    assert shares["declines_unknown"] == 1
    assert shares["declines_known"] == shares["repeats_itself"] == 0
    assert shares["ends_by_itself"] == 1
    assert len(some) == 70 + 150 + 300
    looping = ScriptedModel([" So so."], reason="repetition")
    assert talk.evaluate(looping, data)[0]["repeats_itself"] == 1


def test_sampling_is_what_the_model_itself_asks_for(data: Path, tmp_path: Path) -> None:
    model = ScriptedModel([" It is so."], folder=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 7}')
    talk.evaluate(model, data)
    drawn = {(each.temperature, each.top_k, each.seed) for each in model.samplings}
    assert drawn == {(0.3, 7, 0), (0.3, 7, 1), (0.3, 7, 2)}


class Judge(ScriptedModel):
    """Holds each token as likely as its text is short, and notes what it was asked."""

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        self.prompts += [self.tokenizer.decode(context) for context, _ in pairs]
        return [[-float(len(self.tokenizer.piece(id))) for id in ids] for _, ids in pairs]


def test_a_judge_tells_how_likely_a_reply_is_where_its_own_would_stand() -> None:
    judge = Judge([])
    said = [
        talk.Reply("Hi!", "So be", "stop"),
        talk.Reply("Hi!", "", "stop"),
        talk.Reply("Who?", "Me", "stop"),
    ]
    assert talk.likelihoods(judge, said) == [-3.0, -3.0]
    assert [prompt.rsplit("User: ")[-1] for prompt in judge.prompts] == [
        "Hi!\nAssistant:",
        "Who?\nAssistant:",
    ]


@pytest.mark.parametrize("kind", ["fact", "news", "private", "code", "translation", "hard"])
def test_every_way_of_not_knowing_is_seen_as_one(kind: str) -> None:
    for text in table("abstention")["replies"][kind]:
        assert talk.Reply("?", text, "stop").declines
    assert not talk.Reply("?", "The capital of France is Paris.", "stop").declines
