"""How much memory a model takes, and whether this machine has it.

Keep: the formula stands here alone, and computing it reads no weights.
"""

from collections.abc import Callable

from chatapp.engine.description import ModelInfo
from chatapp.engine.errors import ModelError
from chatapp.engine.machine import machine_memory
from chatapp.engine.sizes import size_in_words

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 0.625}
# Of the token embedding, which int8 and int4 keep in float16 beside the output matrix, in int8.
_EMBEDDING_BYTES = {"int8": 2, "int4": 2.375}
_CACHE_BYTES = 4

# What the allocator holds beyond the weights, which are transposed one by one while they are read.
_OVERHEAD = 1.25

# The interpreter, torch, and what a pass computes.
_PROGRAM = 250_000_000

_CHAT_TOKENS = 4096
"""The longest chat that is reckoned with, where the context of a model is longer."""


def memory_needed(info: ModelInfo, precision: str) -> int:
    """Bytes that a chat with a model takes: its weights, keys and values, and the program.

    Within a fifth of what is measured of GPT-2s from 3 to 355 million parameters, without files
    that are mapped, whose pages the system takes back when it needs them, and without the keys and
    values of a model whose sizes are not known.
    precision: what its matrices are multiplied in, not "auto".
    """
    weights = info.parameters * _WEIGHT_BYTES[precision]
    embedding = (info.vocabulary or 0) * (info.hidden_size or 0)
    weights += embedding * _EMBEDDING_BYTES.get(precision, 0)
    cache = min(info.context, _CHAT_TOKENS) * (info.cached_numbers or 0) * _CACHE_BYTES
    return int(weights * _OVERHEAD) + cache + _PROGRAM


def check_memory(name: str, needed: int, say: Callable[[str], None]) -> None:
    """Tell of a model that takes more memory than is free.

    say: called with the sentence. Raises ModelError for more than the machine has.
    """
    memory = machine_memory()
    takes = f"{name} takes about {size_in_words(needed)} of memory"
    if needed > memory.total:
        raise ModelError(f"{takes}, and this machine has {size_in_words(memory.total)}")
    if needed > memory.available:
        say(f"{takes}, and {size_in_words(memory.available)} are free; it may be slow, or end")
