"""Modal screens, one per file."""
