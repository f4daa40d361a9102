"""What other programs reach: the chat in a browser."""
