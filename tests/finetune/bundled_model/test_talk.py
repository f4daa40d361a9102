"""How a model talks is measured on what it has not seen."""

import json
from pathlib import Path

import pytest
from fakes import ScriptedModel

from chatapp.prompting.template import CHAT
from finetune.bundled_model import talk
from finetune.bundled_model.generators import abstention, everyday
from finetune.bundled_model.generators.content import table


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
    taught = {said.lower() for some, _ in everyday.talks() for said in some}
    assert not taught & {each.lower() for each in own}


def test_shares_are_of_what_was_said_and_how_it_ended(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "_MESSAGES", 70)
    unknown = set(abstention.measured(150, 0))

    def reply(prompt: str) -> str:
        asked = prompt.split("User: ")[1].split("\nAssistant:")[0]
        return " I don't know that." if asked in unknown else " It is so."

    shares, some = talk.measured(ScriptedModel(reply), CHAT, data)
    assert shares["declines_unknown"] == 1
    assert shares["declines_known"] == shares["repeats_itself"] == 0
    assert shares["ends_by_itself"] == 1
    assert len(some) == 70 + 150 + 300
    looping = ScriptedModel([" So so."], reason="repetition")
    assert talk.measured(looping, CHAT, data)[0]["repeats_itself"] == 1


@pytest.mark.parametrize("kind", ["fact", "news", "private", "code", "translation", "hard"])
def test_every_way_of_not_knowing_is_seen_as_one(kind: str) -> None:
    for text in table("abstention")["replies"][kind]:
        assert talk.Reply("?", text, "stop").declines
    assert not talk.Reply("?", "The capital of France is Paris.", "stop").declines
