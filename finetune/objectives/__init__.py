"""Objectives: each has a loss, its counts, and its rows."""
