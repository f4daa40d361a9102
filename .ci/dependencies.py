"""The dependencies of pyproject.toml: `lowest` prints pip constraints to the lowest version that is
allowed of each, `versions` what is installed of each, `docs` what the site alone needs."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([\w.-]+)>=([\d.]+),<([\d.]+)")


def requirements() -> list[tuple[str, str, str]]:
    """Name, lowest version and the first that is too high, of each dependency, extras included.

    Raises ValueError for one that has not both bounds.
    """
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    found = []
    for text in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        if text.startswith(f"{project['name']}["):  # an extra within another
            continue
        match = _REQUIREMENT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r}: expected NAME>=LOWEST,<TOO_HIGH")
        found.append((match[1], match[2], match[3]))
    return found


def installed(name: str) -> str:
    """The version that is installed; "-" if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lowest"]:
            print(*(f"{name}=={low}" for name, low, _ in requirements()), sep="\n")
        case ["versions"]:
            print(f"python {sys.version.split()[0]}", end=", ")
            print(*(f"{name} {installed(name)}" for name, _, _ in requirements()), sep=", ")
        case ["docs"]:
            project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
            print(*project["optional-dependencies"]["docs"], sep="\n")
        case _:
            sys.exit("expected lowest, versions or docs")
