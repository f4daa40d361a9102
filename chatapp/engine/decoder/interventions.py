"""What is changed inside a model while it computes: parts switched off, directions added.

Names count from 0, as in papers: `3` is layer 3, `3.5` its head 5, `3.mlp` its MLP, `3.mlp.812`
neuron 812 of that MLP.

Invariant: no import of torch. Interventions are values: equal ones change a model in the same way,
so caches can be kept by them. Without any, the model's pass is unchanged.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chatapp.common.userfiles import UserError, quoted

if TYPE_CHECKING:
    from chatapp.engine.decoder.families.architecture import Architecture

_NUMBER = r"([0-9]{1,9})"
_PART = re.compile(rf"{_NUMBER}(?:\.(?:{_NUMBER}|(mlp)(?:\.{_NUMBER})?))?")

_FORMS = "write 3 for a layer, 3.5 for a head, 3.mlp for an MLP, 3.mlp.812 for a neuron"


class InterventionError(UserError, ValueError):
    """A name of no part of the model, or a model that cannot be changed."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A layer, or within it a head, the MLP, or a neuron of the MLP."""

    layer: int
    head: int | None = None
    is_mlp: bool = False
    neuron: int | None = None

    def __str__(self) -> str:
        if self.head is not None:
            return f"{self.layer}.{self.head}"
        if not self.is_mlp:
            return str(self.layer)
        return f"{self.layer}.mlp" + ("" if self.neuron is None else f".{self.neuron}")

    @property
    def points(self) -> tuple[str, ...]:
        """Where a pass computes it; see `decoder.parts`."""
        block = f"blocks.{self.layer}"
        if self.head is not None:
            return (f"{block}.attention.head.{self.head}",)
        if self.neuron is not None:
            return (f"{block}.mlp.neurons",)
        return (f"{block}.mlp",) if self.is_mlp else (f"{block}.attention", f"{block}.mlp")


def parse_part(name: str, architecture: "Architecture") -> Part:
    """The part of a model that a name stands for. Raises InterventionError in one sentence."""
    match = _PART.fullmatch(name.strip())
    if match is None:
        raise InterventionError(f"{quoted(name)} names no part of a model; {_FORMS}")
    layer, head, mlp, neuron = match.groups()
    part = Part(
        int(layer),
        None if head is None else int(head),
        mlp is not None,
        None if neuron is None else int(neuron),
    )
    sizes = (
        ("layer", "the model", part.layer, architecture.layers),
        ("head", "a layer of the model", part.head, architecture.heads),
        ("neuron", "an MLP of the model", part.neuron, architecture.inner),
    )
    for kind, owner, value, size in sizes:
        if value is not None and value >= size:
            raise InterventionError(
                f"{name}: there is no {kind} {value}; {owner} has {size}, numbered 0 to {size - 1}"
            )
    return part


def parse_parts(names: str, architecture: "Architecture") -> tuple[Part, ...]:
    """The parts that names stand for, which spaces or commas separate. Raises InterventionError."""
    parts = [parse_part(name, architecture) for name in re.split(r"[\s,]+", names) if name]
    if not parts:
        raise InterventionError(f"no part of the model is named; {_FORMS}")
    return tuple(dict.fromkeys(parts))


@dataclass(frozen=True, slots=True)
class Change:
    """What is put, or added, at one point of a pass.

    name: what a user knows it by, such as 3.5. point: see `decoder.parts`. vector: the values of
    the last dimension; None for zeros. is_added: whether it is added to what is there, instead of
    replacing it. component: the only one of the last dimension that changes, of which `vector`
    has one value; None for all. start, stop: the positions that change, from 0; None for no end.
    """

    name: str
    point: str
    vector: tuple[float, ...] | None = None
    is_added: bool = False
    component: int | None = None
    start: int = 0
    stop: int | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether it adds zeros only."""
        return self.is_added and not any(self.vector or ())


@dataclass(frozen=True, slots=True)
class Interventions:
    """What is changed in a model; made by `of`, so that changes of nothing are left out."""

    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, changes: Iterable[Change]) -> "Interventions":
        """These changes, without those that add nothing: with strength 0 the model is itself."""
        return cls(tuple(change for change in changes if not change.is_nothing))

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __add__(self, other: "Interventions") -> "Interventions":
        return Interventions((*self.changes, *other.changes))

    @property
    def words(self) -> str:
        """For a status line, such as `without 3.5 4.mlp, with calm 0.1`; "" for none."""
        groups = (
            ("without", (change.name for change in self.changes if not change.is_added)),
            ("with", (change.name for change in self.changes if change.is_added)),
        )
        phrases = ((word, " ".join(dict.fromkeys(names))) for word, names in groups)
        return ", ".join(f"{word} {names}" for word, names in phrases if names)

    @property
    def off(self) -> "Interventions":
        """Those that replace a part."""
        return Interventions(tuple(change for change in self.changes if not change.is_added))

    @property
    def added(self) -> "Interventions":
        """Those that add a direction."""
        return Interventions(tuple(change for change in self.changes if change.is_added))

    def added_after(self, position: int) -> "Interventions":
        """The same, with directions added from a position on: that of the reply's first token."""
        return Interventions(
            tuple(replace(c, start=position) if c.is_added else c for c in self.changes)
        )

    def shifted(self, tokens: int) -> "Interventions":
        """The same for a pass in which so many tokens stand before position 0."""
        if not tokens or not self.changes:
            return self
        return Interventions(
            tuple(
                replace(
                    change,
                    start=change.start + tokens if change.start else 0,
                    stop=None if change.stop is None else change.stop + tokens,
                )
                for change in self.changes
            )
        )


UNCHANGED = Interventions()
"""The model as it was loaded."""


def check_changeable(name: str, interventions: Interventions, *, is_changeable: bool) -> None:
    """Raises InterventionError for interventions in a model that takes none. name: the model's."""
    if interventions and not is_changeable:
        raise InterventionError(
            f"{name}: this kind of model cannot be changed inside; only models that chatapp "
            "computes with its own decoder can"
        )


def switched_off(parts: Iterable[Part]) -> Interventions:
    """Parts replaced by zeros: a head before the output projection, an MLP with its bias."""
    return Interventions(
        tuple(
            Change(
                str(part),
                point,
                vector=None if part.neuron is None else (0.0,),
                component=part.neuron,
            )
            for part in parts
            for point in part.points
        )
    )
