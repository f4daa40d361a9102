"""A lesson file: a lecture in steps, each with a text and what is shown of a model."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from chatapp.common.parameters import Sampling
from chatapp.common.paths import guesses_path
from chatapp.common.userfiles import (
    Location,
    UserError,
    is_path,
    make_private,
    open_own,
    parse_toml,
    read_required,
    shown,
    suggestion,
)
from chatapp.common.validation import located, validated

SHIPPED = Path(__file__).parent / "shipped"
NAMES = ("completion", "tokens", "sampling", "attention", "demonstrations", "teaching", "cache")
"""The lessons of the program, in the order of a course."""

PLAIN_TEXT = SHIPPED / "text.toml"
"""The prompt file that adds nothing to a text: the model continues it as it stands."""

View = Literal["prompt", "tokens", "why", "attention", "heads", "layers", "step"]


def _bounds(value: object) -> tuple[float, float]:
    match value:
        case [int() | float() as low, int() | float() as high] if low <= high:
            return low, high
    raise ValueError(f"is {shown(value)}, expected two numbers, the least and the most")


def _place(value: object) -> str | int:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"is {shown(value)}, expected a token's text, or its number from 0")


def _head(value: str) -> str:
    layer, _, head = value.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ValueError(f"is {shown(value)}, expected layer and head such as '1.0'")
    return value


def _settings(value: object) -> dict[str, float | int]:
    if not isinstance(value, dict):
        raise ValueError(f"is {shown(value)}, expected a table")
    sampling = Sampling()
    for name, setting in value.items():
        sampling = sampling.changed(name, str(setting))
    return {name: getattr(sampling, name) for name in value}


Bounds = Annotated[tuple[float, float], PlainValidator(_bounds)]
Place = Annotated[str | int, PlainValidator(_place)]
Head = Annotated[str, AfterValidator(_head)]
Settings = Annotated[dict[str, Any], PlainValidator(_settings)]
Text = Annotated[str, Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Expect(_Table):
    """What a step has to show, so that its text is true. Bounds are the least and the most.

    reply, lacks: what the reply contains, and does not. tokens, count: of the text. likeliest,
    probability, entropy, left: of the next token, before sampling parameters; `left` is the number
    of tokens that they leave. attends: the chosen token's weight on others by the chosen head, or
    the mean of all heads. layers: the likeliest token after a layer, at the chosen token. slower:
    how many times as long the reply's later tokens take without the cache, where they have to be
    the same. induction: of heads, on random tokens. share: of parts in the difference of two
    logits. examples: in the prompt.
    """

    reply: list[Text] = []
    lacks: list[Text] = []
    tokens: list[str] = []
    count: Bounds | None = None
    likeliest: str | None = None
    probability: dict[str, Bounds] = {}
    entropy: Bounds | None = None
    left: Bounds | None = None
    attends: dict[str, Bounds] = {}
    layers: dict[str, str] = {}
    induction: dict[Head, Bounds] = {}
    share: dict[str, Bounds] = {}
    examples: Bounds | None = None
    slower: Bounds | None = None


class Step(_Table):
    """One step.

    text: what the lecturer says. prompt: a text that the model continues; message: one that it
    answers in a chat, with prompt_file after the demonstrations of that file. reply: whether the
    model writes anything. cache: false computes each of its tokens from the whole text. view: the
    inspector's tab; token, head: chosen in it. off: parts of the model, as for /ablate. model,
    settings: in place of the lesson's. predict: a question; what is shown waits for a guess.
    """

    title: Text
    text: Text
    prompt: Text | None = None
    message: Text | None = None
    prompt_file: Text | None = None
    reply: bool = True
    cache: bool = True
    model: Text | None = None
    settings: Settings = {}
    off: str = ""
    view: View | None = None
    token: Place | None = None
    head: Head | None = None
    predict: Text | None = None
    expect: Expect = Expect()

    @property
    def input(self) -> str:
        """The text that the model gets; "" for a step of words alone."""
        return self.prompt or self.message or ""

    def position(self, texts: Sequence[str]) -> int | None:
        """The place of the chosen token among those of a text: the last one that is alike.

        None where none is chosen, or there is none.
        """
        if isinstance(self.token, int):
            return self.token if self.token < len(texts) else None
        places = [place for place, text in enumerate(texts) if text == self.token]
        return places[-1] if places else None


class _File(_Table):
    title: Text
    model: Text = "bundled"
    settings: Settings = {}
    teach: dict[str, Text] = {}
    step: Annotated[list[Step], Field(min_length=1, max_length=200)]


class Lesson:
    """A lesson as read from its file.

    name: of the lesson or its path. teach: the models that it makes by fine-tuning, each with the
    path of finetune's configuration.
    """

    def __init__(self, path: Path) -> None:
        """Raises UserError with file, line and key."""
        self._path = path
        self._source = read_required(path)
        data = parse_toml(self._source, path)
        file = validated(_File, data, UserError, origin=path, what="lesson", source=self._source)
        self.name = path.stem if path.parent == SHIPPED else str(path)
        self.title, self.steps = file.title, tuple(file.step)
        self.teach = {name: self.file(config) for name, config in file.teach.items()}
        self._model, self._settings = file.model, file.settings
        for name, config in file.teach.items():
            self._require(("teach", name), config)
        for number, step in enumerate(self.steps):
            self._check(number, step)

    def model_of(self, step: Step) -> str:
        """The name of a step's model."""
        return step.model or self._model

    def sampling_of(self, step: Step) -> Sampling:
        """The sampling parameters of a step's reply."""
        return replace(Sampling(), **self.settings_of(step))

    def settings_of(self, step: Step) -> dict[str, Any]:
        """Those of them that the file sets; the others are the program's own."""
        return self._settings | step.settings

    def prompt_file_of(self, step: Step) -> str:
        """The prompt file of a step's chat: its name or path; "" for none."""
        if step.prompt is not None:
            return str(PLAIN_TEXT)
        return self.file(step.prompt_file) if step.prompt_file else ""

    def file(self, name: str) -> str:
        """A file that the lesson names: its path where it is beside the lesson, else its name."""
        beside = self._path.absolute().parent / name
        return str(beside) if beside.suffix or is_path(name) else name

    def _check(self, number: int, step: Step) -> None:
        """Raise UserError where the keys of a step do not go together."""

        def refuse(key: str, words: str) -> None:
            raise UserError(f"{self._at(('step', number, key))} {words}")

        if step.prompt is not None and step.message is not None:
            refuse("message", "cannot stand beside 'prompt'; expected one of them")
        if step.prompt_file is not None and step.message is None:
            refuse("prompt_file", "has no 'message' beside it to put after its demonstrations")
        if not step.input:
            for key in ("view", "predict", "expect", "off"):
                if key in step.model_fields_set:
                    refuse(key, "has no 'prompt' or 'message' beside it")
        if step.token is not None and step.view is None:
            refuse("token", "has no 'view' beside it")
        if step.head is not None and step.view not in ("attention", "why"):
            refuse("head", "has no 'view' beside it that is 'attention' or 'why'")
        if (step.expect.reply or step.expect.lacks) and not step.reply:
            refuse("expect", "is about the reply, and 'reply' is false")
        if not step.reply and not (step.cache and step.expect.slower is None):
            refuse("reply", "is false, and 'cache' or 'slower' is about the reply")
        if step.expect.attends and step.token is None:
            refuse("expect", "has 'attends', and no 'token' is beside it")
        if step.expect.layers and step.token is None:
            refuse("expect", "has 'layers', and no 'token' is beside it")
        if step.prompt_file is not None and self.file(step.prompt_file) != step.prompt_file:
            self._require(("step", number, "prompt_file"), step.prompt_file)

    def _require(self, location: Location, name: str) -> None:
        if not Path(self.file(name)).is_file():
            raise UserError(f"{self._at(location)} is {shown(name)}; there is no such file")

    def _at(self, location: Location) -> str:
        return located(self._path, self._source, location)


def find_lesson(name: str) -> Lesson:
    """A lesson of the program by name, or one in a file. Raises UserError."""
    if name in NAMES:
        return Lesson(SHIPPED / f"{name}.toml")
    path = Path(name).expanduser()
    if not path.suffix and not is_path(name):
        raise UserError(f"there is no lesson {name!r}{suggestion(name, NAMES)}")
    return Lesson(path)


def record_guess(lesson: Lesson, step: Step, guess: str) -> None:
    """Add a guess, made before its outcome is shown, to the file of guesses. Raises OSError."""
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
