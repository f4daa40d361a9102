from random_gpt2 import gpt2, gpt2_folder, log_probs, one_thread

__all__ = ["gpt2", "gpt2_folder", "log_probs", "one_thread"]
