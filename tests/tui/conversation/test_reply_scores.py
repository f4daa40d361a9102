"""A reward model chosen for a chat: its scores below replies, in compare and in rankings."""

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
from fakes import ScriptedModel
from textual.widgets import OptionList, Static
from tui_driver import Driver, OpenApp, fill

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows
from chatapp.dialogue.reply_scores import ReplyScorer
from chatapp.dialogue.store import Store
from chatapp.engine.models.resolving import note_model
from chatapp.prompting.messages import Message
from chatapp.tui.screens.compare import CompareScreen, Side
from chatapp.tui.screens.ranking import RankScreen

VERSIONS = ["One.", "Two, and more.", "Three?"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tiny.write_tiny_reward_model(tmp_path / "reward")


def scored(run: Path, *texts: str, system: str | None = None) -> str:
    """What stands below the last of these messages, a user's first."""
    messages = [Message("assistant" if n % 2 else "user", text) for n, text in enumerate(texts)]
    asked = [Message("system", system)] * bool(system) + messages[:-1]
    return f"score {ReplyScorer.load(str(run)).score(asked, texts[-1]):.2f}"


def notes_are(driver: Driver, *notes: str) -> Callable[[], bool]:
    return lambda: driver.notes == list(notes)


async def order(driver: Driver, text: str) -> None:
    driver.chat.set_focus(driver.prompt)
    driver.prompt.text = text
    await driver.press("enter")


async def reward(driver: Driver, run: Path) -> None:
    await order(driver, f"/reward {run}")
    await driver.until(lambda: f"Replies are scored by {run}." in driver.notices)


async def versions(driver: Driver) -> None:
    await driver.say("Count.")
    await driver.press("ctrl+up")
    for _ in VERSIONS[1:]:
        await driver.press("r")
        await driver.idle()


class Gate:
    """Has scoring wait. seen: the replies that it was begun for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.seen: list[str] = []
        score = ReplyScorer.score

        def wait(scorer: ReplyScorer, messages: Sequence[Message], reply: str) -> float:
            self.seen.append(reply)
            assert self.open.wait(120)
            return score(scorer, messages, reply)

        monkeypatch.setattr(ReplyScorer, "score", wait)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


# --- below replies -----------------------------------------------------------------------


async def test_every_reply_has_its_score_below_it(open_app: OpenApp, run: Path) -> None:
    async with open_app(ScriptedModel(VERSIONS)) as driver:
        await driver.say("Count.")
        assert driver.notes == ["", ""]
        await reward(driver, run)
        first = scored(run, "Count.", "One.")
        await driver.until(notes_are(driver, "", first))
        await order(driver, "/system Be brief.")
        plain, first = first, scored(run, "Count.", "One.", system="Be brief.")
        assert plain != first
        await driver.until(notes_are(driver, "", first))
        await driver.say("Go on.")
        second = scored(run, "Count.", "One.", "Go on.", "Two, and more.", system="Be brief.")
        await driver.until(notes_are(driver, "", first, "", second))
        assert first != second
        await order(driver, "/reward")
        assert driver.notices[-1] == f"Reward model of this chat: {run}"
        await order(driver, "/reward none")
        assert driver.notes == ["", "", "", ""]
        await order(driver, "/reward")
        assert driver.notices[-1] == "Reward model of this chat: none"


async def test_a_score_is_that_of_the_reply_as_it_stands(open_app: OpenApp, run: Path) -> None:
    model = ScriptedModel(["One,", " two."], reason="length")
    async with open_app(model) as driver:
        await reward(driver, run)
        await driver.say("Count.")
        cut = "reached the reply limit · c continues"
        await driver.until(notes_are(driver, "", f"{cut} · {scored(run, 'Count.', 'One,')}"))
        await driver.press("ctrl+up", "c")
        await driver.idle()
        await driver.until(notes_are(driver, "", f"{cut} · {scored(run, 'Count.', 'One, two.')}"))


async def test_a_score_is_renewed_with_the_chats_instructions(
    open_app: OpenApp, run: Path, gate: Gate
) -> None:
    async with open_app(ScriptedModel(["One."])) as driver:
        await reward(driver, run)
        await order(driver, "Count.")
        await driver.until(lambda: gate.seen)
        await order(driver, "/system Be brief.")  # while the reply is scored without them
        gate.open.set()
        await driver.until(lambda: driver.notes[1])
        assert driver.notes == ["", scored(run, "Count.", "One.", system="Be brief.")]
        await order(driver, "/prompt none")
        await driver.until(notes_are(driver, "", scored(run, "Count.", "One.")))


async def test_a_reply_is_scored_behind_the_prompt_that_its_preference_has(
    open_app: OpenApp, store: Store, run: Path
) -> None:
    chat = fill(store, ["Count.", "One.", "Go on.", "Two."])
    _, first, _, second = store.path(chat)
    store.set_correction(first.id, "One, to begin with.")
    store.set_correction(second.id, "Two, and more.")
    *_, row = feedback_rows(store, chat, FeedbackFormat.DPO)
    texts = [message["content"] for message in (*row["prompt"], *row["rejected"])]
    async with open_app(chat_id=chat) as driver:
        await reward(driver, run)
        expected = scored(run, "Count.", "One."), scored(run, *texts)
        await driver.until(notes_are(driver, "", expected[0], "", expected[1]))


async def test_a_reply_that_was_cut_off_is_not_scored(
    open_app: OpenApp, run: Path, gate: Gate
) -> None:
    gate.open.set()
    model = ScriptedModel(["Halfway there", RuntimeError("no memory"), "Whole."], delay=0.01)
    async with open_app(model) as driver:
        await reward(driver, run)
        model.delay = 30
        await order(driver, "Count.")
        await driver.until(lambda: driver.status.state == "thinking")
        await driver.press("escape")
        await driver.idle()
        model.delay = 0
        await driver.say("Go on.")
        await driver.say("And now?")
        await driver.until(lambda: driver.notes[-1].startswith("score "))
        assert [note.split(" ")[0] for note in driver.notes[1::2]] == ["stopped", "the", "score"]
        assert gate.seen == ["Whole."]


async def test_a_chat_keeps_its_reward_model(
    open_app: OpenApp, store: Store, run: Path, tmp_path: Path
) -> None:
    other = fill(store, ["Hi", "Hello."])
    async with open_app(ScriptedModel(["One."])) as driver:
        await reward(driver, run)
        await driver.say("Count.")
        await driver.until(notes_are(driver, "", scored(run, "Count.", "One.")))
        await driver.chat.controls.open(other)
        assert driver.notes == ["", ""]
        await driver.press("ctrl+n")
        await driver.say("Count.")
        assert (driver.notes, driver.chat.conversation.chat.reward) == (["", ""], "")
    async with open_app(chat_id=other + 1) as driver:
        await driver.until(notes_are(driver, "", scored(run, "Count.", "One.")))
        assert not driver.notices  # it is not said again
        await driver.press("ctrl+n")  # which goes on with what was chosen in the chat before
        await driver.say("Count.")
        await driver.until(lambda: driver.notes[1].startswith("score "))
        assert store.chat(other + 3).reward == str(run)


@pytest.mark.parametrize("command", ["", "/reward gone"])
async def test_a_reward_model_that_is_being_loaded_scores_the_next_chat_too(
    open_app: OpenApp, store: Store, run: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    first, second = fill(store, ["Count.", "One."]), fill(store, ["Count.", "Two."])
    for chat in (first, second):
        store.set_reward(chat, str(run))
    expected = scored(run, "Count.", "Two.")
    may_load, begun, load = threading.Event(), threading.Event(), ReplyScorer.load

    def wait(name: str) -> ReplyScorer:
        begun.set()
        assert may_load.wait(120)
        return load(name)

    monkeypatch.setattr(ReplyScorer, "load", wait)
    async with open_app(chat_id=first) as driver:
        await driver.until(begun.is_set)
        if command:  # what it asks for is for the first chat alone
            await order(driver, command)
        await driver.chat.controls.open(second)
        may_load.set()
        await driver.until(notes_are(driver, "", expected))
        assert (driver.problem, driver.chat.conversation.chat.reward) == ("", str(run))


async def test_a_reward_model_that_is_gone_is_told(
    open_app: OpenApp, store: Store, run: Path
) -> None:
    chat = fill(store, ["Count.", "One."])
    store.set_reward(chat, str(run))
    shutil.rmtree(run)
    async with open_app(ScriptedModel(["Two."]), chat_id=chat) as driver:
        await driver.until(lambda: driver.problem)
        assert driver.problem == (
            f"This chat's replies are not scored: {run}: there is no such folder"
        )
        await driver.say("Go on.")
        assert driver.texts[-1] == "Two."
        assert (driver.problem, driver.notes) == ("", [""] * 4)
        assert store.chat(chat).reward == str(run)  # it may come back


async def test_what_is_no_reward_model_changes_nothing(
    open_app: OpenApp, run: Path, tmp_path: Path
) -> None:
    bare = tiny.write_tiny_reward_model(tmp_path / "bare")
    (bare / TEMPLATE_FILE).unlink()
    damaged = tiny.write_tiny_reward_model(tmp_path / "damaged")
    (damaged / "head.safetensors").write_bytes(b"x")
    base = tiny.write_tiny_gpt2(tmp_path / "base")
    said = {
        base: f"{base}: does not score replies; train it with objective.kind = 'reward'",
        bare: f"{bare}: this reward model has no dialogue template",
        damaged: f"{damaged / 'head.safetensors'}: not the weights of this head: ",
        tmp_path / "gone": f"{tmp_path / 'gone'}: there is no such folder",
    }
    async with open_app(ScriptedModel(["One."])) as driver:
        await reward(driver, run)
        await driver.say("Count.")
        for folder, words in said.items():
            await order(driver, f"/reward {folder}")
            await driver.until(lambda words=words: driver.problem.startswith(f"/reward: {words}"))
            assert "\n" not in driver.problem
        assert driver.notes == ["", scored(run, "Count.", "One.")]
        assert driver.chat.conversation.chat.reward == str(run)


async def test_what_the_reward_model_cannot_read_is_told(
    open_app: OpenApp, store: Store, tmp_path: Path
) -> None:
    short = tiny.write_tiny_reward_model(tmp_path / "short", context=64)
    chat = fill(store, ["Count.", "One.", "Go on.", "Two. " * 30, "Again.", "Three."])
    async with open_app(chat_id=chat) as driver:
        await reward(driver, short)
        await driver.until(lambda: all(driver.notes[1::2]))
        assert driver.notes[1] == scored(short, "Count.", "One.")
        assert driver.notes[3].startswith(
            f"not scored: the reward model {short} reads 64 tokens, prompt and reply have "
        )
        assert driver.notes[5] == scored(short, "Again.", "Three.")  # without what came before


async def test_completion_lists_the_reward_models(
    open_app: OpenApp, run: Path, tmp_path: Path
) -> None:
    for folder in (run, tiny.write_tiny_gpt2(tmp_path / "base")):
        note_model(folder)
    async with open_app() as driver:
        driver.chat.controls.models.names()
        await driver.idle()
        assert driver.chat.commands.complete("/reward ") == [f"/reward {run}", "/reward none"]


# --- nobody waits for it -----------------------------------------------------------------


async def test_one_writes_and_reads_while_a_reply_is_scored(
    open_app: OpenApp, run: Path, gate: Gate
) -> None:
    model = ScriptedModel(VERSIONS)
    async with open_app(model) as driver:
        await reward(driver, run)
        for _ in range(3):
            await driver.press(*"Hi", "enter")
            await driver.until(lambda: driver.chat.conversation.turn is None)
        assert driver.texts[1::2] == VERSIONS
        assert gate.seen == ["One."]  # the others wait for it
        await driver.press("escape", *"typed")
        assert driver.prompt.text == "typed"
        gate.open.set()
        await driver.until(lambda: all(driver.notes[1::2]))
        assert gate.seen == ["One.", "Three?", "Two, and more."]  # what came last is looked at


async def test_no_reply_is_scored_while_another_is_written(
    open_app: OpenApp, store: Store, run: Path, gate: Gate
) -> None:
    chat = fill(store, ["Count.", "One.", "Go on.", "Two."])
    model = ScriptedModel(["Three."])
    async with open_app(model, chat_id=chat) as driver:
        await reward(driver, run)
        await driver.until(lambda: gate.seen == ["Two."])
        model.gate = threading.Event()
        await order(driver, "And now?")
        await driver.until(lambda: driver.status.state == "thinking")
        gate.open.set()
        await driver.until(lambda: driver.notes[3])
        assert gate.seen == ["Two."]
        model.gate.set()
        await driver.until(lambda: all(driver.notes[1::2]))


async def test_what_is_no_longer_shown_is_not_scored(
    open_app: OpenApp, store: Store, run: Path, gate: Gate
) -> None:
    chat = fill(store, ["Count.", "One.", "Go on.", "Two."])
    async with open_app(chat_id=chat) as driver:
        await reward(driver, run)
        await driver.until(lambda: gate.seen == ["Two."])
        await driver.press("ctrl+n")
        gate.open.set()
        await driver.idle()
        assert (gate.seen, driver.texts) == (["Two."], [])
        await driver.chat.controls.open(chat)
        await driver.until(lambda: all(driver.notes[1::2]))
        assert gate.seen == ["Two.", "One."]  # what has been scored is known


async def test_one_leaves_while_a_reply_is_scored(open_app: OpenApp, run: Path, gate: Gate) -> None:
    async with open_app() as driver:
        await reward(driver, run)
        await order(driver, "Hi")
        await driver.until(lambda: gate.seen)
        await driver.press("ctrl+q")
        await driver.until_left()
        assert not gate.open.is_set()
        gate.open.set()


# --- rankings and comparisons ------------------------------------------------------------


def ranked(driver: Driver) -> list[str]:
    options = driver.app.screen.query_one(OptionList).options
    return [str(option.prompt) for option in options]


async def rank(driver: Driver) -> None:
    await driver.press("k")
    await driver.until(lambda: isinstance(driver.app.screen, RankScreen))


def by_score(run: Path) -> list[tuple[str, str]]:
    """The versions, the best first, each with its score."""
    scorer = ReplyScorer.load(str(run))
    scores = {text: scorer.score([Message("user", "Count.")], text) for text in VERSIONS}
    best = sorted(VERSIONS, key=lambda text: -scores[text])
    return [(text, f"score {scores[text]:.2f}") for text in best]


async def test_a_ranking_begins_with_the_best_scored(
    open_app: OpenApp, store: Store, run: Path
) -> None:
    async with open_app(ScriptedModel(VERSIONS)) as driver:
        await versions(driver)
        await reward(driver, run)
        await driver.press("ctrl+up")
        await rank(driver)
        best = by_score(run)
        lines = [f"{n}  {score}  {text}" for n, (text, score) in enumerate(best, 1)]
        await driver.until(lambda: ranked(driver) == lines)
        assert store.feedback(1) == {}  # it is for the user to say
        await driver.press("d", "enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        order = [best[1][0], best[0][0], best[2][0]]
        ranks = {said.reply: said.rank for said in store.feedback(1).values()}
        assert ranks == {text: n for n, text in enumerate(order, 1)}
        await rank(driver)  # what the user has said stands above what the model says
        assert [line.rpartition("  ")[2] for line in ranked(driver)] == order


async def test_a_ranking_that_the_user_has_begun_stays(
    open_app: OpenApp, run: Path, gate: Gate
) -> None:
    async with open_app(ScriptedModel(VERSIONS)) as driver:
        await versions(driver)
        await reward(driver, run)
        await driver.press("ctrl+up")
        await rank(driver)
        assert ranked(driver) == [f"{n}  {text}" for n, text in enumerate(VERSIONS, 1)]
        await driver.press("down", "d")
        gate.open.set()
        await driver.until(lambda: all("score" in line for line in ranked(driver)))
        texts = [line.rpartition("  ")[2] for line in ranked(driver)]
        assert texts == ["One.", "Three?", "Two, and more."]
        assert driver.app.screen.query_one(OptionList).highlighted == 2


async def test_compared_replies_have_their_scores(
    open_app: OpenApp, store: Store, run: Path
) -> None:
    async with open_app(ScriptedModel(VERSIONS)) as driver:
        await reward(driver, run)
        await order(driver, "/set temperature 0.5")
        await driver.press(*"Count.", "f4")
        await driver.until(
            lambda: isinstance(driver.app.screen, CompareScreen) and driver.app.screen.focused
        )
        await driver.press("enter")
        expected = dict(by_score(run))

        def feet() -> list[str]:
            return [str(each.content) for each in driver.app.screen.query(".note").results(Static)]

        await driver.until(lambda: all(feet()))
        replies = [side.body.text for side in driver.app.screen.query(Side)]
        assert sorted(replies) == sorted(VERSIONS[:2])
        await driver.until(lambda: feet() == [expected[reply] for reply in replies])
        await driver.press("1")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.until(notes_are(driver, "", expected[replies[0]]))
        chat = store.chat(1)
        assert (chat.reward, chat.chosen) == (str(run), {"temperature": 0.5})
