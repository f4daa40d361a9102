"""Errors in words.

Keep: the words are never empty; they are the only reason the user gets.
"""


def in_words(error: Exception) -> str:
    """An error as a sentence for the user."""
    return str(error) or type(error).__name__
