"""Weights on disk to named tensors: a model's own files, and the rounded weights kept of them."""
