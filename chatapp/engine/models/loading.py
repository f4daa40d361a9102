"""From a name (bundled, a folder, an adapter, a hub id, a server's address) to a model or its
tokenizer.
"""

from collections.abc import Callable

from chatapp.common.parameters import check_choice
from chatapp.engine.backends.head import HEAD_FILE, REWARD, HeadSpec, RewardModel
from chatapp.engine.decoder.families import DECODERS
from chatapp.engine.errors import ModelError, NoDecoder, one_sentence
from chatapp.engine.files.model_files import (
    SEQ_TO_SEQ,
    ModelFiles,
    TokenizerFiles,
    architectures,
    read_generation_config,
)
from chatapp.engine.model import LanguageModel, PieceTokenizer
from chatapp.engine.models.resolving import (
    BUNDLED,
    find_model,
    model_folder,
    note_on_folder,
    server_of,
)
from chatapp.engine.tokenizers import NotByteLevel, load_tokenizer, open_tokenizer


def load_model(
    name: str,
    *,
    precision: str = "float32",
    device: str = "cpu",
    say: Callable[[str], None] = lambda sentence: None,
) -> LanguageModel:
    """Load a model by its name. Raises ModelError.

    name: "bundled", a folder of a language model in Hugging Face layout, a folder of a PEFT
    adapter, a hub id, or a server; see `server_of`. precision: number format of its matrices;
    "auto" is the fastest one on the device. Only `DECODERS` support others than float32; a server
    chooses its own. device: where it is computed; "auto" is a GPU for a large model, if there is
    one. say: gets a warning, before loading, if it needs more memory than is free, and a note
    if a folder here has its name, or if no token ends its replies.
    """
    try:
        check_choice("precision", precision)
        check_choice("device", device)
    except ValueError as error:
        raise ModelError(str(error)) from None
    if name != BUNDLED and (server := server_of(name)) is not None:
        from chatapp.engine.backends.remote.remote_model import connect

        return connect(server, name=name)
    files = find_model(name)
    if note := note_on_folder(name):
        say(note)
    with one_sentence(f"{files.path}: cannot be loaded"):
        model = _load(files, name, precision, device, say)
    if not (model.tokenizer.names_end or read_generation_config(files).ends):
        say(
            f"{name}: names no token that ends a text; a reply ends where its template stops it, "
            "where it repeats itself, or at max_tokens"
        )
    return model


def _load(
    files: ModelFiles, name: str, precision: str, device: str, say: Callable[[str], None]
) -> LanguageModel:
    _check_task(files)
    _check_memory(files, name, precision, device, say)
    if files.has_decoder:
        from chatapp.engine.backends.local import LocalModel

        try:
            return LocalModel.load(files, name=name, precision=precision, device=device)
        except NoDecoder:
            if precision not in ("auto", "float32"):
                raise
    elif precision not in ("auto", "float32"):
        raise ModelError(
            f"{name}: only {', '.join(DECODERS)} can be loaded in {precision}; choose float32"
        )
    if files.is_encoder_decoder:
        from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel

        return EncoderDecoderModel.load(files, name=name, device=device)
    from chatapp.engine.backends.transformers_model import TransformersModel

    return TransformersModel.load(files, name=name, device=device)


def usual_precision(files: ModelFiles, device: str) -> str:
    """The default precision of a chat with a model on a device.

    Raises ModelError when the device does not exist.
    """
    if not files.has_decoder:
        return "float32"
    from chatapp.engine.kernels.linear import precision_for
    from chatapp.engine.kernels.machine import device_for

    try:
        size = files.architecture.matrix_parameters
    except ModelError:  # of a kind that transformers computes
        return "float32"
    return precision_for("auto", size, device_for(device, "auto", size))


def _check_task(files: ModelFiles) -> None:
    """Raises ModelError when the config is for another task than text generation."""
    files.refuse_masked()
    names = architectures(files.whole.config)
    task = SEQ_TO_SEQ if files.is_encoder_decoder else "ForCausalLM"
    if names and all("For" in name and not name.endswith(task) for name in names):
        raise ModelError(
            f"{files.whole.config_file}: architectures is {names}; expected a causal language "
            f"model (…ForCausalLM or …LMHeadModel), or an encoder and a decoder (…{SEQ_TO_SEQ})"
        )


def _check_memory(
    files: ModelFiles, name: str, precision: str, device: str, say: Callable[[str], None]
) -> None:
    """Raises ModelError for a model that needs more memory than this machine has."""
    from chatapp.engine.kernels.machine import device_for
    from chatapp.engine.models.description import check_memory, memory_needed, read_sizes

    try:
        sizes = read_sizes(files)
    except ModelError:
        return  # loading it reports the fault, in more words
    chosen = usual_precision(files, device) if precision == "auto" else precision
    if device_for(device, chosen, sizes.parameters).type != "cuda":  # which has its own memory
        check_memory(name, memory_needed(sizes, chosen), say)


def load_reward_model(name: str) -> RewardModel:
    """A run of finetune with objective.kind "reward". Raises ModelError."""
    files = find_model(name)
    if not (files.path / HEAD_FILE).is_file():
        raise ModelError(f"{name}: does not score replies; train it with objective.kind = 'reward'")
    if HeadSpec.load(files.path).task != REWARD:
        raise ModelError(f"{name}: its head classifies texts and does not score replies")
    return RewardModel.load(name, files)


def read_tokenizer(name: str) -> PieceTokenizer:
    """The tokenizer of a model by its name. Raises ModelError.

    name: as for `load_model`, the folder of a tokenizer, or a GGUF file, which may contain only a
    vocabulary.
    """
    files = TokenizerFiles.read(model_folder(name))
    try:
        return load_tokenizer(files)
    except NotByteLevel:
        return open_tokenizer(files)[0]
