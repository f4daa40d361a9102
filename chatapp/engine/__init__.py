"""Tokens only: models, caches, sampling. Nothing here knows a role or a prompt file."""
