from random_models import bpe

__all__ = ["bpe"]
