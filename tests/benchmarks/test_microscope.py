"""What each view of the microscope takes for a prompt of 40 tokens.

Run it with `pytest -m benchmark -s tests/benchmarks/test_microscope.py` on a machine that does
nothing else. On a busy one, set OMP_NUM_THREADS=1 and look at the processor's time: threads that
wait for each other use it up, too. CHATAPP_BENCHMARK_MODEL names a model to measure beside the
bundled one and a GPT-2 of 124 million random weights. The other prompt of a comparison differs in
its first token, so that no state is equal in both.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from random_124m import gpt2_124m
from scale import check_finite, is_tiny, sized

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.interventions import Part
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.lab.drawing.pictures import html_page, svg_picture
from chatapp.lab.inspectable import inspectable
from chatapp.lab.prompt_parts import Span
from chatapp.lab.reruns import LabError
from chatapp.lab.steering import make_direction
from chatapp.lab.views.architecture_views import Positions
from chatapp.lab.views.attention_views import Attention
from chatapp.lab.views.close_up_views import Neighbours, Neurons, StateNeighbours, WeightSteps
from chatapp.lab.views.head_views import score_heads, strongest_texts
from chatapp.lab.views.layer_views import Layers, Norms
from chatapp.lab.views.part_views import Ablation, Losses, SmallCircuit, Why, ask
from chatapp.lab.views.patch_view import Patches, compare
from chatapp.lab.views.prompt_part_view import attribute_prompt
from chatapp.lab.views.text_views import NextToken, Tokens

pytestmark = pytest.mark.benchmark

LENGTH, ROUNDS = sized((40, 5), (6, 1))
TEXT = "The sea is a large body of salt water, and people have sailed on it for a long time. " * 3
PAIRS = [(f"What a joyful {it}!", f"What a miserable {it}.") for it in ("day", "meal", "walk")] * 2
ABLATION, PATCHING = "what each does for a token", "patching: by layer and token, and by head"
SEARCH = "smallest circuit"
"""It is searched, with its progress shown, and may take longer than a view."""


def views(model: LocalModel) -> dict[str, Callable[[], object]]:
    """What is measured, by its name."""
    ids = model.tokenizer.encode(TEXT)[:LENGTH]
    other, last = [ids[1], *ids[1:]], LENGTH - 1
    opened = inspectable(model)
    assert opened is not None
    trace, question, second = opened.inspect(ids), ask(model, ids), ask(model, other)
    why = Why.of(question)
    halves = [Span("part 1", 0, LENGTH // 2), Span("part 2", LENGTH // 2, LENGTH)]
    return {
        "open: states, tokens, 25 alternatives each": lambda: Tokens.of(opened.inspect(ids), 25),
        "attention of a token": lambda: Attention.of(trace, last),
        "lenses, norms": lambda: (Layers.of(trace, last, 10), Norms.of(model, ids, last)),
        "shares of all parts": lambda: Why.of(ask(model, ids), effects=False),
        "total effects of all heads and MLPs": lambda: Why.of(question),
        ABLATION: lambda: Ablation.of_each(question),
        "what each does for the text's loss": lambda: Losses.of(question),
        PATCHING: lambda: compare(model, ids, other),
        "patching, estimated": lambda: Patches.of(question, second, estimate=True),
        "what in the prompt mattered": lambda: attribute_prompt(model, ids, halves),
        "the next token, step by step": lambda: NextToken.of(opened.stepper(ids, Sampling())),
        "close-up: a weight": lambda: WeightSteps.of(model, ids, Part(0, 0), last),
        "close-up: neighbours of token and state": lambda: (
            Neighbours.of_token(model, ids[-1]),
            StateNeighbours.of_state(model, ids, "0", last),
        ),
        "close-up: neurons": lambda: Neurons.of(model, ids, Part(0, is_mlp=True)),
        "positions on, off, shuffled": lambda: Positions.of(model, ids, ids[::-1]),
        "scores of all heads": lambda: score_heads(model),
        "texts of a head": lambda: strongest_texts(model, 0, 0),
        "a direction from six pairs": lambda: make_direction(model, "joy", PAIRS),
        "a page and a picture": lambda: (html_page([why]), svg_picture([why])),
        SEARCH: lambda: SmallCircuit.of(question),
    }


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the processors: the medians of several rounds after one that warms up;
    of one, where it takes long.
    """

    def once() -> tuple[float, float]:
        started, used = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - started, time.process_time() - used

    first = once()
    if first[0] > 5:
        return first
    clock, processors = zip(*(once() for _ in range(ROUNDS)), strict=True)
    return median(clock), median(processors)


@pytest.mark.parametrize("kind", ["bundled", "gpt2", "named"])
def test_each_view_of_a_short_prompt(kind: str, tmp_path: Path) -> None:
    name = {"bundled": "bundled", "named": os.environ.get("CHATAPP_BENCHMARK_MODEL", "")}.get(kind)
    if name == "":
        pytest.skip("CHATAPP_BENCHMARK_MODEL names no model")
    model = load_model(name or str(gpt2_124m(tmp_path)), precision="float32")
    assert isinstance(model, LocalModel)
    times: dict[str, float] = {}
    print(f"\n{model.name}, {LENGTH} tokens, milliseconds by the clock and of the processors")
    for view, work in views(model).items():
        try:
            times[view], processors = seconds(work)
        except LabError as error:  # random weights need not tell two tokens apart
            print(f"  {view}: {error}")
            continue
        print(f"  {view:44}{times[view] * 1e3:9.0f}{processors * 1e3:9.0f}", flush=True)
    check_finite(*times.values())
    if not is_tiny():
        aims = {"bundled": (0.3, set(times) - {SEARCH}), "gpt2": (10.0, {ABLATION, PATCHING})}
        longest, aimed = aims.get(kind, (0.0, set()))
        assert {view: times[view] for view in aimed if times[view] > longest} == {}
