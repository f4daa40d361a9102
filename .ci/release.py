"""A release by one command: `python .ci/release.py 0.2.0`, on a clean main.

It cuts the changelog (what is unreleased becomes the version, with today's date), sets the version
in chatapp/__init__.py, commits and tags. Pushing the tag publishes: .github/workflows/release.yml.
`version` prints the version; `notes` what the changelog says first of it; `wheels FILE…` checks
that wheels are of that version, for any Python, and hold their kernels.
"""

import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from zipfile import ZipFile

PLACE = "chatapp/__init__.py"
VERSION = re.compile(r"\d+\.\d+\.\d+")
_SET = re.compile(r'^__version__ = "(.*)"$', re.M)
_NEW = "## Unreleased\n"
_SCREEN = 24
"""Lines of what matters: those of a terminal."""


class Refused(Exception):
    """Why there is no release, in a sentence."""


def version_of(root: Path) -> str:
    """The version of a checkout."""
    (version,) = _SET.findall((root / PLACE).read_text(encoding="utf-8"))
    return str(version)


def section(changelog: str, heading: str) -> str:
    """What stands below a heading of the second level, which begins with these words."""
    found = re.search(
        rf"^## {re.escape(heading)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    if found is None:
        raise Refused(f"CHANGELOG.md: there is no heading '## {heading}'")
    return found[1].strip()


def notes(changelog: str, heading: str) -> str:
    """What matters of a version: the lines before the first heading of its section."""
    lines = re.split(r"^### ", section(changelog, heading), maxsplit=1, flags=re.M)[0].strip()
    if not 0 < len(lines.splitlines()) <= _SCREEN:
        raise Refused(
            f"CHANGELOG.md: expected 1 to {_SCREEN} lines of what matters below '## {heading}', "
            f"before its first ###; there are {len(lines.splitlines())}"
        )
    return lines


def cut(changelog: str, version: str, day: date) -> str:
    """The changelog with what is unreleased as this version, and nothing unreleased."""
    notes(changelog, "Unreleased")
    return changelog.replace(_NEW, f"{_NEW}\n## {version}, {day.isoformat()}\n", 1)


def git(root: Path, *words: str) -> str:
    """What git prints. Raises Refused with its own words."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"git {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def release(root: Path, version: str, day: date) -> None:
    """Cut the changelog, set the version, commit and tag; nothing is changed when it is refused."""
    if not VERSION.fullmatch(version):
        raise Refused(f"{version!r}: expected a version such as 0.2.0")
    place, changelog, before = root / PLACE, root / "CHANGELOG.md", version_of(root)
    if [*map(int, version.split("."))] <= [*map(int, before.split("."))]:
        raise Refused(f"{version} is not above {before}, the version before")
    if git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed")
    if (branch := git(root, "branch", "--show-current")) != "main":
        raise Refused(f"the branch is {branch}; releases are made on main")
    if git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already")
    new = cut(changelog.read_text(encoding="utf-8"), version, day)
    changelog.write_text(new, encoding="utf-8", newline="\n")
    code = _SET.sub(rf'__version__ = "{version}"', place.read_text(encoding="utf-8"))
    place.write_text(code, encoding="utf-8", newline="\n")
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    git(
        root,
        "tag",
        "--annotate",
        f"v{version}",
        "--cleanup=verbatim",
        "--message",
        notes(new, version),
    )


def check_wheel(path: Path, version: str) -> None:
    """Raise Refused for a wheel of another version, of one Python alone, or without kernels."""
    name, of, python, abi, *_ = path.stem.split("-")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    if (name, of) != (project["project"]["name"], version):
        raise Refused(f"{path.name}: expected {project['project']['name']} {version}")
    if (python, abi) != ("py3", "none"):
        raise Refused(f"{path.name}: expected a wheel for any Python, py3-none")
    kernels = [
        each for each in ZipFile(path).namelist() if re.search(r"kernels/kernels-\w+-", each)
    ]
    if len(kernels) != (1 if re.search("arm64|aarch64", path.stem) else 3):
        raise Refused(f"{path.name}: holds {len(kernels)} compiled kernels")


def main(words: list[str]) -> None:
    """What the arguments ask for."""
    root = Path.cwd()
    match words:
        case ["version"]:
            print(version_of(root))
        case ["notes"]:
            print(notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version_of(root)))
        case ["wheels", *files] if files:
            for file in files:
                check_wheel(Path(file), version_of(root))
        case [version]:
            release(root, version, date.today())
            print(f"v{version} is tagged; `git push --follow-tags origin main` publishes it")
        case _:
            raise Refused("expected VERSION, version, notes or wheels FILE…")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as refusal:
        sys.exit(f"release: {refusal}")
