"""What is guessed in lessons before an outcome is shown."""

import json
import time

from chatapp.common.paths import guesses_path
from chatapp.common.userfiles import make_private, open_own
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
    make_private(path.parent)
    with open_own(path) as file:
        file.write(json.dumps(row).encode() + b"\n")
