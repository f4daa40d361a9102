"""Random invocations of both programs, each a process of its own: `fuzzed.py FOLDER SEED COUNT`.

Prints a JSON object: how often each exit status came, and what went wrong. This process has
imported what the programs need, and an invocation is a fork of it, which starts in milliseconds.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand

PATIENCE = 120
"""Seconds until an invocation is held to hang: many times what the slowest needs."""

FILES: dict[str, bytes] = {
    "empty": b"",
    "bytes.json": bytes(range(256)),
    "deep.json": b"[" * 5_000,
    "list.json": b'[{"role": "user", "content": "Hi"}]',
    "numbers.jsonl": b'{"input": 1e999, "output": null}\n' * 3,
    "pool.jsonl": b'{"input": "Hi", "output": "Hello"}\n' * 3,
    "wrong.toml": b"model = [\n",
    "odd.toml": b'model = "\\u0000"\ninstruction = 3\n[objective]\nkind = "\\u001b[2J"\n',
    "prompt.toml": b'instruction = "x"\ninput_prefix = "In:"\noutput_prefix = "Out:"\n',
    "fields.toml": b"example = \"'{text}': {label}\"\nquery = \"'{text}':\"\nlabels = ['a', 'b']\n"
    b"examples = [{text = 'x', label = 'a'}, {text = 'y', label = 'b'}]\n",
    "braces.toml": b'example = "{text} {} {{x} {text.__class__}: {answer!r:>9}"\n'
    b"examples_file = 'fields.jsonl'\n",
    "fields.jsonl": b'{"text": "{label}", "label": ["a"], "choices": "x"}\n{"text": {"a": 1}}\n',
    "schema.json": b'{"$ref": "#/a", "a": {"anyOf": [{"$ref": "#/a"}, {"pattern": "(a+)+$"}]}}',
    "word.txt": b"walrus" * 3_000,
    "pairs.jsonl": b'{"clean": "The cat", "corrupt": "The dog", "right": " sat", "wrong": " ran"}\n'
    b'{"positive": "Good.", "negative": "Bad."}\n',
    "tests.jsonl": b'{"input": "Hi", "output": "ham"}\n{"input": "\\u001b[2J", "output": "spam"}\n',
    "run.toml": b'model = "bundled"\n[data]\ntrain = "pool.jsonl"\n[train]\nsteps = 2\n',
    "latin.txt": b"caf\xe9",
    "text.txt": b"It was a walrus.\n",
    "\x1b[2J.txt": b"x",
    "config.json": b'{"model_type": "gpt2", "n_layer": 1e9}',
    "chats.db": b"SQLite format 3\0" + b"x" * 5_000,
    "table.csv": b'input,output\n"a,b\n',
}
WORDS = (
    "Hi|bundled|gpt2|./nosuch|.|/dev/null|/dev/zero|/proc/kmsg|pipe|spam|-|--|-1|0|1|7|1e999"
    "|nan|18446744073709551616|on|json|always|file:x|http://127.0.0.1:1/v1|\x1b[2J|\u202ex|[b]|{0}|a=b"
    "|train.learning_rate=nan|objective.kind=dpo|9999999999999999999999|''"
).split("|")
TEXTS = ("Hi there", "spam", "./prompt.toml", "./fields.toml", "bundled", "1", "calm")
FOLDERS = (".", "home", "empty-folder")
LEFT_OUT = {"chatapp api", "chatapp serve", "chatapp bench", "chatapp models get", "finetune push"}
"""They listen, take their time on purpose, or ask a hub."""


def commands() -> dict[str, TyperCommand]:
    from test_every_command import COMMANDS

    return {name: command for name, command in COMMANDS.items() if name not in LEFT_OUT}


def value(dice: random.Random, parameter: Any) -> list[str]:
    """The words of a parameter's value: most fit its type, some are anything."""
    if getattr(parameter, "is_flag", False):
        return []
    kind = parameter.type_descriptor.annotation
    fitting = [*FILES, *FOLDERS, *TEXTS]
    if isinstance(kind, type) and issubclass(kind, Enum):
        fitting = [each.value for each in kind]
    elif kind in (int, float):
        fitting = ["0", "1", "2", "3"]
    elif "--model" in parameter.opts:
        fitting = ["bundled"]
    return [
        dice.choice(fitting if dice.random() < 0.7 else [*WORDS, *FILES, "x" * 5_000, "\udcff"])
    ]


def invocation(dice: random.Random, known: dict[str, TyperCommand]) -> list[str]:
    """A command with options of its own, and with values that may not fit."""
    name = dice.choice(list(known))
    parts, options = name.split(), []
    for each in known[name].params:
        if not isinstance(each, TyperArgument):
            options.append(each)
        elif dice.random() < 0.95:
            parts += value(dice, each)
    for option in dice.sample(options, min(len(options), dice.randrange(4))):
        parts += [dice.choice(option.opts), *value(dice, option)]
    return [*parts, "--nosuch"] if dice.random() < 0.02 else parts


def lay_out(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "empty-folder").mkdir(exist_ok=True)
    with suppress(FileExistsError):
        os.mkfifo(folder / "pipe")


def child(folder: Path, parts: list[str], given: bytes) -> None:
    """Be the program; never returns."""
    reading, writing = os.pipe()
    os.write(writing, given[:50_000])  # what a pipe holds
    os.close(writing)
    os.dup2(reading, 0)
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(folder / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.setsid()
    sys.argv = parts
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    # As Python opens it, so that a byte that is no UTF-8 can be named in a message.
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    status = 99
    try:
        if parts[0] == "chatapp":
            import chatapp.cli as program
        else:
            import finetune.cli as program
        status = program.main() or 0
    except SystemExit as ending:
        code = ending.code
        status = code if isinstance(code, int) else int(code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(folder: Path, parts: list[str], given: bytes) -> tuple[int, str]:
    """The exit status of an invocation, and what it wrote to standard error. -9: it hung."""
    if not (pid := os.fork()):
        child(folder, parts, given)
    deadline = time.monotonic() + PATIENCE
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
            break
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    errors = (folder / ".err").read_text(encoding="utf-8", errors="replace")
    return os.waitstatus_to_exitcode(ended[1]), errors


def main() -> None:
    folder, dice = Path(sys.argv[1]), random.Random(sys.argv[2])
    os.environ |= {"CHATAPP_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(folder / "hub")}
    import finetune.run  # noqa: F401

    known = commands()
    statuses: Counter[int] = Counter()
    faults = []
    for _ in range(int(sys.argv[3])):
        lay_out(folder)
        parts, given = invocation(dice, known), dice.choice(list(FILES.values()))
        status, errors = run(folder, parts, given)
        statuses[status] += 1
        if status not in (0, 1, 2, 130) or "Traceback" in errors or "unexpected error" in errors:
            faults.append([parts, status, errors[-2_000:]])
            print(faults[-1], file=sys.stderr, flush=True)
    print(json.dumps({"statuses": statuses, "faults": faults}))


if __name__ == "__main__":
    main()
