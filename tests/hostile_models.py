"""Model folders and GGUF files made to do harm, and what becomes of one that is loaded."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

NUMBERS = (0, -1, 1, 3, 10**6, 10**9, 2**31, 10**18, 1e308, float("nan"), 0.5)
VALUES = (*NUMBERS, "", "x", "../x", None, [], {}, True, [10**9] * 9, "a" * 99_999)

GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1_000}
ODD_STEPS: dict[str, tuple[Any, ...]] = {
    "normalizer": (
        GROWING,
        {"type": "Prepend", "prepend": "a" * 10**6},
        {"type": "Precompiled", "precompiled_charsmap": "////"},
    ),
    "pre_tokenizer": ({"type": "FixedLength", "length": 0},),
    "decoder": (GROWING, {"type": "Strip", "content": " ", "start": 2**40, "stop": 0}),
    "padding": ({"strategy": {"Fixed": 10**9}, "direction": "Left", "pad_id": 0},),
    "model": ({"type": "BPE", "vocab": {}, "merges": []}, {"type": "WordLevel", "vocab": {}}),
}


def mutate_json(path: Path, dice: random.Random) -> None:
    """One value of a JSON file, at any depth, in another's place, or none."""
    document = json.loads(path.read_bytes())
    if path.name == "tokenizer.json" and dice.random() < 0.6:
        step = dice.choice(list(ODD_STEPS))
        document[step] = dice.choice(ODD_STEPS[step])
    else:
        place: Any = document
        while True:
            keys: list[Any] = list(place if isinstance(place, dict) else range(len(place)))
            if not keys:
                break
            key = dice.choice(keys)
            if not isinstance(place[key], dict | list) or dice.random() < 0.3:
                place[key] = dice.choice(VALUES)
                break
            place = place[key]
    path.write_text(json.dumps(document))


def mutate_header(path: Path, dice: random.Random) -> None:
    """One value in the header of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = dice.choice([key for key in header if key != "__metadata__"])
    key = dice.choice(("shape", "dtype", "data_offsets"))
    if key == "dtype":
        header[name][key] = dice.choice(("F16", "I64", "F8_E4M3", "BOOL", "X"))
    else:
        header[name][key][dice.randrange(len(header[name][key]))] = dice.choice(NUMBERS)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def mutate_bytes(path: Path, dice: random.Random) -> None:
    """A few bytes, most of them near the beginning, where headers are."""
    data = bytearray(path.read_bytes())
    for _ in range(dice.randint(1, 8)):
        data[dice.randrange(min(len(data), dice.choice((64, 4096, 2**30))))] = dice.choice(
            (0, 1, 0x7F, 0xFF, dice.randrange(256))
        )
    path.write_bytes(bytes(data))


def cut(path: Path, dice: random.Random) -> None:
    """The file without its end."""
    os.truncate(path, dice.randrange(path.stat().st_size))


def replace(path: Path, dice: random.Random) -> None:
    """Something else under the file's name."""
    path.unlink()
    kind = dice.choice("pipe zero folder round huge nothing deep".split())
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "round":
        path.symlink_to(path)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**33)
    elif kind == "deep":
        path.write_text("[" * 10**6)


def fill(path: Path, dice: random.Random) -> None:
    """Weights that are none: the end of the file in ones is NaN."""
    data = path.read_bytes()
    path.write_bytes(data[:-64] + b"\xff" * 64)


Mutation = Callable[[Path, random.Random], None]


def hostile_models(seeds: list[Path], into: Path, seed: int) -> Iterator[Path]:
    """Copies of model folders and GGUF files, each changed in one to three places."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        copy = into / str(number)
        source = dice.choice(seeds)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, f"{copy}.gguf")
        copy = copy if source.is_dir() else Path(f"{copy}.gguf")
        for _ in range(dice.choice((1, 1, 2, 3))):
            files = sorted(copy.iterdir()) if copy.is_dir() else [copy]
            # A file that is huge already is not read for one more change.
            regular = [file for file in files if file.is_file() and file.stat().st_size < 2**26]
            if not regular:
                break
            path = dice.choice(regular)
            mutations: list[Mutation] = [mutate_bytes, cut, replace, fill]
            if path.suffix == ".json":
                mutations = [mutate_json] * 5 + mutations
            elif path.suffix == ".safetensors":
                mutations = [mutate_header] * 3 + mutations
            try:
                dice.choice(mutations)(path, dice)
            except (ValueError, OSError, IndexError, KeyError, TypeError):
                continue  # what an earlier change has left cannot be changed so
        yield copy


def answer(path: str) -> Iterator[str]:
    """How it ends to load a model and draw two tokens: "loaded", or the kind of an error."""
    from chatapp.common.userfiles import UserError
    from chatapp.engine.model import Request, Sampling
    from chatapp.engine.models.description import describe
    from chatapp.engine.models.loading import load_model
    from chatapp.engine.models.resolving import find_local_model

    with suppress(UserError):
        describe(find_local_model(path))
    try:
        model = load_model(path)
        ids = model.tokenizer.encode("a b\n") or [0]
        text = [event.text for event in model.generate(Request(ids, Sampling(max_tokens=2)))]
        yield f"loaded {len(text) > 0}"
    except UserError as error:
        yield "several lines" if "\n" in str(error) else "a sentence"
    except ValueError as error:  # a prompt that is longer than a tiny window
        yield f"{type(error).__name__}: {error}"[:200]
