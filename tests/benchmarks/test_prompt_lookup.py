"""What prompt lookup saves on replies that copy from their prompt, with the bundled model.

Run it with `pytest -m benchmark -s tests/benchmarks/test_prompt_lookup.py`. Greedy replies to
sentences to be corrected, and to texts whose first sentence is asked for, with guesses and
without them in turn; medians count.
"""

from collections import defaultdict
from statistics import median

import pytest
from scale import check_finite, is_tiny, sized

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.cache import prompt_lookup
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model

pytestmark = pytest.mark.benchmark

ROUNDS = sized(5, 1)
GREEDY = Sampling(temperature=0.0, max_tokens=sized(120, 8))
MISTAKES = (
    "I eated the purple berries before the long walk along the river to the old house.",
    "She goed to the market with her brother and buyed bread, cheese and red apples.",
    "The childs was playing in the garden while the old man sleeped under the tree.",
)
STORY = (
    "The old captain kept a small boat in the harbour behind the church. Every morning he "
    "rowed out to the island, where a lighthouse had stood since his grandfather was young. "
    "When the storm came, the lamp was broken, and he lit a fire on the rocks instead."
)
PROMPTS = {
    "grammar": "".join(
        f"Poor English input: {wrong}\nGood English output: {right}\n\n"
        for wrong, right in (
            ("I eated an apple.", "I ate an apple."),
            ("He don't like the cold water.", "He doesn't like the cold water."),
        )
    )
    + "Poor English input: {}\nGood English output:",
    "first sentence": "User: Repeat this text: {}\nAssistant:",
}
TEXTS = {"grammar": MISTAKES, "first sentence": (STORY,)}


def reply(model: LocalModel, prompt: str) -> tuple[str, float]:
    """The greedy reply, and the seconds it took."""
    model.forget()
    events = list(model.generate(Request(model.tokenizer.encode(prompt), GREEDY, stop=["\n"])))
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events if isinstance(event, Token))
    return text + finished.text, finished.seconds - finished.time_to_first_token


def test_copies_come_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("bundled")
    assert isinstance(model, LocalModel)
    guesses = prompt_lookup.LENGTH
    ratios = {}
    for task, template in PROMPTS.items():
        times: defaultdict[int, list[float]] = defaultdict(list)
        texts: defaultdict[int, list[str]] = defaultdict(list)
        for turn in range(ROUNDS + 1):
            for length in (guesses, 0):
                monkeypatch.setattr(prompt_lookup, "LENGTH", length)
                found = [reply(model, template.format(text)) for text in TEXTS[task]]
                texts[length] = [text for text, _ in found]
                if turn:
                    times[length].append(sum(seconds for _, seconds in found))
        assert texts[guesses] == texts[0]
        ratios[task] = median(times[0]) / median(times[guesses])
        print(f"\n{task}: {ratios[task]:.2f} times as fast; {texts[0]}")
    check_finite(*ratios.values())
    assert is_tiny() or min(ratios.values()) >= 1.5
