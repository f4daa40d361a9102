"""A view inside a model: traces of a text, and replies drawn token by token."""
