"""The text of a PDF, page by page, by pypdf in a process of its own.

A PDF is a program of sorts: one can be made that takes all memory or never ends. Run as a script,
this module reads one from standard input and writes {"pages": […]} or {"error": …}.

Keep: whatever a PDF does, it does it to a process with bounded memory and time; the script
imports nothing of this program.
"""

import io
import json
import subprocess
import sys

_SECONDS = 60
_MOST_MEMORY = 2 * 2**30
_MOST_CHARACTERS = 16 * 2**20
_BROKEN = "PDFs that cannot be read"


class PdfError(Exception):
    """Why a PDF gives no text, in a few words."""


def pdf_pages(data: bytes) -> list[str]:
    """The text of each page. Raises PdfError."""
    try:
        # -P: the folder of this script does not come before the standard library.
        done = subprocess.run(
            [sys.executable, "-P", __file__], input=data, capture_output=True, timeout=_SECONDS
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise PdfError(f"PDFs that take longer than {_SECONDS} seconds") from None
    except (OSError, ValueError):
        raise PdfError(_BROKEN) from None
    if "error" in found:
        raise PdfError(found["error"])
    pages: list[str] = found["pages"]
    return pages


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))


def _read(data: bytes) -> dict[str, object]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "PDFs with a password"}
    pages: list[str] = []
    room = _MOST_CHARACTERS
    for page in reader.pages:
        pages.append(page.extract_text()[:room])
        room -= len(pages[-1])
    return {"pages": pages}


if __name__ == "__main__":
    import logging

    logging.disable()
    _bound_memory()
    try:
        result = _read(sys.stdin.buffer.read())
    except BaseException:  # whatever a library makes of bytes made to break it
        result = {"error": _BROKEN}
    sys.stdout.write(json.dumps(result))
