"""Choosing demonstrations: a pool and a query give indices into the pool, nearest first."""
