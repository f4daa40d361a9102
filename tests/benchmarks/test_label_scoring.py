"""Scoring labels against lm-evaluation-harness: as right, and several times as fast.

Run it with `pytest -m benchmark -s tests/benchmarks/test_label_scoring.py`, where lm-eval is
installed. Both sides get the same checkpoint, the same prompts and the same threads, and take
turns in one process.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
from scale import check_finite, is_tiny, sized

from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import model_folder
from chatapp.prompting.messages import text_of
from chatapp.tasks.answering import Answerer
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.selection.select import build_selector

PROMPT = Path(__file__).parents[2] / "prompts" / "question_type.toml"
ITEMS = sized(300, 4)
ROUNDS = sized(3, 1)
# What lm-eval may choose from; its fastest counts.
BATCH_SIZES = (1, 8, 32)

Run = Callable[[], list[list[float]]]


@pytest.mark.benchmark
def test_three_hundred_items_with_six_labels() -> None:
    model = load_model("bundled")
    prompt = load_prompt(PROMPT)
    assert len(prompt.labels) == 6
    # Eight examples drawn anew for each item, so that no two prompts share more than the
    # instruction: nothing is gained by what items have in common.
    rounds = -(-ITEMS // len(prompt.pool))
    questions = []
    for seed in range(rounds):
        drawn = replace(
            prompt, select=prompt.select.model_copy(update={"method": "random", "seed": seed})
        )
        asking = Answerer(model, drawn, build_selector(drawn.pool, drawn.select))
        questions += [asking.prepare(text) for text in prompt.pool.inputs]
    questions = questions[:ITEMS]
    labels = [f" {label}" for label in prompt.labels]

    def ours() -> list[list[float]]:
        found = []
        for answer in asking.answer(questions):
            assert answer.likelihoods
            found.append(list(answer.likelihoods.direct.values()))
        return found

    def theirs(batch_size: int) -> Run:
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM

        pairs = ((question, label) for question in questions for label in labels)
        requests = [
            Instance("loglikelihood", {}, (text_of(question.segments), label), index)
            for index, (question, label) in enumerate(pairs)
        ]
        harness = HFLM(
            pretrained=str(model_folder("bundled")),
            device="cpu",
            dtype="float32",  # the checkpoint's half precision is slow on a processor, and inexact
            batch_size=batch_size,
        )

        def run() -> list[list[float]]:
            flat = [value for value, _ in harness.loglikelihood(requests, disable_tqdm=True)]
            return [flat[start : start + 6] for start in range(0, len(flat), 6)]

        return run

    runs: dict[str, Run] = {"chatapp": ours}
    if find_spec("lm_eval") is not None:
        runs |= {f"lm-eval, batch size {size}": theirs(size) for size in BATCH_SIZES}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    found: dict[str, list[list[float]]] = {}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            found[name] = run()
            seconds[name].append(time.perf_counter() - started)

    speed = {name: ITEMS / median(each) for name, each in seconds.items()}
    tokens = sum(len(model.tokenizer.encode(text_of(q.segments))) for q in questions) / ITEMS
    print(f"\n{ITEMS} items, {len(labels)} labels, {tokens:.0f} tokens a prompt; items a second:")
    for name, value in speed.items():
        print(f"  {name}: {value:.1f} (seconds: {', '.join(f'{s:.1f}' for s in seconds[name])})")
    for name in runs:
        for mine, other in zip(found["chatapp"], found[name], strict=True):
            assert mine == pytest.approx(other, abs=1e-3)
            assert mine.index(max(mine)) == other.index(max(other))
    check_finite(*speed.values())
    if is_tiny():
        return
    fastest = max(value for name, value in speed.items() if name != "chatapp")
    print(f"  chatapp is {speed['chatapp'] / fastest:.1f} times as fast as the fastest of these")
    assert speed["chatapp"] >= 3 * fastest
