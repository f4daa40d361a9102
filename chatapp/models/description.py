"""What a model folder says of itself: sizes, types of weights, licence, template.

Keep: figures come from the configuration and the headers of the weights; no weight is read.
torch and transformers are loaded only for a family that this program has no decoder of.

How much memory a model takes, and whether this machine has it.

Keep: the formula stands here alone, and computing it reads no weights.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE, TOKENIZER_CONFIG
from chatapp.common.shading import size_in_words
from chatapp.common.userfiles import parse_json_object, read_json_object
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.summary import parameter_formula, parts
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.files.model_files import ModelFiles, architectures
from chatapp.engine.files.safetensors import TensorHeader, is_buffer, tensor_headers
from chatapp.engine.kernels.device import machine_memory

OWN = "own"
"""What the chat template of a model's tokenizer is called where templates have names."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model folder says of itself.

    parameters: weights in the checkpoint, tied ones counted once.
    formula: of the parameters, for what this program has a decoder of, else empty; and
        parameters_by_formula, what it gives. That of GPT-2 leaves out the 4LH weights of the
        blocks' norms.
    parts: what stands at each place of the decoder, by its name; empty where formula is.
    layers, heads, hidden_size, vocabulary, cached_numbers: None where the configuration does not
        give one figure for the whole model; heads: 0 where there is no attention.
    dtype: of the stored weights, "mixed" when they differ; of a GGUF file, what most of them are.
    cached_numbers: keys and values that the cache keeps of each token.
    template: the name of the one it was trained in, OWN for its tokenizer's.
    licence, template: empty when the folder names none.
    bytes: of all files on disk.
    """

    folder: Path
    architecture: str
    parameters: int
    formula: str
    parameters_by_formula: int | None
    parts: dict[str, str]
    layers: int | None
    heads: int | None
    hidden_size: int | None
    vocabulary: int | None
    context: int
    cached_numbers: int | None
    dtype: str
    licence: str
    template: str
    bytes: int


def describe(files: ModelFiles) -> ModelInfo:
    """What a model is, from its config and weight headers.

    Of an adapter: its base, with the weights of both. Raises ModelError.
    """
    if files.base is None:
        return _describe_whole(files)
    base = _describe_whole(files.base)
    return replace(
        base,
        folder=files.path,
        architecture=f"{files.config.get('peft_type', 'PEFT')} adapter of {base.architecture}",
        parameters=base.parameters + _size(tensor_headers(files.path)),
        formula="",
        parameters_by_formula=None,
        licence=_licence(files) or base.licence,
        template=_template(files),
        bytes=bytes_on_disk(files.path),
    )


def _describe_whole(files: ModelFiles) -> ModelInfo:
    headers = [header for header in _headers(files) if not is_buffer(header.name)]
    architecture = _architecture(files)
    sizes = _sizes_of(architecture) if architecture else _sizes_by_transformers(files)
    if sizes.is_tied:
        headers = [header for header in headers if header.name != "lm_head.weight"]
    formula, by_formula = _formula(files, architecture) if architecture else ("", None)
    return ModelInfo(
        folder=files.path,
        architecture=(architectures(files.config) or [files.family or "unknown"])[0],
        parameters=_size(headers),
        formula=formula,
        parameters_by_formula=by_formula,
        parts=parts(architecture) if architecture else {},
        layers=sizes.layers,
        heads=sizes.heads,
        hidden_size=sizes.width,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        cached_numbers=sizes.cached,
        dtype=_dtype(headers, files),
        licence=_licence(files),
        template=_template(files),
        bytes=bytes_on_disk(files.path),
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """See `ModelInfo`. cached: numbers that keys and values of a token are."""

    layers: int | None
    heads: int | None
    width: int | None
    vocabulary: int | None
    context: int
    cached: int | None
    is_tied: bool


def _architecture(files: ModelFiles) -> Architecture | None:
    """What this program's decoder would compute, if it does."""
    try:
        return files.architecture
    except NoDecoder:
        return None


def _sizes_of(a: Architecture) -> _Sizes:
    cached = 2 * a.layers * a.key_value_heads * a.head_size
    return _Sizes(a.layers, a.heads, a.width, a.vocabulary, a.context, cached, a.is_tied)


def _sizes_by_transformers(files: ModelFiles) -> _Sizes:
    """Sizes under the names that transformers has for all families. Raises ModelError."""
    from chatapp.engine.backends.transformers_loading import context_of, read_config

    config = read_config(files)
    text = config.get_text_config(decoder=True)
    # Of an encoder and a decoder, the decoder's, which is what writes. What transformers makes of
    # a flat configuration of both has lost the number of its layers.
    of_decoder = (_number(config, key) for key in ("num_decoder_layers", "decoder_layers"))
    layers = next(filter(None, of_decoder), None) or _number(text, "num_hidden_layers")
    if files.family in _WITHOUT_ATTENTION:
        heads: int | None = 0
        cached: int | None = 0
    elif getattr(text, "is_heterogeneous", False):  # its blocks are unlike
        blocks = list(text.per_layer_config)
        of_blocks = [_cached_numbers(block) for block in blocks]
        cached = None if None in of_blocks else sum(filter(None, of_blocks))
        heads_of_blocks = {_number(block, "num_attention_heads") for block in blocks}
        heads = heads_of_blocks.pop() if len(heads_of_blocks) == 1 else None
    else:
        heads, of_block = _number(text, "num_attention_heads"), _cached_numbers(text)
        cached = None if layers is None or of_block is None else layers * of_block
    return _Sizes(
        layers,
        heads,
        _number(text, "hidden_size"),
        _number(text, "vocab_size"),
        context_of(config),
        cached,
        bool(getattr(text, "tie_word_embeddings", False)),
    )


_WITHOUT_ATTENTION = ("falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm")
"""The language models whose configurations have no heads because there are none."""


def _cached_numbers(block: Any) -> int | None:
    """Keys and values of a token in one block; None where they are not known."""
    heads, width = _number(block, "num_attention_heads"), _number(block, "hidden_size")
    if heads is None or width is None:
        return None
    head_size = _number(block, "head_dim") or width // heads
    return 2 * (_number(block, "num_key_value_heads") or heads) * head_size


def _number(config: Any, key: str) -> int | None:
    """A size in a configuration of transformers; None where there is no one figure for it."""
    try:
        value = getattr(config, key, None)
    except Exception:  # transformers lets many kinds through, of what differs from block to block
        return None
    return value if isinstance(value, int) and value > 0 else None


def _formula(files: ModelFiles, architecture: Architecture) -> tuple[str, int]:
    a = architecture
    if a.has_learned_positions and a.inner == 4 * a.width and a.is_tied:
        by_formula = gpt2_parameters(a.layers, a.width, a.vocabulary, a.context)
        return GPT2_FORMULA, by_formula
    return parameter_formula(a)


GPT2_FORMULA = "N = 12LH² + (9L + V + n)H + 2H"
"""The usual one of GPT-2, where the perceptron is four times as wide. See `ModelInfo`."""


def gpt2_parameters(layers: int, hidden: int, vocabulary: int, context: int) -> int:
    """What `GPT2_FORMULA` gives."""
    return 12 * layers * hidden**2 + (9 * layers + vocabulary + context) * hidden + 2 * hidden


def _headers(files: ModelFiles) -> Sequence[TensorHeader]:
    """Of a whole model's tensors."""
    if files.is_gguf:
        from chatapp.engine.files.stored_tensors import stored_tensors

        return [header for header, _ in stored_tensors(files, ())]
    return tensor_headers(files.path)


def _dtype(headers: Iterable[TensorHeader], files: ModelFiles) -> str:
    sizes: Counter[str] = Counter()
    for header in headers:
        sizes[header.dtype] += math.prod(header.shape)
    # Vectors are hardly ever stored as the matrices are.
    return max(sizes, key=sizes.__getitem__) if files.is_gguf or len(sizes) == 1 else "mixed"


def _size(headers: Iterable[TensorHeader]) -> int:
    return sum(math.prod(header.shape) for header in headers)


def bytes_on_disk(path: Path) -> int:
    """Of a model's folder, or of its one file. Raises OSError."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _licence(files: ModelFiles) -> str:
    """The licence that the front matter of the model card names, or a GGUF file."""
    if files.is_gguf:
        return str(_metadata(files).get("general.license", ""))
    try:
        card = (files.path / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    front = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    licence = front and re.search(r"^license:[ \t]*(\S.*)$", front[1], re.MULTILINE)
    return licence[1].strip().strip("\"'") if licence else ""


def _template(files: ModelFiles) -> str:
    """The name of the dialogue template saved with the model, OWN where its tokenizer has one."""
    if files.is_gguf:
        metadata = _metadata(files)
        if saved := metadata.get(GGUF_TEMPLATE):
            return str(parse_json_object(saved, str(files.path), ModelError)["name"])
        return OWN if metadata.get("tokenizer.chat_template") else ""
    if files.template is not None:
        return str(read_json_object(files.template, ModelError).get("name", ""))
    if (files.tokenizer / CHAT_TEMPLATE).is_file():
        return OWN
    try:
        config = read_json_object(files.tokenizer / TOKENIZER_CONFIG, ModelError)
    except FileNotFoundError:
        return ""
    return OWN if config.get("chat_template") else ""


def _metadata(files: ModelFiles) -> dict[str, Any]:
    # The gguf package brings numpy, which most models can be described without.
    from chatapp.engine.files.gguf.reader import GGUFFile

    return GGUFFile(files.path).metadata


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
