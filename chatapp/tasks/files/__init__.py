"""Prompt files, their documents and their layout."""
