"""Replies under random schemas and patterns, and under those of a public test suite.

    python tests/benchmarks/constrained_replies.py bundled 1000 [FOLDER]

FOLDER: of JSON files as in the JSON Schema Test Suite, which is in the source package of
jsonschema (json/tests/draft2020-12). A reply has at most 60 tokens, drawn at temperature 1. Prints
how many schemas were refused, how many replies ended and are valid by jsonschema or re, and the
time of a mask; a refusal has to be one sentence.
"""

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np

from chatapp.common.userfiles import UserError
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.matching import Allowed, Matcher
from chatapp.engine.events import Finished
from chatapp.engine.model import LanguageModel, Request, Sampling
from chatapp.engine.models.loading import load_model

sys.path.append(str(Path(__file__).parents[1]))
from random_constraints import random_constraint

MOST_TOKENS = 60


def random_constraints(count: int) -> Iterator[Constraint]:
    """The constraint of each number, whatever the others are."""
    for number in range(count):
        yield random_constraint(random.Random(number))


def published_constraints(folder: Path, counts: Counter[str]) -> Iterator[Constraint]:
    """The constraints of a test suite that can be followed; the others are counted."""
    for file in sorted(folder.glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            try:
                yield Constraint.of_schema(group["schema"])
            except ConstraintError as error:
                counts["refused"] += 1
                counts["refused in one sentence"] += len(str(error).splitlines()) == 1


def is_valid(constraint: Constraint, text: str) -> bool:
    """Whether a reply fits, by programs that did not take part in it."""
    if constraint.kind == "pattern":
        return re.fullmatch(constraint.source, text) is not None
    schema = json.loads(constraint.source)
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return bool(validator(schema).is_valid(json.loads(text)))


def try_one(model: LanguageModel, constraint: Constraint, counts: Counter[str]) -> None:
    """Count what becomes of one reply."""
    ids = model.tokenizer.encode("An example:\n")
    sampling = Sampling(temperature=1.0, seed=1, max_tokens=MOST_TOKENS)
    try:
        events = list(model.generate(Request(ids, sampling, constraint=constraint)))
    except UserError:
        counts["refused for this model"] += 1
        return
    end = events[-1]
    assert isinstance(end, Finished)
    if end.reason != "stop":
        assert end.valid is False
        counts[f"ended by {end.reason}"] += 1
        return
    text = "".join(event.text for event in events)
    counts["ended"] += 1
    counts["called valid"] += end.valid is True
    try:
        fits = is_valid(constraint, text)
    except re.error:
        counts["with a pattern that Python does not know"] += 1
        return
    counts["valid"] += fits
    if not (end.valid and fits):
        print(f"{constraint.source}\n{text}\n{end.message}")


def main(name: str, count: int, folder: Path | None) -> None:
    """Try them, and print the counts."""
    seconds: list[float] = []
    allowed = Matcher.allowed

    def timed(matcher: Matcher) -> Allowed:
        started = time.perf_counter()
        result = allowed(matcher)
        seconds.append(time.perf_counter() - started)
        return result

    Matcher.allowed = timed  # type: ignore[method-assign]
    model = load_model(name)
    kinds = {"random": random_constraints(count)}
    totals = {kind: Counter[str]() for kind in ("random", "published")}
    if folder is not None:
        kinds["published"] = published_constraints(folder, totals["published"])
    for kind, constraints in kinds.items():
        for number, constraint in enumerate(constraints, 1):
            try_one(model, constraint, totals[kind])
            if number % 50 == 0:
                print(f"{kind}: {number} tried, {dict(totals[kind])}", flush=True)
        masks = (
            f"{np.median(seconds) * 1e6:.0f} µs, 99 % under {np.quantile(seconds, 0.99) * 1e6:.0f}"
        )
        print(f"{name}, {kind}: {dict(totals[kind])}; {len(seconds)} masks, median {masks}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
