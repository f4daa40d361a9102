"""The prompt files there are by name: the user's own, then those that come with the program.

Keep: a name stands for the same file everywhere, for `run`, `eval` and the chat; a file of the
user's own takes the place of one that comes with the program.
"""

from pathlib import Path

from chatapp.common.paths import prompts_dir
from chatapp.common.userfiles import did_you_mean, quoted, reason
from chatapp.prompting.examples import PromptError

_TASKS = (".toml", ".txt")


def tasks() -> dict[str, Path]:
    """Prompt files and texts to complete."""
    return {file.stem: file for file in files() if file.suffix in _TASKS}


def personas() -> dict[str, Path]:
    """Instructions for a chat, from the folder `personas` below that of the prompts."""
    return {file.stem: file for file in _files("personas") if file.suffix == ".toml"}


def for_chats() -> dict[str, Path]:
    """What a chat can be held with: personas, and prompt files that take an input."""
    takes_input = {name: path for name, path in tasks().items() if path.suffix == ".toml"}
    return personas() | takes_input


def find(name: str) -> Path:
    """The file for a chat with this name, or at this path.

    Raises PromptError when there can be none.
    """
    known = for_chats()
    if name in known:
        return known[name]
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # the home of a user there is not
        raise PromptError(f"{quoted(name)}: {error}") from None
    if path.suffix or path.parent != Path():
        return path.absolute()
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise PromptError(f"there is no prompt {quoted(name)}{hint}")


def name_of(name: str) -> str:
    """The name that stands for the same file in every folder. Raises PromptError."""
    return name if name in for_chats() else str(find(name))


def files() -> list[Path]:
    """All files where the prompt files are, pools among them; the user's own last.

    Raises PromptError, as the functions above do, when a folder cannot be read.
    """
    return _files("")


def _files(below: str) -> list[Path]:
    package = Path(__file__).parents[2]
    # Within the package when installed, beside it when run from a copy of the sources.
    places = (package / "prompts", package.parent / "prompts")
    shipped = next((place for place in places if place.is_dir()), None)
    paths: list[Path] = []
    for place in (shipped, prompts_dir()):
        if place is None:
            continue
        folder = place / below
        try:
            if folder.is_dir():
                paths += sorted(path for path in folder.iterdir() if path.is_file())
        except OSError as error:
            raise PromptError(f"{folder}: cannot be read: {reason(error)}") from None
    return paths
