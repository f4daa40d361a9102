"""Passages of a folder of texts for a prompt: find, read, cut, index and search files."""
