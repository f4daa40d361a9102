"""The models that the engine can run: the local decoder, transformers, servers."""
