"""A prompt file, a pool and a model: demonstrations chosen, labels scored, texts answered."""
