"""Weights on disk to named tensors: a model's own files, and the int8 weights kept of them."""
