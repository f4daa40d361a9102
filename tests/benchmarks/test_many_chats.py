"""How long the history takes with 10,000 chats of 200,000 messages in it.

The bars, medians of nine: the list of chats and a search of them within 100 ms each, a chat
of 2,000 messages read within 300 ms.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scale import check_finite, is_tiny, sized

from chatapp.dialogue.importing import ImportedChat, ImportedMessage, store_chats
from chatapp.dialogue.store import Store

pytestmark = pytest.mark.benchmark

CHATS, MESSAGES, LONG, ROUNDS, SHOWN = sized((10_000, 20, 2_000, 9, 200), (100, 4, 20, 1, 20))
"""SHOWN: what the list of chats asks for."""

WORDS = ("sea", "wave", "tide", "ship", "storm", "harbour", "sail", "anchor", "gull", "rope")


def chat(number: int, messages: int) -> ImportedChat:
    """A chat of sentences in which every word is common but for two."""

    def text(place: int) -> str:
        common = " ".join(WORDS[(number * 7 + place * 3 + word) % 10] for word in range(20))
        return f"chat{number} {common} message{number}x{place}"

    return ImportedChat(
        title=f"About {WORDS[number % 10]} {number}",
        system=None,
        template="plain",
        model="bundled",
        messages=tuple(
            ImportedMessage("assistant" if place % 2 else "user", text(place))
            for place in range(messages)
        ),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("chats") / "chats.db"
    store = Store(path)
    store_chats(store, [chat(number, MESSAGES) for number in range(CHATS)])
    store_chats(store, [chat(CHATS, LONG)])
    yield store
    store.close()


def median(work: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    seconds = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - before)
    return 1000 * statistics.median(seconds)


def test_the_list_a_search_and_a_long_chat(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(query: str) -> None:
        """What the list of chats does for every key."""
        store.chats(limit=SHOWN, matching=query)
        store.search(query, limit=SHOWN)

    figures = {
        "list ms": median(lambda: store.chats(limit=SHOWN, archived=False)),
        "search for a word of every message ms": median(lambda: find("sea")),
        "search for a letter ms": median(lambda: find("s")),
        "search for one message ms": median(lambda: find("message77x3")),
        "search for nothing ms": median(lambda: find("walrus")),
        f"chat of {LONG} messages ms": median(lambda: store.path(CHATS + 1)),
        f"turns of a chat of {LONG} ms": median(lambda: store.generations(CHATS + 1)),
    }
    with capsys.disabled():
        print("\n" + json.dumps({name: round(value, 1) for name, value in figures.items()}))
    assert len(store.path(CHATS + 1)) == LONG
    assert len(store.chats(limit=SHOWN, matching="sea")) == SHOWN
    assert [hit.chat_id for hit in store.search("message77x3")] == [78]
    check_finite(*figures.values())
    if is_tiny():
        return
    for name, value in figures.items():
        assert value <= (300 if str(LONG) in name else 100), name
