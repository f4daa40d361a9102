"""A reward function of the user's own: called in another process, which can be given up.

Keep: however the function misbehaves, what comes of it here is a number or one sentence.
"""

import json
import subprocess
import sys
import threading
from queue import Empty, Queue
from typing import Any

from chatapp.foreign import printable
from chatapp.userfiles import UserError, quoted
from finetune.config import ConfigError

STARTING = 60.0
"""Seconds in which a file has to be loaded, with all that it imports."""

WORKER = "finetune.objectives.reward_worker"


class RewardError(UserError):
    """A reply got no reward: which check, which reply, and why."""


class RewardFunction:
    """The function `place`, file.py:function. timeout: seconds that a call may take.

    Raises ConfigError when there is no such function.
    """

    def __init__(self, place: str, timeout: float) -> None:
        self.place, self.timeout = place, timeout
        self._process: subprocess.Popen[str] | None = None
        self._start()

    def __call__(self, prompt: str, reply: str, reference: str) -> float:
        """What it gives a reply. Raises RewardError."""
        if self._process is None:
            self._start()
        said = self._said({"prompt": prompt, "reply": reply, "reference": reference}, self.timeout)
        if "value" in said:
            return float(said["value"])
        reason = " ".join(printable(str(said["error"])).split())
        raise RewardError(
            f"{self.place} {reason}, for the reply {quoted(reply)} to {quoted(prompt)}"
        )

    def _start(self) -> None:
        file, _, name = self.place.rpartition(":")
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, file, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        said = self._said(None, STARTING)
        if "ready" not in said:
            self.close()
            reason = " ".join(printable(str(said["error"])).split())
            raise ConfigError(f"objective.rewards: {self.place} cannot be loaded: {reason}")

    def _said(self, asked: dict[str, str] | None, seconds: float) -> dict[str, Any]:
        """The next line of the process, or why there is none."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            if asked is not None:
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except Empty:
            self.close()
            return {"error": f"took longer than {seconds:g} seconds"}
        except OSError:
            line = ""
        if not line:
            self.close()
            return {"error": "ended its process"}
        said: dict[str, Any] = json.loads(line)
        return said

    @staticmethod
    def _read(process: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    def close(self) -> None:
        """End the process; the next call begins another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
