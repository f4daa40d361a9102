"""What transformers calls things that its releases have renamed, checked on transformers 5.23
and 5.24.

Keep: nothing else in this program names the cache of a model of transformers, and a cache that was
asked for and is not there is an error: a model that reads its whole prompt again for every reply
gives the same text many times slower, which nobody would notice.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any

from chatapp.engine.errors import ModelError

OTHER_CACHES = frozenset({"falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "xlm", "xlstm"})
"""Types of models whose cache holds no keys and values: states that cannot go back to an earlier
token, or what XLM and RecurrentGemma keep for themselves and do not give back. transformers 5.24
calls it as it calls all others."""


@cache
def cache_name() -> str:
    """What transformers calls a cache of keys and values: the argument of a model, and the field
    of its output.

    Raises ModelError when the installed transformers calls it something else.
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
    """Whether a model takes an argument by name. Of a model that peft has wrapped, its base is
    asked: the wrapper hands on whatever it is given, and names little of it."""
    is_wrapped = hasattr(network, "peft_config") and hasattr(network, "get_base_model")
    inner = network.get_base_model() if is_wrapped else network
    return argument in inspect.signature(inner.forward).parameters


def keeps_cache(network: Any) -> bool:
    """Whether a model can keep keys and values from one pass to the next. Raises ModelError."""
    return network.config.model_type not in OTHER_CACHES and accepts(network, cache_name())


def cache_arguments(kept: Any) -> dict[str, Any]:
    """The arguments by which a model continues a cache, and gives it back longer.

    kept: of `cache_of`; None to begin one. Raises ModelError.
    """
    return {cache_name(): kept, "use_cache": True}


def cache_of(output: Any, network: Any) -> Any:
    """The cache in the output of a model that was called with `cache_arguments`.

    Raises ModelError when there is none.
    """
    kept = output.get(cache_name())
    if kept is None:
        raise ModelError(
            f"{type(network).__name__}: transformers {_version()} returned no "
            f"{cache_name()}, so every reply would process its whole prompt again"
        )
    return kept


def cut_back(kept: Any, surplus: int) -> bool:
    """Drop the last tokens of a cache; whether it can. After False it is of no use.

    surplus: how many tokens, at least 1.
    """
    try:
        kept.crop(-surplus)
    except RuntimeError:  # recurrent states and filled sliding windows cannot go back
        return False
    return True


@contextmanager
def shown_attention(network: Any) -> Iterator[None]:
    """Let a model compute the attention that shows its weights.

    For whoever holds the model's lock: it is switched for all that the model computes.
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
