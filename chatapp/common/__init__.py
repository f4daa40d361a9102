"""Code that every room may use: safe text, user files, settings, validation."""
