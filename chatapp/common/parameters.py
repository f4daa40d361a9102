"""The sampling parameters: how the next token is drawn from the logits.

Keep: a parameter is described here and nowhere else. Settings, environment variables, flags,
the fields of F2, /set, /compare, the table [generate] of prompt files, presets, requests to
servers and the defaults of models are made from `PARAMETERS`, so that another field of `Sampling`
appears in all of them. And whose value wins is decided in `Choices` alone.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from chatapp.common.userfiles import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What one sampling parameter is.

    kind: of its values. default: None where the parameter may be left open.
    low, high: the bounds; above_low, below_high: the bound itself is outside.
    off: the value that changes nothing; None where there is no such value.
    meaning: some words, without a full stop.
    request_fields: what servers call it; none when they cannot be asked for it.
    is_extension: whether OpenAI's protocol of completions lacks it, so that not every server
        heeds it.
    is_heeded_here: whether it acts on what has been drawn, so that no server needs to know it.
    config_field: what a model's generation_config.json calls it; "" when that has no such value.
    """

    name: str
    kind: type[int] | type[float]
    default: float | int | None
    low: int
    high: float = math.inf
    above_low: bool = False
    below_high: bool = False
    off: int | None = None
    meaning: str
    request_fields: tuple[str, ...] = ()
    is_extension: bool = False
    is_heeded_here: bool = False
    config_field: str = ""

    @property
    def help(self) -> str:
        """The meaning, and which value is off."""
        return self.meaning if self.off is None else f"{self.meaning}; {self.off} is off"

    def parsed(self, text: str) -> float | int | None:
        """The value that a user has written; "" leaves it open. Raises ValueError."""
        if not text and self.default is None:
            return None
        try:
            value = self.kind(text)
        except ValueError:
            raise self._wrong_kind(text) from None
        return self.checked(value)

    def checked(self, value: object) -> float | int | None:
        """A value as this parameter's kind. Raises ValueError in one sentence."""
        if value is None and self.default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | self.kind):
            raise self._wrong_kind(value)
        try:
            number = self.kind(value)
        except OverflowError as error:
            raise ValueError(f"{self.name}: {error}") from None
        self.check_range(number)
        return number

    def check_range(self, value: float) -> None:
        """Raise ValueError when a number is out of range; nan always is."""
        above = value > self.low if self.above_low else value >= self.low
        below = value < self.high if self.below_high else value <= self.high
        if not (above and below):
            raise ValueError(f"{self.name} is {value!r}; expected {self.range_in_words}")

    @property
    def range_in_words(self) -> str:
        """As in "from 0 (off) to below 1"."""
        low, high = (
            f"{each} (off)" if each == self.off else each for each in (self.low, self.high)
        )
        if self.high == math.inf:
            words = f"{low} or more"
        elif self.above_low:
            words = f"above {low} and {'below' if self.below_high else 'at most'} {high}"
        else:
            words = f"from {low} to {'below ' if self.below_high else ''}{high}"
        is_named = self.off in (None, self.low, self.high)
        return words if is_named else f"{words}; {self.off} is off"

    def _wrong_kind(self, value: object) -> ValueError:
        expected = "a number" if self.kind is float else "a whole number"
        return ValueError(f"{self.name} is {value!r}; expected {expected}")


def _described(default: float | int | None, **description: Any) -> Any:
    """A field of `Sampling`. description: as in `Parameter`."""
    return field(default=default, metadata={"default": default, **description})


@dataclass(frozen=True, slots=True)
class Sampling:
    """A value for each parameter. Raises ValueError for one that is out of range."""

    temperature: float = _described(
        0.7,
        low=0,
        high=100,
        meaning="0 is greedy; higher varies more",
        request_fields=("temperature",),
        config_field="temperature",
    )
    top_k: int = _described(
        0,
        low=0,
        off=0,
        meaning="keep the k most probable tokens",
        request_fields=("top_k",),
        is_extension=True,
        config_field="top_k",
    )
    top_p: float = _described(
        0.9,
        low=0,
        above_low=True,
        high=1,
        off=1,
        meaning="keep top tokens up to this probability",
        request_fields=("top_p",),
        config_field="top_p",
    )
    min_p: float = _described(
        0.0,
        low=0,
        high=1,
        below_high=True,
        off=0,
        meaning="drop tokens below this fraction of the top probability",
        request_fields=("min_p",),
        is_extension=True,
        config_field="min_p",
    )
    # Divides positive and multiplies negative logits of tokens already seen (Keskar et al. 2019).
    repetition_penalty: float = _described(
        1.0,
        low=0,
        above_low=True,
        high=100,
        off=1,
        meaning="above 1, tokens repeat less",
        request_fields=("repetition_penalty", "repeat_penalty"),
        is_extension=True,
        config_field="repetition_penalty",
    )
    no_repeat_ngram: int = _described(
        0,
        low=0,
        off=0,
        meaning="never repeat n tokens in a row",
        config_field="no_repeat_ngram_size",
    )
    seed: int | None = _described(
        None,
        low=0,
        high=2**63 - 1,
        meaning="same seed, same reply; unset is random",
        request_fields=("seed",),
    )
    max_tokens: int = _described(
        256,
        low=1,
        meaning="maximum length of a reply, in tokens",
        request_fields=("max_tokens",),
        config_field="max_new_tokens",
    )
    # By the rule of chatapp.engine.stopping.
    max_repeats: int = _described(
        4, low=0, off=0, meaning="stop when a phrase repeats n times", is_heeded_here=True
    )

    def __post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value is not None or parameter.default is not None:
                parameter.check_range(value)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "Sampling":
        """Values by name, as a file gives them; defaults for the others.

        Raises ValueError in one sentence for a name or a value that cannot be.
        """
        return cls(**{name: parameter(name).checked(value) for name, value in values.items()})  # type: ignore[arg-type]

    def changed(self, name: str, text: str) -> "Sampling":
        """With the value of one parameter as a user has written it; "" leaves the seed open.

        Raises ValueError in one sentence.
        """
        return replace(self, **{name: parameter(name).parsed(text)})  # type: ignore[arg-type]


PARAMETERS: Mapping[str, Parameter] = {
    each.name: Parameter(
        name=each.name,
        kind=float if each.type is float else int,
        **each.metadata,
    )
    for each in fields(Sampling)
}


def parameter(name: str) -> Parameter:
    """The parameter of a name. Raises ValueError with the nearest name, or all of them."""
    try:
        return PARAMETERS[name]
    except KeyError:
        raise ValueError(f"there is no parameter {name!r}{suggestion(name, PARAMETERS)}") from None


Values = Mapping[str, float | int | None]
"""Values of some of the parameters, by name."""


def known_values(values: Mapping[str, object]) -> Values:
    """Those of the values that a parameter can have: a newer version may have stored others."""
    known = {}
    for name, value in values.items():
        with suppress(ValueError):
            known[name] = parameter(name).checked(value)
    return known


Origin = Literal[
    "default", "model", "settings file", "environment", "prompt file", "this chat", "flag"
]
"""Whose a value is, the weakest first: the program's, then the model's makers', then the user's."""

_ORIGINS: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class Choices:
    """The values that somebody chose. by_origin: those of each origin but the program."""

    by_origin: Mapping[Origin, Values] = field(default_factory=dict)

    def of(self, origin: Origin, values: Values) -> "Choices":
        """With these as all the values of an origin."""
        return Choices({**self.by_origin, origin: dict(values)})

    def changed_to(self, sampling: Sampling) -> "Choices":
        """With what differs in `sampling` as chosen in this chat."""
        now = self.sampling
        new = {
            name: getattr(sampling, name)
            for name in PARAMETERS
            if getattr(sampling, name) != getattr(now, name)
        }
        return self.of("this chat", {**self.by_origin.get("this chat", {}), **new})

    def for_all_chats(self) -> "Choices":
        """With what was chosen in this chat as the settings file's."""
        merged = {
            name: value
            for origin in ("settings file", "this chat")
            for name, value in self.by_origin.get(origin, {}).items()
        }
        return self.of("settings file", merged).of("this chat", {})

    @property
    def sampling(self) -> Sampling:
        """The values in force."""
        values: dict[str, Any] = {}
        for origin in _ORIGINS:
            values |= self.by_origin.get(origin, {})
        return Sampling(**values)

    @property
    def origins(self) -> dict[str, Origin]:
        """Whose value is in force, for each parameter."""
        origins: dict[str, Origin] = dict.fromkeys(PARAMETERS, _ORIGINS[0])
        for origin in _ORIGINS:
            origins |= dict.fromkeys(self.by_origin.get(origin, {}), origin)
        return origins

    def document(self, sampling: Sampling) -> dict[str, dict[str, object]]:
        """The values of a `sampling` that was made of these, and whose they are, as data."""
        return {
            name: {"value": getattr(sampling, name), "from": origin}
            for name, origin in self.origins.items()
        }


PRECISIONS = ("auto", "float32", "bfloat16", "int8", "int4")
DEVICES = ("auto", "cpu", "cuda", "mps")
