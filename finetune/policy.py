"""The model that is being trained as one that the engine draws from, many replies at once.

Keep: what is drawn comes from the weights as they are now, an adapter's included, and the weights
that learn are only read.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from chatapp.engine.batch import generate_many
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.errors import NoDecoder
from chatapp.engine.events import Event
from chatapp.engine.folder import DECODERS
from chatapp.engine.local import LocalModel
from chatapp.engine.model import Request
from chatapp.engine.transformers_model import TransformersModel
from finetune.material import Material

AT_ONCE = 64
"""Sequences that are drawn together."""


class Policy:
    """A material's model as it is when this is made; not longer."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._model: LocalModel | TransformersModel
        try:
            self._model = _local(material)
        except NoDecoder:  # of a kind that transformers computes, one reply at a time
            self._model = TransformersModel(
                material.model,
                material.tokenizer,
                name=material.config.model,
                folder=material.files.path,
                start=material.start,
            )

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`."""
        if isinstance(self._model, LocalModel):
            yield from generate_many(self._model, requests, AT_ONCE)
        else:
            yield from self._model.generate_many(requests)


def _local(material: Material) -> LocalModel:
    """Raises NoDecoder."""
    files = material.files
    if files.family not in DECODERS:
        raise NoDecoder(f"{files.path}: the decoder does not compute a {files.family}")
    decoder = Decoder.load(
        files.whole,
        vocabulary=material.tokenizer.size,
        device=material.device,
        tensors=current_tensors(material.model),
    )
    return LocalModel(
        decoder,
        material.tokenizer,
        name=material.config.model,
        folder=files.path,
        start=material.start,
    )


def current_tensors(model: Any) -> Mapping[str, Tensor]:
    """The weights of a model by their names in a checkpoint, adapters merged into them."""
    if not hasattr(model, "peft_config"):
        return dict(model.state_dict())
    with _merged(model):
        state = model.get_base_model().state_dict()
    # An adapter wraps the layers that it changes, and keeps those it learns whole beside the old.
    return {
        name.replace(".base_layer.", ".").replace(".modules_to_save.default.", "."): tensor
        for name, tensor in state.items()
        if ".lora_" not in name and ".original_module." not in name
    }


@contextmanager
def _merged(model: Any) -> Iterator[None]:
    """The adapters' layers with merged weights; afterwards they have the very tensors that they
    had, since taking an update off again would round."""
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    kept = [layer.get_base_layer().weight.data for layer in layers]
    try:
        for layer in layers:
            layer.merge(safe_merge=True)  # makes a new tensor
        yield
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()
