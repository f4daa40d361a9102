"""A text written in the user's own editor.

Keep: the text that was there is only replaced by what the editor has saved.
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from textual.app import SuspendNotSupported

from chatapp.userfiles import UserError


class EditorError(UserError):
    """Why there is no edited text, in one sentence."""


def edited(text: str, suspend: Callable[[], AbstractContextManager[None]]) -> str:
    """`text` after the user has changed it in $VISUAL or $EDITOR.

    suspend: gives the terminal away for as long as its context lasts.
    Raises EditorError when no editor is set, it cannot be run, or says that it failed.
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
