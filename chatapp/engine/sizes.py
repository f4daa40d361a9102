"""Numbers of bytes in words.

Keep: powers of ten, as file managers, hubs and makers of memory count.
"""

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_in_words(count: int) -> str:
    """A number of bytes for a sentence: 40.0 kB, 98.4 MB, 1.5 GB."""
    unit, name = next((it for it in _UNITS if count >= it[0]), _UNITS[-1])
    return f"{count / unit:,.1f} {name}"
