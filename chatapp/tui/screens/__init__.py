"""Modal screens, one a file."""
