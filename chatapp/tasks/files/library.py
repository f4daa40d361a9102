"""The prompt files by name: the user's own, then those of the program."""

from collections.abc import Callable
from pathlib import Path

from chatapp.common.paths import prompts_dir
from chatapp.common.userfiles import UserError, did_you_mean, is_path, quoted, reason
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


def find_task(name: str, say: Callable[[str], None] = lambda sentence: None) -> Path:
    """The prompt file of that name, or the one in the library.

    In the library `spam`, `spam.toml` and `prompts/spam.toml` are the same. `spam` is the library's
    whatever lies in the current folder, which `say` is told; a file that is there and has a suffix
    comes first. Any other name NAME is also NAME.toml or NAME.txt in the current folder. Raises
    UserError for a name that is in neither place.
    """
    path, prompts = Path(name), tasks()
    if name in prompts:
        if path.exists():
            say(f"{name} is a prompt of the library, which is used; ./{name} is what lies here")
        return prompts[name]
    is_elsewhere = "\0" in name or path.parent not in (Path(), Path("prompts"))
    if is_elsewhere or is_path(name) or (path.exists() and not path.is_dir()):
        return path
    if file := (prompts | {file.name: file for file in files()}).get(path.name):
        return file
    here = [file for file in sorted(Path().glob("*.t*")) if file.suffix in (".toml", ".txt")]
    if path.parent == Path() and not path.suffix:
        for file in here:
            if file.stem == name:
                return file
    hint = (
        did_you_mean(path.stem, [file.name for file in here])
        or did_you_mean(path.stem, prompts)
        or f"; it has {', '.join(prompts)}"
    )
    raise UserError(f"{name}: there is no such file, and no such prompt in the library{hint}")


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
