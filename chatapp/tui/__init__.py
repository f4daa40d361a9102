"""Textual screens and widgets. No prompt building, no SQL, no torch."""
