"""Tokens only: models, caches, sampling. Nothing here depends on roles or prompt files."""
