"""What a model folder says of itself: sizes, types of weights, licence, template.

Keep: figures come from the configuration and the headers of the weights; no weight is read, and
torch is not loaded.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.engine.checkpoint.safetensors import TensorHeader, is_buffer, tensor_headers
from chatapp.engine.errors import ModelError
from chatapp.engine.folder import ModelFiles
from chatapp.userfiles import read_json_object


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model folder says of itself.

    parameters: weights in the checkpoint, tied ones counted once.
    parameters_by_formula: N = 12LH² + (9L + V + n)H + 2H for a GPT-2, None for others. It
        leaves out the 4LH weights of the blocks' norms.
    dtype: of the stored weights, "mixed" when they differ.
    licence, template: empty when the folder names none.
    bytes: of all files on disk.
    """

    folder: Path
    architecture: str
    parameters: int
    parameters_by_formula: int | None
    layers: int
    heads: int
    hidden_size: int
    vocabulary: int
    context: int
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
        parameters_by_formula=None,
        licence=_licence(files.path) or base.licence,
        template=_template(files),
        bytes=_bytes(files.path),
    )


def architectures(config: dict[str, Any]) -> list[str]:
    """The classes of transformers that a config.json names."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _describe_whole(files: ModelFiles) -> ModelInfo:
    config = files.config
    is_gpt2 = files.family == "gpt2"
    tied = config.get("tie_word_embeddings", is_gpt2)
    headers = [
        header
        for header in tensor_headers(files.path)
        if not is_buffer(header.name) and not (tied and header.name == "lm_head.weight")
    ]

    def number(*keys: str) -> int:
        return next((config[key] for key in keys if isinstance(config.get(key), int)), 0)

    layers, hidden = number("n_layer", "num_hidden_layers"), number("n_embd", "hidden_size")
    vocabulary = number("vocab_size")
    context = number("n_positions", "n_ctx", "max_position_embeddings")
    by_formula = gpt2_parameters(layers, hidden, vocabulary, context) if is_gpt2 else None
    dtypes = {header.dtype for header in headers}
    return ModelInfo(
        folder=files.path,
        architecture=(architectures(config) or [files.family or "unknown"])[0],
        parameters=_size(headers),
        parameters_by_formula=by_formula,
        layers=layers,
        heads=number("n_head", "num_attention_heads"),
        hidden_size=hidden,
        vocabulary=vocabulary,
        context=context,
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        licence=_licence(files.path),
        template=_template(files),
        bytes=_bytes(files.path),
    )


def gpt2_parameters(layers: int, hidden: int, vocabulary: int, context: int) -> int:
    """N = 12LH² + (9L + V + n)H + 2H."""
    return 12 * layers * hidden**2 + (9 * layers + vocabulary + context) * hidden + 2 * hidden


def _size(headers: Iterable[TensorHeader]) -> int:
    return sum(math.prod(header.shape) for header in headers)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _licence(folder: Path) -> str:
    """The licence that the front matter of the model card names."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    front = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    licence = front and re.search(r"^license:[ \t]*(\S.*)$", front[1], re.MULTILINE)
    return licence[1].strip().strip("\"'") if licence else ""


def _template(files: ModelFiles) -> str:
    """The name of the dialogue template saved with the model."""
    if files.template is None:
        return ""
    return str(read_json_object(files.template, ModelError).get("name", ""))
