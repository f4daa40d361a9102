"""The chat for other programs: in a browser."""
