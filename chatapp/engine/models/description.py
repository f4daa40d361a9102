"""The facts for `models info`: sizes, parts, types of weights, licence and template.

Invariant: figures come from the configuration and the headers of the weights; no weight is read.
torch and transformers are loaded only for a family without a decoder here.
"""

import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from chatapp.common.paths import CHAT_TEMPLATE, GGUF_TEMPLATE
from chatapp.common.userfiles import open_regular, parse_json_object, read_json_object
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.summary import parameter_formula, parts
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.files.model_files import ModelFiles, architectures
from chatapp.engine.files.safetensors import is_buffer
from chatapp.engine.models.sizes import ModelSizes, read_sizes

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
    """Of a model's folder, or of its one file. Raises OSError."""
    if path.is_file():
        return path.stat().st_size
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
