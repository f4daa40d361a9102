"""A model's files on disk to named tensors, and cached rounded weights."""
