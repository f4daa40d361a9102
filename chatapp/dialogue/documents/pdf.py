"""The text of a PDF, page by page, by pypdf.

A hostile PDF can take all memory or never end, so it is read only in a limited process; see
reader.py.
"""

import io

_MOST_CHARACTERS = 16 * 2**20


class PdfError(Exception):
    """Why a PDF gives no text, in a few words."""


def pdf_pages(data: bytes) -> list[str]:
    """The text of each page. Raises PdfError, and MemoryError."""
    from pypdf import PdfReader

    pages: list[str] = []
    room = _MOST_CHARACTERS
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise PdfError("PDFs with a password")
        for page in reader.pages:
            pages.append(page.extract_text()[:room])
            room -= len(pages[-1])
    except (PdfError, MemoryError):
        raise
    except Exception:  # whatever the library raises on malicious bytes
        raise PdfError("PDFs that cannot be read") from None
    return pages
