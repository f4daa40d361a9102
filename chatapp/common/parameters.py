"""What is accepted in more than one place is described here once: its type, range and meaning.

`PARAMETERS` are the sampling parameters: how the next token is drawn from the logits. Settings,
environment variables, flags, the fields of F2, /set, /compare, the table [generate] of prompt
files, presets, requests to servers, the server's own requests and model defaults are all derived
from it, so a new field of `Sampling` appears everywhere. `Choices` alone decides whose value wins.
`validation.key_of` makes a key of a file from a parameter, `command_groups.number_option` an
option.
"""

import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from chatapp.common.userfiles import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number that is accepted in several places, such as a sampling parameter.

    kind: the type of its values. default: None where the parameter may stay unset. low, high: the
    bounds; above_low, below_high: the bound itself is excluded. off: the value without effect, or
    None. meaning: a few words, without a full stop. request_fields: its names in server requests;
    none when servers do not know it. is_extension: OpenAI's completions protocol lacks it, so some
    servers ignore it. is_heeded_here: it acts on the drawn tokens, here, so no server needs to know
    it. config_field: its name in a model's generation_config.json, or "".
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
        """The meaning, and the value that switches it off."""
        return self.meaning if self.off is None else f"{self.meaning}; {self.off} is off"

    @property
    def sentence(self) -> str:
        """`help` with a capital letter and a full stop."""
        return f"{self.help[0].upper()}{self.help[1:]}."

    def parsed(self, text: str) -> float | int | None:
        """The value that a user wrote; "" means unset. Raises ValueError."""
        if not text and self.default is None:
            return None
        try:
            value = self.kind(text)
        except ValueError:
            raise self._wrong_kind(text) from None
        return self.checked(value)

    def checked(self, value: object) -> float | int | None:
        """Convert a value to this parameter's type. Raises ValueError with one sentence."""
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
        """For example "from 0 (off) to below 1"."""
        return range_in_words(self.low, self.high, self.above_low, self.below_high, self.off)

    def _wrong_kind(self, value: object) -> ValueError:
        expected = "a number" if self.kind is float else "a whole number"
        return ValueError(f"{self.name} is {value!r}; expected {expected}")


def range_in_words(
    low: float, high: float, above_low: bool, below_high: bool, off: float | None = None
) -> str:
    """The numbers between two bounds, of which an infinite one is not named. The rest is as in
    `Parameter`.
    """
    low, high = (int(bound) if float(bound).is_integer() else bound for bound in (low, high))
    lowest, highest = (f"{bound} (off)" if bound == off else bound for bound in (low, high))
    if math.isinf(low):
        words = f"{'below' if below_high else 'at most'} {highest}"
    elif math.isinf(high):
        words = f"above {lowest}" if above_low else f"{lowest} or more"
    elif above_low:
        words = f"above {lowest} and {'below' if below_high else 'at most'} {highest}"
    else:
        words = f"from {lowest} to {'below ' if below_high else ''}{highest}"
    return words if off in (None, low, high) else f"{words}; {off} is off"


def _described(default: float | int | None, **description: Any) -> Any:
    """A field of `Sampling`. description: as in `Parameter`."""
    return field(default=default, metadata={"default": default, **description})


@dataclass(frozen=True, slots=True)
class Sampling:
    """A value for each parameter. Raises ValueError for a value out of range."""

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
        meaning="drop tokens below this share of the top one",
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
    # Both lower the logits of tokens that the reply has, as OpenAI defines them.
    frequency_penalty: float = _described(
        0.0,
        low=-2,
        high=2,
        off=0,
        meaning="lowers tokens for each time they came",
        request_fields=("frequency_penalty",),
    )
    presence_penalty: float = _described(
        0.0,
        low=-2,
        high=2,
        off=0,
        meaning="lowers tokens that came, once",
        request_fields=("presence_penalty",),
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
    # Counted by the rule of chatapp.engine.stopping.
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
        """Build from values by name, as a file has them; the rest are defaults.

        Raises ValueError with one sentence for an unknown name or an invalid value.
        """
        return cls(**{name: parameter(name).checked(value) for name, value in values.items()})  # type: ignore[arg-type]

    def changed(self, name: str, text: str) -> "Sampling":
        """A copy with one parameter changed to the text that a user wrote; "" unsets the seed.

        Raises ValueError with one sentence.
        """
        return replace(self, **{name: parameter(name).parsed(text)})  # type: ignore[arg-type]


PARAMETERS: Mapping[str, Parameter] = {
    item.name: Parameter(name=item.name, kind=float if item.type is float else int, **item.metadata)
    for item in fields(Sampling)
}


def parameter(name: str) -> Parameter:
    """Look up a parameter. Raises ValueError that suggests the nearest name or lists all."""
    try:
        return PARAMETERS[name]
    except KeyError:
        raise ValueError(f"there is no parameter {name!r}{suggestion(name, PARAMETERS)}") from None


GREEDY: Mapping[str, float | int] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram": 0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""The penalties that a temperature of 0 for one answer switches off, unless they are named too."""

Values = Mapping[str, float | int | None]
"""Values of some of the parameters, by name."""


def known_values(values: Mapping[str, object]) -> Values:
    """Drop the values that no parameter can have: a newer version may have stored them."""
    known = {}
    for name, value in values.items():
        with suppress(ValueError):
            known[name] = parameter(name).checked(value)
    return known


Origin = Literal[
    "default", "model", "settings file", "environment", "prompt file", "this chat", "flag"
]
"""Who chose a value, weakest first: the program, the authors of the model, the user."""

_ORIGINS: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class Choices:
    """The chosen values. by_origin: those of each origin except the program."""

    by_origin: Mapping[Origin, Values] = field(default_factory=dict)

    def of(self, origin: Origin, values: Values) -> "Choices":
        """A copy in which these are all the values of an origin."""
        return Choices({**self.by_origin, origin: dict(values)})

    def changed_to(self, sampling: Sampling) -> "Choices":
        """A copy in which the changes in `sampling` are chosen for this chat."""
        now = self.sampling
        new = {
            name: getattr(sampling, name)
            for name in PARAMETERS
            if getattr(sampling, name) != getattr(now, name)
        }
        return self.of("this chat", {**self.by_origin.get("this chat", {}), **new})

    def for_all_chats(self) -> "Choices":
        """A copy that moves the choices of this chat to the settings file."""
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
        """Who chose the value in force, for each parameter."""
        origins: dict[str, Origin] = dict.fromkeys(PARAMETERS, _ORIGINS[0])
        for origin in _ORIGINS:
            origins |= dict.fromkeys(self.by_origin.get(origin, {}), origin)
        return origins

    def document(self, sampling: Sampling) -> dict[str, dict[str, object]]:
        """The values of a `sampling` built from these choices, and their origins, as JSON data."""
        return {
            name: {"value": getattr(sampling, name), "from": origin}
            for name, origin in self.origins.items()
        }


PRECISIONS = ("auto", "float32", "bfloat16", "int8", "int4")
DEVICES = ("auto", "cpu", "cuda", "mps")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "device": DEVICES,
    "chat_list": ("shown", "hidden"),
    "markdown": ("on", "off"),
}
"""The possible values of what is one of a few words, by name."""


def check_choice(name: str, value: str) -> None:
    """Raise ValueError, with one sentence, for a value that is none of `CHOICES`."""
    if value not in CHOICES.get(name, (value,)):
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(CHOICES[name])}")


def seeded(sampling: Sampling) -> Sampling:
    """`sampling` with a seed, drawn if it has none, so that it can be reported."""
    return sampling if sampling.seed is not None else replace(sampling, seed=secrets.randbits(31))
