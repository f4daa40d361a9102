"""What the program says of errors."""


def in_words(error: Exception) -> str:
    """An error as a sentence for the user."""
    return str(error) or type(error).__name__
