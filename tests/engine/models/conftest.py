from random_models import bpe, gpt2, local, make_gpt2, one_thread

__all__ = ["bpe", "gpt2", "local", "make_gpt2", "one_thread"]
