"""From a name (bundled, a folder, an adapter, a hub id, a server's address) to a model.

Keep: what is wrong with a model reaches the user as a `ModelError`, one sentence. Nothing
heavy is imported before a model is really loaded.
"""

from collections.abc import Callable

from chatapp.engine.errors import ModelError, NoDecoder, first_line
from chatapp.engine.folder import (
    BUNDLED,
    DECODERS,
    SEQ_TO_SEQ,
    ModelFiles,
    architectures,
    find_model,
)
from chatapp.engine.model import LanguageModel
from chatapp.engine.servers import server_of

PRECISIONS = ("auto", "float32", "bfloat16", "int8", "int4")
DEVICES = ("auto", "cpu", "cuda", "mps")


def load_model(
    name: str,
    *,
    precision: str = "float32",
    device: str = "cpu",
    say: Callable[[str], None] = lambda sentence: None,
) -> LanguageModel:
    """Load a model by its name. Raises ModelError.

    name: "bundled", a folder of a language model in Hugging Face layout, a folder of a PEFT
        adapter, a hub id, or a server; see `server_of`.
    precision: what its matrices are stored and multiplied as; "auto" is what is fastest on
        the device. Only `DECODERS` can be other than float32; a server chooses its own.
    device: where it is computed; "auto" is a GPU for a large model, if there is one.
    say: called with a sentence, before it is loaded, when it takes more memory than is free.
    """
    if precision not in PRECISIONS:
        raise ModelError(
            f"precision {precision!r} is unknown; expected one of {', '.join(PRECISIONS)}"
        )
    if device not in DEVICES:
        raise ModelError(f"device {device!r} is unknown; expected one of {', '.join(DEVICES)}")
    if name != BUNDLED and (server := server_of(name)) is not None:
        from chatapp.engine.remote import connect

        return connect(server, name=name)
    files = find_model(name)
    _check_task(files)
    _check_memory(files, name, precision, device, say)
    if files.has_decoder:
        from chatapp.engine.local import LocalModel

        try:
            return LocalModel.load(files, name=name, precision=precision, device=device)
        except NoDecoder:
            if precision not in ("auto", "float32"):
                raise
        except (MemoryError, RuntimeError) as error:  # torch reports memory as RuntimeError
            raise ModelError(f"{files.path}: cannot be loaded: {first_line(error)}") from None
    elif precision not in ("auto", "float32"):
        raise ModelError(
            f"{name}: only {', '.join(DECODERS)} can be loaded in {precision}; choose float32"
        )
    if files.is_encoder_decoder:
        from chatapp.engine.encoder_decoder import EncoderDecoderModel

        return EncoderDecoderModel.load(files, name=name, device=device)
    from chatapp.engine.transformers_model import TransformersModel

    return TransformersModel.load(files, name=name, device=device)


def usual_precision(files: ModelFiles, device: str) -> str:
    """What a chat multiplies a model in on a device when nothing else is chosen.

    Raises ModelError when the device is not there.
    """
    if not files.has_decoder:
        return "float32"
    from chatapp.engine.decoder.families import read_architecture
    from chatapp.engine.device import device_for
    from chatapp.engine.precision import precision_for

    try:
        size = read_architecture(files).matrix_parameters
    except ModelError:  # of a kind that transformers computes
        return "float32"
    return precision_for("auto", size, device_for(device, "auto", size))


def _check_task(files: ModelFiles) -> None:
    """Raises ModelError when the config names a model for something else than text to come."""
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
    """Raises ModelError for a model that takes more memory than this machine has."""
    from chatapp.engine.description import describe
    from chatapp.engine.device import device_for
    from chatapp.engine.memory import check_memory, memory_needed

    try:
        info = describe(files)
    except ModelError:
        return  # loading it says what is wrong, with more words
    chosen = usual_precision(files, device) if precision == "auto" else precision
    if device_for(device, chosen, info.parameters).type != "cuda":  # which has its own memory
        check_memory(name, memory_needed(info, chosen), say)
