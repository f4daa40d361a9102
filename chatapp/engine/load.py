"""From a name (bundled, a folder, an adapter, a hub id, a server's address) to a model.

Keep: what is wrong with a model reaches the user as a `ModelError`, one sentence. Nothing
heavy is imported before a model is really loaded.
"""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.engine.checkpoint import (
    ADAPTER_CONFIG,
    CONFIG,
    ModelError,
    TensorHeader,
    first_line,
    is_buffer,
    read_json,
    tensor_headers,
)
from chatapp.engine.model import LanguageModel
from chatapp.engine.servers import is_address, server_of
from chatapp.paths import data_dir

__all__ = [
    "BUNDLED",
    "ModelError",
    "ModelInfo",
    "base_folder",
    "describe",
    "load_model",
    "local_models",
    "model_folder",
    "usual_precision",
]

BUNDLED = "bundled"
PRECISIONS = ("auto", "float32", "bfloat16", "int8")
DEVICES = ("auto", "cpu", "cuda", "mps")

# As in prompting/template.py, which the engine must not import.
TEMPLATE_FILE = "chatapp_template.json"

_BUNDLED_FOLDER = Path(__file__).parent.parent / "bundled"
# What a model needs of a hub repository; never pickled weights or code.
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.bpe", "*.model", "README.md"]


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


def load_model(name: str, *, precision: str = "float32", device: str = "cpu") -> LanguageModel:
    """Load a model by its name. Raises ModelError.

    name: "bundled", a folder of a GPT-2 or of another causal model in Hugging Face layout, a
        folder of a PEFT adapter, a hub id, or a server; see `server_of`.
    precision: what its matrices are stored and multiplied as; "auto" is what is fastest on
        the device. Only a GPT-2 can be other than float32; a server chooses its own.
    device: where it is computed; "auto" is a GPU for a large model, if there is one.
    """
    if precision not in PRECISIONS:
        raise ModelError(
            f"precision {precision!r} is unknown; expected one of {', '.join(PRECISIONS)}"
        )
    if device not in DEVICES:
        raise ModelError(f"device {device!r} is unknown; expected one of {', '.join(DEVICES)}")
    if name != BUNDLED and (server := server_of(name)) is not None:
        from chatapp.engine.remote import RemoteModel

        return RemoteModel.load(server, name=name)
    folder = model_folder(name)
    if _is_adapter(folder):
        from chatapp.engine.transformers_model import TransformersModel

        _check_precision(name, precision)
        base = base_folder(folder)
        return TransformersModel.load(base, name=name, adapter=folder, device=device)
    config = read_json(folder / CONFIG)
    _check_task(folder, config)
    if config.get("model_type") == "gpt2":
        from chatapp.engine.local import LocalModel
        from chatapp.engine.tokenizer import NotByteLevel

        try:
            return LocalModel.load(folder, name=name, precision=precision, device=device)
        except NotByteLevel:
            pass  # some GPT-2 models of other languages have WordPiece or SentencePiece
        except (MemoryError, RuntimeError) as error:  # torch reports memory as RuntimeError
            raise ModelError(f"{folder}: cannot be loaded: {first_line(error)}") from None
    from chatapp.engine.transformers_model import TransformersModel

    _check_precision(name, precision)
    return TransformersModel.load(folder, name=name, device=device)


def usual_precision(folder: Path, device: str) -> str:
    """What a chat multiplies a model in on a device when nothing else is chosen.

    Raises ModelError when the device is not there.
    """
    if _is_adapter(folder) or read_json(folder / CONFIG).get("model_type") != "gpt2":
        return "float32"
    from chatapp.engine.decoder.gpt2 import GPT2Config
    from chatapp.engine.device import device_for
    from chatapp.engine.precision import precision_for

    try:
        size = GPT2Config.read(folder).matrix_parameters
    except ModelError:  # a GPT-2 of a kind that transformers computes
        return "float32"
    return precision_for("auto", size, device_for(device, "auto", size))


def _check_precision(name: str, precision: str) -> None:
    if precision not in ("auto", "float32"):
        raise ModelError(
            f"{name}: only a GPT-2 with a byte-level tokenizer can be loaded in {precision}; "
            "choose float32"
        )


def model_folder(name: str) -> Path:
    """The folder of a model, downloaded if need be, without loading it. Raises ModelError."""
    if name == BUNDLED:
        if not (_BUNDLED_FOLDER / CONFIG).is_file():
            raise ModelError("this installation carries no bundled model; name another one")
        return _BUNDLED_FOLDER
    if is_address(name):
        raise ModelError(f"{name}: the files of a model on a server are not on this machine")
    path = os.path.expanduser(name)  # unlike Path, takes any text without an error
    if os.path.isdir(path):
        return Path(path)
    if os.path.exists(path):
        raise ModelError(f"{name}: this is a file; expected the folder of a model")
    return _from_hub(name)


def local_models() -> list[str]:
    """Names of the models on this machine, each of which `load_model` takes."""
    found = [BUNDLED] if (_BUNDLED_FOLDER / CONFIG).is_file() else []
    for parent in (Path("runs"), data_dir() / "models"):
        found += [str(folder) for folder in sorted(parent.glob("*")) if _is_model(folder)]
    return found + _in_hub_cache()


def describe(folder: Path) -> ModelInfo:
    """Read what a GPT-2 or other model folder is, from its config and weight headers.

    Of an adapter: its base, with the weights of both. Raises ModelError.
    """
    if _is_adapter(folder):
        base = describe(base_folder(folder))
        kind = read_json(folder / ADAPTER_CONFIG).get("peft_type", "PEFT")
        return replace(
            base,
            folder=folder,
            architecture=f"{kind} adapter of {base.architecture}",
            parameters=base.parameters + _size(tensor_headers(folder)),
            parameters_by_formula=None,
            licence=_licence(folder) or base.licence,
            template=_template(folder) or base.template,
            bytes=_bytes(folder),
        )
    config = read_json(folder / CONFIG)
    is_gpt2 = config.get("model_type") == "gpt2"
    tied = config.get("tie_word_embeddings", is_gpt2)
    headers = [
        header
        for header in tensor_headers(folder)
        if not is_buffer(header.name) and not (tied and header.name == "lm_head.weight")
    ]

    def number(*keys: str) -> int:
        return next((config[key] for key in keys if isinstance(config.get(key), int)), 0)

    layers, hidden = number("n_layer", "num_hidden_layers"), number("n_embd", "hidden_size")
    vocabulary = number("vocab_size")
    context = number("n_positions", "n_ctx", "max_position_embeddings")
    architectures = _architectures(config) or [str(config.get("model_type", "unknown"))]
    dtypes = {header.dtype for header in headers}
    return ModelInfo(
        folder=folder,
        architecture=architectures[0],
        parameters=_size(headers),
        parameters_by_formula=gpt2_parameters(layers, hidden, vocabulary, context)
        if is_gpt2
        else None,
        layers=layers,
        heads=number("n_head", "num_attention_heads"),
        hidden_size=hidden,
        vocabulary=vocabulary,
        context=context,
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed",
        licence=_licence(folder),
        template=_template(folder),
        bytes=_bytes(folder),
    )


def gpt2_parameters(layers: int, hidden: int, vocabulary: int, context: int) -> int:
    """N = 12LH² + (9L + V + n)H + 2H."""
    return 12 * layers * hidden**2 + (9 * layers + vocabulary + context) * hidden + 2 * hidden


def _check_task(folder: Path, config: dict[str, Any]) -> None:
    """Raises ModelError when the config names a model for something else than text to come."""
    names = _architectures(config)
    if names and all("For" in name and not name.endswith("ForCausalLM") for name in names):
        raise ModelError(
            f"{folder / CONFIG}: architectures is {names}; expected a causal language model "
            "(…ForCausalLM or …LMHeadModel)"
        )


def _architectures(config: dict[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or _is_adapter(folder)


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file()


def _size(headers: Iterable[TensorHeader]) -> int:
    return sum(math.prod(header.shape) for header in headers)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def base_folder(adapter: Path) -> Path:
    """The folder of the model that an adapter was trained on."""
    path = adapter / ADAPTER_CONFIG
    base = read_json(path).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{path}: base_model_name_or_path is {base!r}; expected a folder or hub id"
        )
    try:
        return model_folder(base)
    except ModelError as error:
        raise ModelError(f"{path}: the base model cannot be found: {error}") from None


def _licence(folder: Path) -> str:
    """The licence that the front matter of the model card names."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    front = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    found = front and re.search(r"^license:[ \t]*(\S.*)$", front[1], re.MULTILINE)
    return found[1].strip().strip("\"'") if found else ""


def _template(folder: Path) -> str:
    """The name of the dialogue template saved with the model."""
    path = folder / TEMPLATE_FILE
    return str(read_json(path).get("name", "")) if path.is_file() else ""


def _from_hub(name: str) -> Path:
    """The folder of a hub model: from the hub's cache on this machine, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        if any(folder.glob("*.safetensors")):
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:  # no name that a hub model could have
        raise ModelError(f"{name[:100]!r}: there is no such folder") from None
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except RepositoryNotFoundError:
        raise ModelError(f"{name}: there is neither such a folder nor such a hub model") from None
    except Exception as error:  # the hub's client lets many kinds of errors through
        raise ModelError(
            f"{name}: there is no such folder, and the hub cannot be reached: {first_line(error)}"
        ) from None


def _in_hub_cache() -> list[str]:
    """GPT-2 models that the hub's cache on this machine holds."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        repository.repo_id
        for repository in repositories
        if repository.repo_type == "model"
        and any(_is_whole_gpt2(revision.snapshot_path) for revision in repository.revisions)
    )


def _is_whole_gpt2(folder: Path) -> bool:
    try:
        is_gpt2 = read_json(folder / CONFIG).get("model_type") == "gpt2"
        return is_gpt2 and any(folder.glob("*.safetensors"))
    except ModelError:
        return False
