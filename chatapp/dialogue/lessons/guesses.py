"""What is guessed in lessons before an outcome is shown.

Invariant: a guess is one line of JSON, added to the user's file; nothing else reads or sends it.
"""

import json
import time

from chatapp.common.paths import guesses_path
from chatapp.dialogue.lessons.lesson import Lesson, Step


def record_guess(lesson: Lesson, step: Step, guess: str) -> None:
    """Add a guess to the file. Raises OSError."""
    row = {
        "time": time.time(),
        "lesson": lesson.name,
        "step": step.title,
        "question": step.predict,
        "guess": guess,
    }
    path = guesses_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
