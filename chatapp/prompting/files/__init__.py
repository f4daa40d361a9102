"""Prompt files, the documents beside them, and their layout."""
