"""A whole session in a real terminal: keys in, screens out, from the first run to the last key.

Each step waits for what is on the screen, and a step that waits in vain shows the screens of
all steps.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import write_tiny_gpt2

import chatapp
from chatapp.dialogue.store import Store

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

PATIENCE = 120.0
"""Seconds until a screen is given up: many times what the slowest machine needs."""

STILL = 0.3
"""Seconds for which a screen has to stay as it is before the next key."""

SETTINGS = """
max_repeats = 0
precision = "float32"
temperature = 0.0
max_tokens = 8
theme = "chatapp"
"""


class Terminal:
    """A terminal of 100 columns and 30 rows, in which a command runs."""

    def __init__(self, socket, folder, command):
        self._tmux = ["tmux", "-S", str(socket), "-f", os.devnull]
        self._story = []
        line = f"{shlex.join(command)}; echo left with status $?; exec sleep {2 * PATIENCE:.0f}"
        self._run("new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), line)

    def _run(self, *arguments):
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, encoding="utf-8", check=True
        )
        return done.stdout

    def close(self):
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    @property
    def screen(self):
        return self._run("capture-pane", "-p")

    def write(self, text):
        """Type a text, letter by letter."""
        self._story.append(f"written: {text}")
        self._run("send-keys", "-l", "--", text)

    def press(self, *keys):
        """Press keys, by tmux's names for them."""
        self._story.append(f"pressed: {' '.join(keys)}")
        self._run("send-keys", *keys)

    def change(self, key):
        """Press a key that changes only colours, and wait until it has."""
        before = self._run("capture-pane", "-e", "-p")
        self.press(key)
        self._wait(lambda: self._run("capture-pane", "-e", "-p") != before, "any change")
        self._rest()

    def until(self, *words, without="", moving=False):
        """Wait for a screen that has all the words, and not those of `without`.

        moving: it need not come to rest.
        """

        def found():
            screen = self.screen
            return all(word in screen for word in words) and not (without and without in screen)

        self._wait(found, f"{words}" + f" without {without!r}" * bool(without))
        if not moving:
            self._rest()

    def _rest(self):
        """Wait until the screen stays as it is: what moves the focus is not always seen."""
        seen, since = "", 0.0

        def still():
            nonlocal seen, since
            if (screen := self.screen) != seen:
                seen, since = screen, time.monotonic()
            return time.monotonic() - since > STILL

        self._wait(still, "rest")

    def _wait(self, condition, expected):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                story = "\n".join([*self._story, self.screen])
                pytest.fail(f"no {expected} after this story:\n{story}", pytrace=False)
            time.sleep(0.05)
        self._story.append(self.screen)


@pytest.fixture
def terminal(tmp_path):
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    (home / "config" / "settings.toml").write_text(SETTINGS)
    # In so large a window a reply without a limit lasts until it is stopped.
    write_tiny_gpt2(tmp_path / "tiny", context=100_000)
    environment = {
        "CHATAPP_HOME": str(home),
        "PYTHONPATH": str(Path(chatapp.__file__).parent.parent),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        *("env", "-u", "NO_COLOR", "-u", "COLUMNS", "-u", "LINES"),
        *(f"{name}={value}" for name, value in environment.items()),
        *(sys.executable, "-m", "chatapp", "--model", "./tiny"),
    ]
    terminal = Terminal(tmp_path / "tmux", tmp_path, command)
    yield terminal
    terminal.close()


def test_a_session(terminal, tmp_path):
    # The first run.
    terminal.until("Three things to try", "● ready", "./tiny")

    # A chat.
    terminal.write("Good morning to the sea")
    terminal.until("Good morning to the sea")
    terminal.press("Enter")
    terminal.until("You", "Assistant", "reached the reply limit", "● ready")

    # A reply that is stopped.
    terminal.write("/set max_tokens 90000")
    terminal.press("Enter")
    terminal.until("Write a message", without="/set")
    terminal.write("Tell me a long story")
    terminal.press("Enter")
    terminal.until("● streaming", "Esc stops", "tokens/s", moving=True)
    terminal.press("Escape")
    terminal.until("● stopped", "stopped · c continues, r regenerates")
    terminal.write("/set max_tokens 8")
    terminal.press("Enter")
    terminal.until("Write a message", without="/set")

    # In another chat, a branch on another token.
    terminal.press("C-n")
    terminal.until("Three things to try")
    terminal.write("What do you see")
    terminal.press("Enter")
    terminal.until("● ready", "What do you see", "reached the reply limit")
    terminal.press("F3")
    terminal.until("2 Tokens", "entropy", "put another in its place")
    terminal.change("Tab")
    terminal.change("Down")
    terminal.press("Enter")
    terminal.until("‹ 2/2 ›", "● ready", without="2 Tokens")

    # What the model attends to.
    terminal.press("F3")
    terminal.until("2 Tokens", "version 2 of 2")
    terminal.press("4")
    terminal.until("attends to", "average of all heads", "layer ↓")
    terminal.change("Tab")
    terminal.press("Up")
    terminal.until("layer 1, head 0")
    terminal.press("Escape")
    terminal.until("‹ 2/2 ›", without="attends to")

    # Two settings compared.
    terminal.write("/compare temperature=1")
    terminal.press("Enter")
    terminal.until("Left", "Right", "temperature=1", "Enter sends it to both")
    terminal.write("Which one is better")
    terminal.press("Enter")
    terminal.until("1 Left", "2 Right", "Both bad")
    terminal.press("2")
    terminal.until("‹ 2/2 ›", "Which one is better", "● ready", without="Both bad")

    # The same two in order.
    terminal.press("C-Up")
    terminal.until("w Correct")
    terminal.press("k")
    terminal.until("Rank the replies, the best first")
    terminal.change("d")
    terminal.press("Enter")
    terminal.until("ranked 1", without="Rank the replies")

    # The other chat found again.
    terminal.press("C-o")
    terminal.until("Search titles and messages")
    terminal.write("long story")
    terminal.until("Tell me a long story", "Good morning to the sea")
    terminal.press("Enter")
    terminal.until("▌ Tell me a long story", "● ready", without="Search titles")

    # Exported, and left.
    terminal.press("Escape")
    terminal.until("Tell me a long story", without="r Regenerate")
    terminal.write("/export chat.md")
    terminal.press("Enter")
    terminal.until("The chat is exported to chat.md")
    terminal.press("C-q")
    terminal.until("left with status 0")

    exported = (tmp_path / "chat.md").read_text()
    assert "Good morning to the sea" in exported
    assert "Tell me a long story" in exported
    assert "What do you see" not in exported
    store = Store(tmp_path / "home" / "data" / "chats.db")
    assert [compared.choice for compared in store.comparisons(2)] == ["right"]
    assert sorted(said.rank or 0 for said in store.feedback(2).values()) == [1, 2]
    store.close()
