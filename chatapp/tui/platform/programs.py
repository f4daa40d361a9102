"""Other programs: the system's clipboard, where the terminal has none, and the user's editor."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from textual.app import SuspendNotSupported

from chatapp.common.userfiles import UserError

_PATIENCE = 3.0
"""Seconds that such a program may take."""


_FENCED = re.compile(r"^ {0,3}(```+|~~~+)[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.M | re.S)


def code_blocks(text: str) -> list[str]:
    """The fenced code blocks in a Markdown text, without their fences."""
    return [match[2] for match in _FENCED.finditer(text)]


class CodeBlocks:
    """The code blocks of a message in turn, one per call."""

    def __init__(self) -> None:
        self._message_id = self._taken = 0

    def next_of(self, message_id: int, text: str) -> tuple[str, str]:
        """The next code block of a message that has some, and its number in words."""
        blocks = code_blocks(text)
        number = self._taken % len(blocks) if message_id == self._message_id else 0
        self._message_id, self._taken = message_id, number + 1
        which = f" {number + 1} of {len(blocks)}" if len(blocks) > 1 else ""
        return blocks[number], f"Code block{which}"


def programs() -> list[list[str]]:
    """The commands that fill the clipboard of this session from their standard input."""
    known: list[tuple[bool, list[str]]] = [
        (sys.platform == "darwin", ["pbcopy"]),
        ("WAYLAND_DISPLAY" in os.environ, ["wl-copy"]),
        ("DISPLAY" in os.environ, ["xclip", "-selection", "clipboard"]),
        ("DISPLAY" in os.environ, ["xsel", "--clipboard", "--input"]),
        (sys.platform == "win32" or "WSL_DISTRO_NAME" in os.environ, ["clip.exe"]),
    ]
    return [command for is_present, command in known if is_present and shutil.which(command[0])]


def fill(text: str, commands: Sequence[Sequence[str]]) -> bool:
    """Copy a text with the first command that works; return whether one did.

    Blocks while the commands run. Some continue in the background, to serve the text.
    """
    for command in commands:
        encoding = "utf-16-le" if command[0] == "clip.exe" else "utf-8"
        try:
            completed = subprocess.run(
                command,
                input=text.encode(encoding, "replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if completed.returncode == 0:
            return True
    return False


class EditorError(UserError):
    """Why there is no edited text, in one sentence."""


def edited(text: str, suspend: Callable[[], AbstractContextManager[None]]) -> str:
    """Let the user change `text` in $VISUAL or $EDITOR; return the result.

    suspend: releases the terminal while its context lasts. Raises EditorError when no editor is
    set, it cannot be run, or it reports a failure.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not command:
        raise EditorError("no editor is set; set VISUAL or EDITOR, such as EDITOR=nano")
    with tempfile.TemporaryDirectory(prefix="chatapp-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            with suspend():
                status = subprocess.run([*shlex.split(command), str(path)], check=False).returncode
        except SuspendNotSupported:
            raise EditorError("an editor cannot be opened here") from None
        except (OSError, ValueError) as error:
            raise EditorError(f"the editor {command!r} cannot be run: {error}") from None
        if status:
            raise EditorError(f"the editor {command!r} ended with status {status}")
        try:
            written = path.read_text(encoding="utf-8", errors="surrogatepass")
        except (OSError, UnicodeDecodeError) as error:
            raise EditorError(f"what the editor saved cannot be read: {error}") from None
    return written.removesuffix("\n")
