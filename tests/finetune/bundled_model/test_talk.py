"""How a model talks is measured on what it has not seen."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import ScriptedModel

from finetune.bundled_model import talk
from finetune.bundled_model.generators import abstention


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
