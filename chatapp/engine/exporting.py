"""Writes a model of any layout as one GGUF file, for llama.cpp, or as a folder for transformers."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray
from torch import Tensor

from chatapp.common.extras import require
from chatapp.common.userfiles import Progress, whole_file
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.backends.transformers_loading import read_config as read_transformers_config
from chatapp.engine.decoder.families.architecture import Family
from chatapp.engine.decoder.families.gguf_row import FACTORS, Config, position_factors
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.gguf.reader import (
    OTHER_ENDS,
    GGUFFile,
    config_metadata,
    read_config,
    spelled_out,
    writable_family,
)
from chatapp.engine.files.gguf.tensors import gguf_names
from chatapp.engine.files.gguf.vocabulary import (
    CHAT_TEMPLATE,
    NAMED_TOKENS,
    Metadata,
    cuts_white_space,
    vocabulary_metadata,
)
from chatapp.engine.files.model_files import (
    GGUF_KEYS,
    GenerationConfig,
    ModelFiles,
    check_patterns,
    read_generation_config,
)
from chatapp.engine.files.safetensors import read_tensors
from chatapp.engine.tokenizers import (
    save_tokenizer,
    start_tokens,
    transformers_tokenizer,
)

_FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
_FLOATS = {"f32": torch.float32, "f16": torch.float16}


def write_gguf(
    files: ModelFiles, path: Path, kind: str, template: Mapping[str, str], progress: Progress
) -> str:
    """Write a model, with an adapter merged into its base, as one GGUF file.

    kind: storage of matrices, one of `_FILE_TYPES`. template: keys of the chat template; by default
    the tokenizer's. Returns a remark for the user, or "". Raises ModelError when a GGUF file cannot
    express the model, and OSError.
    """
    network = load_causal(files)
    config = network.config.get_text_config().to_dict()
    origin = str(files.whole.config_file)
    family = writable_family(config, origin)
    values = spelled_out(family, config, origin)
    architecture = family.gguf.architecture
    rows = network.get_input_embeddings().weight.shape[0]
    tokenizer = transformers_tokenizer(files.tokenizer)
    makers = read_generation_config(files)
    vocabulary = _tokenizer_metadata(tokenizer, makers, rows, str(files.tokenizer.path))
    metadata = {
        "general.name": files.path.resolve().name,
        "general.file_type": int(_FILE_TYPES[kind]),
        **config_metadata(family, values),
        f"{architecture}.vocab_size": rows,
        **vocabulary,
        **template,
        **{GGUF_KEYS[name]: value for name, value in makers.sampling.items() if name in GGUF_KEYS},
    }
    tensors = dict(_tensors(network, family, config, origin))
    factors = position_factors(values, origin)
    if factors is not None:
        tensors[FACTORS] = torch.from_numpy(factors)
    with whole_file(path) as draft:
        _write(draft, architecture, metadata, tensors, kind, progress)
        _check(draft, values, origin)
    if cuts_white_space(tokenizer.backend_tokenizer, vocabulary):
        return ""
    return (
        f"{files.tokenizer.path}: llama.cpp splits several spaces before a digit "
        "differently from this tokenizer; all other text is split alike"
    )


def write_folder(files: ModelFiles, folder: Path, kind: str) -> None:
    """Write a model, with an adapter merged into its base, as safetensors, configuration and
    tokenizer.

    kind: of the weights, one of `_FLOATS`. Raises ModelError and OSError.
    """
    load_causal(files).to(_FLOATS[kind]).save_pretrained(folder)
    save_tokenizer(files.tokenizer, folder)


def write_adapter(files: ModelFiles, path: Path, kind: str, progress: Progress) -> None:
    """Write a LoRA adapter without its base as a GGUF file, which llama.cpp applies to the base.

    kind: as in `write_gguf`. llama.cpp multiplies each update by alpha / rank; another scale, as of
    rsLoRA, is in the tensors. Raises ModelError for another kind of adapter, and OSError.
    """
    require("peft")
    from peft import PeftConfig
    from peft.utils.other import get_pattern_key

    with one_sentence(f"{files.config_file}: peft cannot read it"):
        settings: Any = PeftConfig.from_pretrained(files.path)
    kept = {header.name: read() for header, read in read_tensors(files.path)}
    odd = next((name for name in kept if not name.endswith(_LOW_RANK)), None)
    if settings.peft_type != "LORA" or settings.use_dora or odd:
        problem = f"tensor {odd!r} does not belong to LoRA" if odd else "is not plain LoRA"
        raise ModelError(f"{files.path}: {problem}; export it merged, without --unmerged")
    config = read_transformers_config(files).get_text_config().to_dict()
    origin = str(files.whole.config_file)
    family = writable_family(config, origin)
    values = spelled_out(family, config, origin)
    architecture = family.gguf.architecture
    layers = {name: name.removesuffix(_LOW_RANK[0]) for name in kept if name.endswith(_LOW_RANK[0])}
    weights = {
        layer: f"{layer.removeprefix('base_model.model.')}.weight" for layer in layers.values()
    }
    names = gguf_names(architecture, values, weights.values())
    check_patterns(files, [layer.removeprefix("base_model.model.") for layer in weights])
    tensors: dict[str, Tensor] = {}
    for layer, weight in weights.items():
        if weight not in names:
            raise ModelError(f"{origin}: tensor {weight!r} has no place in a GGUF file")
        first, second = (kept[layer + ending].float() for ending in _LOW_RANK)
        rank = len(first)
        scale = 1 / math.sqrt(rank) if settings.use_rslora else 1 / rank
        own = get_pattern_key(settings.alpha_pattern, layer.removeprefix("base_model.model."))
        alpha = settings.alpha_pattern.get(own, settings.lora_alpha)
        change = family.gguf.change(values, names[weight])
        if not change.is_transposed:
            second = change.apply(second)
        tensors[f"{names[weight]}.lora_a"] = first
        tensors[f"{names[weight]}.lora_b"] = second * (alpha * scale * rank / settings.lora_alpha)
    metadata = {
        "general.type": "adapter",
        "general.name": files.path.resolve().name,
        "general.file_type": int(_FILE_TYPES[kind]),
        "adapter.type": "lora",
        "adapter.lora.alpha": float(settings.lora_alpha),
    }
    with whole_file(path) as draft:
        _write(draft, architecture, metadata, tensors, kind, progress)


_LOW_RANK = (".lora_A.weight", ".lora_B.weight")


def _tokenizer_metadata(
    tokenizer: Any, makers: GenerationConfig, rows: int, origin: str
) -> Metadata:
    ids = {key: getattr(tokenizer, f"{name}_id") for name, key in NAMED_TOKENS.items()}
    # Some classes name tokens that the files do not have.
    named = {key: id for key, id in ids.items() if id is not None and id < rows}
    own_end = named.get(NAMED_TOKENS["eos_token"])
    others = sorted(id for id in makers.ends if id != own_end and id < rows)
    ends = others if own_end is None else [own_end, *others]
    if not ends:
        raise ModelError(
            f"{origin}: names no end-of-text token; llama.cpp would take a word for it"
        )
    named |= zip((NAMED_TOKENS["eos_token"], *OTHER_ENDS), ends, strict=False)
    metadata = vocabulary_metadata(tokenizer.backend_tokenizer, rows, named, origin)
    metadata["tokenizer.ggml.add_bos_token"] = bool(start_tokens(tokenizer))
    templates = tokenizer.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    for name, source in templates.items():
        metadata[CHAT_TEMPLATE if name == "default" else f"{CHAT_TEMPLATE}.{name}"] = source
    return metadata


def _tensors(
    network: Any, family: Family, config: Config, origin: str
) -> Iterator[tuple[str, Tensor]]:
    """The tensors in the layout of a GGUF file, in float32."""
    state: dict[str, Tensor] = network.state_dict()
    names = gguf_names(family.gguf.architecture, config, state)
    places: set[int] = set()
    for name, tensor in state.items():
        if tensor.data_ptr() in places:  # an output matrix that is the embedding
            continue
        places.add(tensor.data_ptr())
        if name not in names:
            raise ModelError(f"{origin}: tensor {name!r} has no place in a GGUF file")
        yield names[name], family.gguf.change(config, names[name]).apply(tensor)


def _write(
    path: Path,
    architecture: str,
    metadata: Metadata,
    tensors: Mapping[str, Tensor],
    kind: str,
    progress: Progress,
) -> None:
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    kinds = {name: _kind(name, tensor, kind) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        block, size = GGML_QUANT_SIZES[kinds[name]]
        bytes = tensor.numel() // block * size
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), bytes, kinds[name])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for written, (name, tensor) in enumerate(tensors.items(), 1):
            writer.write_tensor_data(_stored(tensor, kinds[name]))
            progress(written, len(tensors))
    finally:
        writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a key, unless its value is empty."""
    adding = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for kind, add in (adding | {str: writer.add_string, list: writer.add_array}).items():
        if isinstance(value, kind):
            add(key, value)
            return


def _kind(name: str, tensor: Tensor, kind: str) -> GGMLQuantizationType:
    """The storage of a tensor: vectors and positions in full, as llama.cpp requires."""
    ends = ("token_embd.weight", "output.weight")  # too coarse in four bits
    chosen = GGMLQuantizationType["Q8_0" if kind == "q4_0" and name in ends else kind.upper()]
    if tensor.ndim < 2 or name == "position_embd.weight":
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[chosen]
    if tensor.shape[-1] % block:
        chosen = GGMLQuantizationType.F16
    largest = float(tensor.abs().max())
    return chosen if largest <= torch.finfo(torch.float16).max else GGMLQuantizationType.F32


def _stored(tensor: Tensor, kind: GGMLQuantizationType) -> NDArray[Any]:
    values = tensor.detach().to(torch.float32).contiguous().numpy()
    return gguf.quants.quantize(values, kind)


def _check(path: Path, expected: Config, origin: str) -> None:
    """Raises ModelError when the file differs from the configuration."""
    from transformers import AutoConfig

    values = read_config(GGUFFile(path))
    kind = values.pop("model_type")
    written = AutoConfig.for_model(kind, **values).to_dict()
    for key, value in written.items():
        if key in expected and not _is_idle(key) and not _alike(value, expected[key]):
            raise ModelError(
                f"{origin}: {key} is {expected[key]!r}; a GGUF file supports {value!r} alone"
            )


# Fields that do not change the computation, or that are written elsewhere.
_IDLE = (
    *("architectures", "model_type", "dtype", "transformers_version", "use_cache", "n_ctx"),
    *("initializer_range", "pretraining_tp", "max_window_layers"),
    *("reorder_and_upcast_attn", "classifier_dropout", "is_decoder"),
)


def _is_idle(key: str) -> bool:
    return (
        key in _IDLE
        or key.startswith(("summary_", "_"))
        or key.endswith(("dropout", "pdrop", "token_id", "id2label", "label2id"))
    )


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)
    gelus = ("gelu", "gelu_new", "gelu_pytorch_tanh")
    return one == other or (one in gelus and other in gelus)
