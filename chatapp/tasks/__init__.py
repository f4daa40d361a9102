"""A prompt file, a pool and a model: chooses demonstrations, scores labels, generates answers."""
