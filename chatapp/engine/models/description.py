"""A model's sizes, whether this machine has the memory for it, the facts for `models info`, and a
decoder in words: its parts, and a formula of its parameters.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE
from chatapp.common.userfiles import (
    open_regular,
    parse_json_object,
    read_json_object,
    size_in_words,
)
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.files.model_files import ModelFiles, architectures, gguf_parts
from chatapp.engine.files.safetensors import TensorHeader, is_buffer
from chatapp.engine.kernels.machine import machine_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a model.

    parameters: weights in the checkpoint, tied ones counted once. layers, heads, hidden_size,
    vocabulary, cached_numbers: None if the configuration has no single figure for the whole model;
    heads: 0 without attention. cached_numbers: keys and values in the cache per token.
    """

    parameters: int = 0
    layers: int | None
    heads: int | None
    hidden_size: int | None
    vocabulary: int | None
    context: int
    cached_numbers: int | None


def read_sizes(files: ModelFiles) -> ModelSizes:
    """The sizes of a model; of an adapter, of its base with the weights of both.

    Raises ModelError.
    """
    whole = files.whole
    try:
        sizes, is_tied = _of_decoder(whole.architecture)
    except NoDecoder:
        sizes, is_tied = _by_transformers(whole)
    doubled = "lm_head.weight" if is_tied else ""
    parameters = _count(header for header in whole.headers if header.name != doubled)
    if files.is_adapter:
        parameters += _count(files.headers)
    return replace(sizes, parameters=parameters)


def _count(headers: Iterable[TensorHeader]) -> int:
    return sum(math.prod(header.shape) for header in headers if not is_buffer(header.name))


def _of_decoder(a: Architecture) -> tuple[ModelSizes, bool]:
    """Sizes without parameters, and whether the output matrix is the token embedding."""
    sizes = ModelSizes(
        layers=a.layers,
        heads=a.heads,
        hidden_size=a.width,
        vocabulary=a.vocabulary,
        context=a.context,
        cached_numbers=2 * a.layers * a.key_value_heads * a.head_size,
    )
    return sizes, a.is_tied


def _by_transformers(files: ModelFiles) -> tuple[ModelSizes, bool]:
    """Like `_of_decoder`, by the names that transformers uses for all families.

    Raises ModelError.
    """
    from chatapp.engine.backends.transformers_loading import context_of, read_config

    config = read_config(files)
    text = config.get_text_config(decoder=True)
    # Of an encoder and a decoder, the decoder's. transformers drops the number of its layers from a
    # flat configuration of both.
    of_decoder = (_number(config, key) for key in ("num_decoder_layers", "decoder_layers"))
    layers = next(filter(None, of_decoder), None) or _number(text, "num_hidden_layers")
    if files.family in _WITHOUT_ATTENTION:
        heads: int | None = 0
        cached: int | None = 0
    elif getattr(text, "is_heterogeneous", False):  # its blocks differ
        blocks = list(text.per_layer_config)
        of_blocks = [_cached_numbers(block) for block in blocks]
        cached = None if None in of_blocks else sum(filter(None, of_blocks))
        heads_of_blocks = {_number(block, "num_attention_heads") for block in blocks}
        heads = heads_of_blocks.pop() if len(heads_of_blocks) == 1 else None
    else:
        heads, of_block = _number(text, "num_attention_heads"), _cached_numbers(text)
        cached = None if layers is None or of_block is None else layers * of_block
    sizes = ModelSizes(
        layers=layers,
        heads=heads,
        hidden_size=_number(text, "hidden_size"),
        vocabulary=_number(text, "vocab_size"),
        context=context_of(config),
        cached_numbers=cached,
    )
    return sizes, bool(getattr(text, "tie_word_embeddings", False))


_WITHOUT_ATTENTION = ("falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm")
"""The language models whose configurations have no heads because there are none."""


def _cached_numbers(block: Any) -> int | None:
    """Keys and values of a token in one block; None if unknown."""
    heads, width = _number(block, "num_attention_heads"), _number(block, "hidden_size")
    if heads is None or width is None:
        return None
    head_size = _number(block, "head_dim") or width // heads
    return 2 * (_number(block, "num_key_value_heads") or heads) * head_size


def _number(config: Any, key: str) -> int | None:
    """A size in a transformers configuration; None if there is no single figure."""
    try:
        value = getattr(config, key, None)
    except Exception:  # transformers raises many types for values that differ between blocks
        return None
    return value if isinstance(value, int) and value > 0 else None


WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 0.625}
# Of the token embedding, which int8 and int4 store in float16 in addition to the int8 output
# matrix.
_EMBEDDING_BYTES = {"int8": 2, "int4": 2.375}
_CACHE_BYTES = 4

# The allocator's overhead over the weights, which are transposed one by one while they are read.
_OVERHEAD = 1.25

# The interpreter, torch, and temporary results of a pass.
_PROGRAM = 250_000_000

_CHAT_TOKENS = 4096
"""The longest chat in the estimate, if the context of a model is longer."""


def memory_needed(sizes: ModelSizes, precision: str) -> int:
    """Bytes that a chat with a model needs: its weights, keys and values, and the program.

    Within a fifth of measurements of GPT-2s from 3 to 355 million parameters, without mapped files,
    whose pages the system can take back, and without the keys and values of a model of unknown
    sizes. precision: of its matrices, not "auto".
    """
    weights = sizes.parameters * WEIGHT_BYTES[precision]
    embedding = (sizes.vocabulary or 0) * (sizes.hidden_size or 0)
    weights += embedding * _EMBEDDING_BYTES.get(precision, 0)
    cache = min(sizes.context, _CHAT_TOKENS) * (sizes.cached_numbers or 0) * _CACHE_BYTES
    return int(weights * _OVERHEAD) + cache + _PROGRAM


def check_memory(name: str, needed: int, say: Callable[[str], None]) -> None:
    """Warn about a model that needs more memory than is free.

    say: gets the sentence. Raises ModelError for more than the machine has.
    """
    memory = machine_memory()
    takes = f"{name} takes about {size_in_words(needed)} of memory"
    if needed > memory.total:
        raise ModelError(f"{takes}, and this machine has {size_in_words(memory.total)}")
    if needed > memory.available:
        say(
            f"{takes}, and {size_in_words(memory.available)} are free. It may be slow, or "
            "be killed for lack of memory."
        )


OWN = "own"
"""The name of a tokenizer's chat template among templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo(ModelSizes):
    """The facts in a model's files.

    formula: of the parameters, if this program has a decoder, else empty; and
    parameters_by_formula, its value. That of GPT-2 leaves out the 4LH biases of the attention.
    parts: description of each part of the decoder, by its name; empty without a decoder. dtype: of
    the stored weights, "mixed" when they differ; of a GGUF file, the most frequent one. template:
    the name of the one it was trained with, OWN for its tokenizer's. licence, template: empty when
    unknown. bytes: of all files on disk.
    """

    folder: Path
    architecture: str
    formula: str
    parameters_by_formula: int | None
    parts: dict[str, str]
    dtype: str
    licence: str
    template: str
    bytes: int


def describe(files: ModelFiles) -> ModelInfo:
    """Describe a model from its config and weight headers.

    Of an adapter: its base, with the weights of both. Raises ModelError.
    """
    whole = files.whole
    name = (architectures(whole.config) or [whole.family or "unknown"])[0]
    if files.is_adapter:
        name = f"{files.config.get('peft_type', 'PEFT')} adapter of {name}"
    formula, by_formula, places = "", None, {}
    with suppress(NoDecoder):
        places = parts(files.architecture)
        if not files.is_adapter:
            formula, by_formula = _formula(files.architecture)
    return ModelInfo(
        **asdict(read_sizes(files)),
        folder=files.path,
        architecture=name,
        formula=formula,
        parameters_by_formula=by_formula,
        parts=places,
        dtype=_dtype(whole),
        licence=_licence(files) or _licence(whole),
        template=_template(files),
        bytes=bytes_on_disk(files.path),
    )


def _formula(a: Architecture) -> tuple[str, int]:
    if a.has_learned_positions and a.inner == 4 * a.width and a.is_tied:
        return GPT2_FORMULA, gpt2_parameters(a.layers, a.width, a.vocabulary, a.context)
    return parameter_formula(a)


GPT_FORMULA = "N = 12LH² + (9L + V + n)H"
"""The usual formula of GPT, whose norms follow attention and MLP, so that there is none
at the end."""

GPT2_FORMULA = f"{GPT_FORMULA} + 2H"
"""The usual formula of GPT-2 and GPT-3. 9LH are the biases of the MLP, which is four times as wide,
and the norms of the blocks; the 4LH biases of the attention are left out.
"""


def gpt_parameters(layers: int, hidden: int, vocabulary: int, context: int) -> int:
    """The value of `GPT_FORMULA`."""
    return 12 * layers * hidden**2 + (9 * layers + vocabulary + context) * hidden


def gpt2_parameters(layers: int, hidden: int, vocabulary: int, context: int) -> int:
    """The value of `GPT2_FORMULA`."""
    return gpt_parameters(layers, hidden, vocabulary, context) + 2 * hidden


def _dtype(files: ModelFiles) -> str:
    sizes: Counter[str] = Counter()
    for header in files.headers:
        if not is_buffer(header.name):
            sizes[header.dtype] += math.prod(header.shape)
    # Vectors are hardly ever stored in the type of the matrices.
    return max(sizes, key=sizes.__getitem__) if files.is_gguf or len(sizes) == 1 else "mixed"


def bytes_on_disk(path: Path) -> int:
    """The bytes of a model's folder, or of its GGUF file with all its parts. Raises OSError."""
    if path.is_file():
        return sum(part.stat().st_size for part in gguf_parts(path) if part.is_file())
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


_MOST_FRONT_MATTER = 2**16
"""Bytes of a model card that are read."""


def _licence(files: ModelFiles) -> str:
    """The licence in the front matter of the model card, or in a GGUF file."""
    if files.gguf is not None:
        return str(files.gguf.metadata.get("general.license", ""))
    try:
        with open_regular(files.path / "README.md") as file:
            card = file.read(_MOST_FRONT_MATTER).decode("utf-8", "replace")
    except OSError:
        return ""
    front = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    licence = front and re.search(r"^license:[ \t]*(\S.*)$", front[1], re.MULTILINE)
    return licence[1].strip().strip("\"'") if licence else ""


def _template(files: ModelFiles) -> str:
    """The name of the dialogue template stored with the model, OWN for its tokenizer's."""
    if files.gguf is not None:
        metadata = files.gguf.metadata
        if saved := metadata.get(GGUF_TEMPLATE):
            return str(parse_json_object(saved, str(files.path), ModelError)["name"])
        return OWN if metadata.get("tokenizer.chat_template") else ""
    if files.template is not None:
        return str(read_json_object(files.template, ModelError).get("name", ""))
    if (files.tokenizer.path / CHAT_TEMPLATE).is_file():
        return OWN
    return OWN if files.tokenizer.config.get("chat_template") else ""


def parts(architecture: Architecture) -> dict[str, str]:
    """The parts of the decoder, described, by name."""
    return {
        "norm": _norm(architecture),
        "positions": _positions(architecture),
        "attention": _attention(architecture),
        "MLP": _mlp(architecture),
        "biases": _biases(architecture),
        "output": _output(architecture),
    }


def parameter_formula(architecture: Architecture) -> tuple[str, int]:
    """A formula of the number of parameters, and its value.

    Its letters: blocks L, width H, vocabulary V, window n, inner width I, the components of all
    heads' queries Q and keys K where they differ from H, and D of one head.
    """
    a = architecture
    queries, keys = a.heads * a.head_size, a.key_value_heads * a.head_size
    norms = 4 if a.has_norms_after else 2
    vectors = 2 if a.norm == "LayerNorm" else 1
    in_blocks = Counter({"HI": 3 if a.is_gated else 2, "H": norms * vectors})
    query = "H" if queries == a.width else "Q"
    key = query if keys == queries else "K"
    for letter in (query, key):
        in_blocks["H²" if letter == "H" else f"H{letter}"] += 2
    if a.has_query_key_norm:
        in_blocks["D"] += 2
    if a.has_attention_bias:
        in_blocks.update([query, key, key])
    if a.has_projection_bias:
        in_blocks["H"] += 1
    if a.has_mlp_bias:
        in_blocks.update(["H", "I", *(["I"] if a.is_gated else [])])
    outside = Counter({"VH": 1 if a.is_tied else 2})
    if a.has_learned_positions:
        outside["nH"] += 1
    letters = {"H": a.width, "I": a.inner, "V": a.vocabulary, "n": a.context}
    letters |= {"Q": queries, "K": keys, "D": a.head_size}

    def value(terms: Counter[str]) -> int:
        total = 0
        for term, count in terms.items():
            product = count
            for letter in term.replace("H²", "HH"):
                product *= letters[letter]
            total += product
        return total

    end = Counter({"H": vectors})
    text = f"N = {_sum(outside)} + L({_sum(in_blocks)}) + {_sum(end)}"
    return text, value(outside) + a.layers * value(in_blocks) + value(end)


def _sum(terms: Counter[str]) -> str:
    # Products before single letters, and squares before these.
    ordered = sorted(terms.items(), key=lambda item: (len(item[0]) == 1, "²" not in item[0], item))
    return " + ".join(f"{count if count > 1 else ''}{term}" for term, count in ordered)


def _norm(a: Architecture) -> str:
    places = ["before attention and MLP"]
    if a.has_norms_after:
        places.append("after each of them")
    if a.has_query_key_norm:
        places.append("on queries and keys")
    return f"{a.norm} {', '.join(places)}"


def _positions(a: Architecture) -> str:
    if a.has_learned_positions:
        return "learned, added to the embeddings"
    kinds = []
    for rotary in dict.fromkeys(attention.rotary for attention in a.attentions):
        assert rotary is not None
        words = [f"base {rotary.base:,.0f}"]
        if rotary.size < a.head_size:
            words.append(f"{rotary.size} of {a.head_size} components")
        if rotary.scaling is not None:
            words.append(f"stretched as {type(rotary.scaling).__name__} does")
        kinds.append(", ".join(words))
    return f"rotary, {'; '.join(kinds)}"


def _attention(a: Architecture) -> str:
    keys = a.key_value_heads * a.head_size
    words = [f"{a.heads} heads of D = {a.head_size}, Q = {a.heads * a.head_size}"]
    if a.key_value_heads < a.heads:
        shared = "all" if a.key_value_heads == 1 else f"each {a.heads // a.key_value_heads}"
        words.append(f"{shared} share keys and values, K = {keys}")
    windows = Counter(part.window for part in a.attentions if part.window is not None)
    for window, layers in windows.items():
        words.append(f"{layers} of {a.layers} blocks see the last {window:,} tokens")
    return ", ".join(words)


def _mlp(a: Architecture) -> str:
    gate = "gated " if a.is_gated else ""
    side = ", beside attention" if a.is_parallel else ""
    return f"{gate}{a.activation}, I = {a.inner}{side}"


def _biases(a: Architecture) -> str:
    places = {
        "queries, keys and values": a.has_attention_bias,
        "attention's output": a.has_projection_bias,
        "MLP": a.has_mlp_bias,
    }
    present = [place for place, has in places.items() if has]
    return "; ".join(present) if present else "none"


def _output(a: Architecture) -> str:
    matrix = "the token embedding" if a.is_tied else "a matrix of its own"
    return matrix if a.logit_cap is None else f"{matrix}, soft-capped at {a.logit_cap:g}"
