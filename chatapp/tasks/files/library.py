"""The prompt files by name: the user's own, then those of the program."""

from pathlib import Path

from chatapp.common.paths import prompts_dir
from chatapp.common.userfiles import did_you_mean, quoted, reason
from chatapp.rows.examples import PromptError

_TASKS = (".toml", ".txt")


def tasks() -> dict[str, Path]:
    """Prompt files and texts to complete; those in `papers` have the layouts of the literature."""
    return _named(_files("papers")) | _for_messages()


def personas() -> dict[str, Path]:
    """Instructions for a chat, from the folder `personas` below that of the prompts."""
    return {file.stem: file for file in _files("personas") if file.suffix == ".toml"}


def for_chats() -> dict[str, Path]:
    """The files that a chat can use: personas, and prompt files that take a message."""
    takes_input = {name: path for name, path in _for_messages().items() if path.suffix == ".toml"}
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
    except RuntimeError as error:  # an unknown user's home
        raise PromptError(f"{quoted(name)}: {error}") from None
    if path.suffix or path.parent != Path():
        return path.absolute()
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise PromptError(f"there is no prompt {quoted(name)}{hint}")


def name_of(name: str) -> str:
    """Normalize a name to the one used in every folder. Raises PromptError."""
    return name if name in for_chats() else str(find(name))


def _for_messages() -> dict[str, Path]:
    return _named(_files(""))


def _named(paths: list[Path]) -> dict[str, Path]:
    return {path.stem: path for path in paths if path.suffix in _TASKS}


def files() -> list[Path]:
    """All files in the folders of prompt files, including pools; the user's own last.

    Raises PromptError, like the functions above, when a folder cannot be read.
    """
    return [*_files("papers"), *_files("")]


def _files(below: str) -> list[Path]:
    package = Path(__file__).parents[2]
    # Inside the package when installed, next to it in a checkout.
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
