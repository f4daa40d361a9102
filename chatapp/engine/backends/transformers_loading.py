"""Loads models of transformers from their files and merges PEFT adapters."""

import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chatapp.common.extras import require
from chatapp.engine.decoder.families import FAMILIES
from chatapp.engine.errors import ModelError, first_line, one_sentence
from chatapp.engine.files.model_files import MASKED, ModelFiles, check_patterns
from chatapp.engine.files.weights import check_finite, stored_tensors
from chatapp.engine.kernels.machine import device_for

# transformers changes global state of torch while it loads: how tensors are filled, whether they
# are tied. Two models loaded at once, such as a chat's and its reward model, would be wrong.
LOADING = threading.Lock()

# The window of a model without a limit of its own.
UNLIMITED_CONTEXT = 1024


def context_of(config: Any) -> int:
    """The longest sequence that a model supports."""
    text = config.get_text_config(decoder=True)
    for key in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        value = getattr(text, key, None)
        if isinstance(value, int) and value > 0:
            return value - (_PADDING + 1) * (is_masked(config) and text.pad_token_id == _PADDING)
    return UNLIMITED_CONTEXT


_PADDING = 1
"""The padding of RoBERTa and its relatives, which count positions from behind it."""


def is_masked(config: Any) -> bool:
    """Whether a config of transformers is that of a masked model."""
    names = config.architectures or ()
    return bool(names) and all(name.endswith(MASKED) for name in names)


def read_config(files: ModelFiles) -> Any:
    """Read a model's configuration with transformers, from a folder or GGUF. Raises ModelError."""
    from transformers import AutoConfig

    whole = files.whole
    with one_sentence(f"{files.whole.config_file}: transformers cannot read it"):
        if whole.is_gguf and whole.family in FAMILIES:
            values = {key: value for key, value in whole.config.items() if key != "model_type"}
            return AutoConfig.for_model(whole.family, **values)
        folder, name = (whole.path.parent, whole.path.name) if whole.is_gguf else (whole.path, None)
        return AutoConfig.from_pretrained(
            folder, gguf_file=name, trust_remote_code=False, local_files_only=True
        )


def load_causal(files: ModelFiles, **options: Any) -> Any:
    """Load a causal model of transformers; see `load_network`. Raises ModelError."""
    files.refuse_masked()
    return load_one_stack(files, **options)


Take = Callable[[Any, str, Tensor], bool]
"""Called with a model without memory, the name of one of its tensors, and the tensor.

Returns whether it keeps the tensor itself.
"""


def load_one_stack(files: ModelFiles, **options: Any) -> Any:
    """Load a causal or a masked model; see `load_network`. Raises ModelError."""
    if files.is_encoder_decoder:
        raise ModelError(
            f"{files.path}: this is an encoder-decoder model ({files.family}); "
            "expected a causal or masked language model"
        )
    return load_network(files, **options)


def load_network(files: ModelFiles, take: Take | None = None, **options: Any) -> Any:
    """Load a model of transformers in float32; an adapter is merged into its base.

    take: sees each tensor of a GGUF file of `FAMILIES` while it is read; in place of those that it
    keeps, the model has zeros without memory. options: of `from_pretrained`, for a folder, such as
    one to quantize its weights. Raises ModelError.
    """
    with LOADING:
        model = _load_whole(files.whole, take, options)
        return _merge_adapter(model, files) if files.is_adapter else model


def put_on(device: str, model: Any, files: ModelFiles) -> Any:
    """Move the model to a device.

    device: see `device_for`. Raises ModelError.
    """
    target = device_for(device, "float32", model.num_parameters())
    try:
        return model.to(target)
    except RuntimeError as error:
        raise ModelError(
            f"{files.path}: cannot be put on {target.type}: {first_line(error)}; choose device cpu"
        ) from None


def _load_whole(files: ModelFiles, take: Take | None, options: dict[str, Any]) -> Any:
    """Load a complete model: transformers fills missing tensors with noise, which is refused."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    auto = transformers.AutoModelForCausalLM
    if files.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    elif files.is_masked:
        auto = transformers.AutoModelForMaskedLM
    if files.is_gguf and files.family in FAMILIES:
        model, report = _load_gguf(files, take)
    elif files.is_gguf:
        model, report = _load(auto, files, files.path.parent, gguf_file=files.path.name)
    else:
        _check_sizes(auto, files)
        model, report = _load(auto, files, files.path, use_safetensors=True, **options)
    for problem in ("missing_keys", "mismatched_keys"):
        if report[problem]:
            word = problem.removesuffix("_keys")
            raise ModelError(f"{files.path}: tensor {sorted(report[problem])[0]!r} is {word}")
    _check_finite(model, files)
    return model


def _empty(kind: Any, files: ModelFiles, config: Any) -> Any:
    """A model without memory for its tensors. Raises ModelError."""
    with one_sentence(f"{files.path}: a model cannot be built from it"), torch.device("meta"):
        return kind.from_config(config, trust_remote_code=False)


_MOST_TIMES = 16
"""The most parameters per number in a model's files: packed four-bit weights have two in a byte,
tied matrices are stored once, and position masks are not stored.
"""


def _check_sizes(kind: Any, files: ModelFiles) -> None:
    """Refuse a configuration much larger than the files, before transformers allocates it.

    Raises ModelError.
    """
    empty = _empty(kind, files, read_config(files))
    described = sum(tensor.numel() for tensor in (*empty.parameters(), *empty.buffers()))
    held = sum(math.prod(header.shape) for header in files.headers)
    if described > _MOST_TIMES * held + 10**8:
        raise ModelError(
            f"{files.config_file}: describes {described:,} numbers, and the weights hold "
            f"{held:,}; they do not belong together"
        )


def _load(kind: Any, files: ModelFiles, folder: Path | None, **options: Any) -> tuple[Any, Any]:
    """Load a model by a class of transformers; return it and the report on its tensors.

    Raises ModelError.
    """
    with one_sentence(f"{files.path}: not a language model that can be loaded"):
        model, report = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    return model, report


def _load_gguf(files: ModelFiles, take: Take | None) -> tuple[Any, Any]:
    """A model of transformers with the tensors of a GGUF file, and the report on them."""
    from transformers import AutoModelForCausalLM

    config = read_config(files)
    empty = _empty(AutoModelForCausalLM, files, config)
    shapes = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    weights = {}
    for stored, read in stored_tensors(files, shapes):
        if stored.name not in shapes:
            raise ModelError(
                f"{files.path}: tensor {stored.name!r} does not belong to a {files.family}"
            )
        if stored.shape != shapes[stored.name]:
            raise ModelError(
                f"{files.path}: tensor {stored.name!r} has the shape {list(stored.shape)}; "
                f"expected {list(shapes[stored.name])}"
            )
        tensor = read()
        check_finite(tensor, files.path, stored.name)
        if take and take(empty, stored.name, tensor):
            tensor = torch.zeros(()).expand(tensor.shape)
        weights[stored.name] = tensor
    return _load(type(empty), files, None, config=config, state_dict=weights)


def _merge_adapter(model: Any, files: ModelFiles) -> Any:
    """Merge an adapter's weights into the model."""
    require("peft")
    import peft

    _ = files.headers  # finds pickles and broken files, with better sentences
    check_patterns(files, [name for name, _ in model.named_modules()])
    with one_sentence(f"{files.path}: the adapter does not fit its base model"):
        kind = peft.PeftConfig.from_pretrained(files.path)
        if kind.is_prompt_learning:
            raise ModelError(
                f"{files.config_file}: peft_type is {kind.peft_type}; expected an adapter "
                "that can be merged into the weights, such as LORA"
            )
        with warnings.catch_warnings(
            action="ignore"
        ):  # about tied weights that separate, as they should
            adapted = peft.PeftModel.from_pretrained(model, files.path)
            expected = {*peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)}
        _check_names(files, expected)
        _untie(adapted.get_base_model())
        merged = adapted.merge_and_unload()
    _check_finite(merged, files)
    return merged


def _untie(model: Any) -> None:
    """Give the output a matrix of its own where an adapter changes only one of two that are tied:
    merging would change both.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    layers = [getattr(end, "base_layer", end) for end in ends]
    if list(ends) != layers and layers[0].weight is layers[1].weight:
        layers[1].weight = torch.nn.Parameter(layers[1].weight.detach().clone())
        model.config.get_text_config().tie_word_embeddings = False


def _check_names(files: ModelFiles, expected: set[str]) -> None:
    """Refuse an adapter's tensors that are missing, or unknown to its base.

    peft ignores unknown ones and fills missing ones with noise. Raises ModelError.
    """
    stored = {header.name for header in files.headers}
    odd = sorted(name for name in stored - expected if "lora_" in name)
    missing = sorted(expected - stored)
    if odd or missing:
        problem = f"{odd[0]!r} belongs to no layer of it" if odd else f"{missing[0]!r} is missing"
        raise ModelError(f"{files.path}: the adapter does not fit its base model: tensor {problem}")


def _check_finite(model: Any, files: ModelFiles) -> None:
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point():
            check_finite(tensor, files.path, name)
