"""Names in transformers that changed between releases, checked on transformers 5.23 and 5.24.

Invariant: only this module names the cache of a transformers model, and a missing cache is an
error: a model that reads its whole prompt again for each token gives the same text, but many times
slower, and nobody would notice.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any

from chatapp.engine.errors import ModelError

OTHER_CACHES = frozenset({"falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "xlm", "xlstm"})
"""Types of models whose cache has no keys and values: states that cannot return to an earlier
token, or those that XLM and RecurrentGemma keep inside. transformers 5.24 gives all caches one
name.
"""


@cache
def cache_name() -> str:
    """The name of the cache in transformers: an argument of a model, and a field of its output.

    Raises ModelError when the installed transformers uses another name.
    """
    from transformers.modeling_outputs import CausalLMOutputWithPast

    names = {field.name for field in fields(CausalLMOutputWithPast)}
    for name in ("cache", "past_key_values"):  # since 5.24, and before
        if name in names:
            return name
    raise ModelError(
        f"transformers {_version()}: the outputs of models have neither cache nor "
        "past_key_values; expected a version that this program was tested with"
    )


def accepts(network: Any, argument: str) -> bool:
    """Whether a model takes an argument by name.

    Checks the base of a model wrapped by peft, because the wrapper forwards anything and names
    little.
    """
    is_wrapped = hasattr(network, "peft_config") and hasattr(network, "get_base_model")
    inner = network.get_base_model() if is_wrapped else network
    return argument in inspect.signature(inner.forward).parameters


def keeps_cache(network: Any) -> bool:
    """Whether a model can keep keys and values between passes. Raises ModelError."""
    return network.config.model_type not in OTHER_CACHES and accepts(network, cache_name())


def cache_arguments(cache: Any) -> dict[str, Any]:
    """The arguments with which a model continues a cache and returns it.

    cache: from `cache_of`; None to begin one. Raises ModelError.
    """
    return {cache_name(): cache, "use_cache": True}


def cache_of(output: Any, network: Any) -> Any:
    """The cache in the output of a model called with `cache_arguments`.

    Raises ModelError when there is none.
    """
    cache = output.get(cache_name())
    if cache is None:
        raise ModelError(
            f"{type(network).__name__}: transformers {_version()} returned no "
            f"{cache_name()}, so every reply would process its whole prompt again"
        )
    return cache


def cut_back(cache: Any, surplus: int) -> bool:
    """Drop the last tokens of a cache; return whether that worked. After False it is useless.

    surplus: how many tokens, at least 1.
    """
    try:
        cache.crop(-surplus)
    except RuntimeError:  # recurrent states and filled sliding windows cannot be cut back
        return False
    return True


@contextmanager
def shown_attention(network: Any) -> Iterator[None]:
    """Make a model use an attention implementation that returns weights.

    The caller must hold the model's lock, because this changes everything that the model computes.
    """
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def _version() -> str:
    from transformers import __version__

    return str(__version__)
