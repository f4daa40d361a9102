"""Objectives: each a loss, what it counts, and the rows it needs."""
