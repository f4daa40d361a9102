"""Checks that a model can be trained, or teach, on rows of this program.

Invariant: a model whose loss would silently be wrong is refused before the first step.
"""

from typing import Any

import torch
from torch.nn import functional

from chatapp.engine.files.model_files import ModelFiles
from finetune.config.objectives import L3Settings
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Tensors
from finetune.objectives.objective import model_inputs


def check_kind(config: FinetuneConfig, files: ModelFiles) -> None:
    """Check that the objective fits the kind of model. Raises ConfigError."""
    kind = config.objective.kind
    if files.is_encoder_decoder:
        _check_encoder_decoder(config, files)
        return
    if files.is_masked and kind != "masked" and config.head is None:
        raise ConfigError(
            f"objective.kind is {kind}, but {config.model} is a masked model ({files.family}), "
            'which sees the tokens that it would learn; set objective.kind = "masked", or a [head]'
        )
    if kind == "masked" and not files.is_masked:
        raise ConfigError(
            f"objective.kind is masked, but {config.model} ({files.family}) is not a masked model; "
            "expected one such as BERT"
        )


def _check_encoder_decoder(config: FinetuneConfig, files: ModelFiles) -> None:
    what = f"{config.model} is an encoder-decoder model ({files.family})"
    if config.head or not isinstance(config.objective, L3Settings):
        raise ConfigError(f"{what}, which learns replies; expected objective.kind l3, and no head")
    if config.objective.aux_weight:
        raise ConfigError(
            f"objective.aux_weight is {config.objective.aux_weight:g}, but {what}: its encoder "
            "reads the prompt in both directions and predicts none of it; set it to 0"
        )
    if config.data.packing:
        raise ConfigError(f"data.packing: {what}, which reads one prompt a row; set it to false")


def check_causal(model: Any) -> None:
    """Check that no token sees a later one. Raises ConfigError.

    Otherwise, as in BERT, each label would be among what the model reads, and the loss say nothing.
    """
    entries = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, 7, device=model.device)[None] % entries
    other = ids.clone()
    other[0, -1] = 0
    model.eval()
    with torch.no_grad():
        logits, changed = (model(input_ids=row, use_cache=False).logits for row in (ids, other))
    # Of weights that have learned nothing yet, a later token changes little, but no rounding error.
    earlier = logits[0, :-1].float()
    if (changed[0, :-1].float() - earlier).abs().max() <= 1e-5 * earlier.std():
        return
    raise ConfigError(
        f"models of type {model.config.model_type} see later tokens, the labels among them; "
        "expected a causal language model, such as GPT-2 or Llama"
    )


def check_head(model: Any) -> None:
    """Check that the logits are the head's plain product, which the objective computes itself.

    Raises ConfigError for models that change them afterwards.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(4, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    seen: list[torch.Tensor] = []
    if isinstance(head, torch.nn.Linear):

        def keep(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            seen.append(inputs[0])

        hook = head.register_forward_pre_hook(keep)
        with torch.no_grad():
            logits = model.eval()(input_ids=ids, use_cache=False).logits
        hook.remove()
        expected = functional.linear(seen[0], head.weight, head.bias).float()
        if torch.allclose(logits.float(), expected, rtol=1e-3, atol=1e-4):
            return
    raise ConfigError(
        f"models of type {model.config.model_type} change their logits after the language-model "
        "head; fine-tuning them is not supported"
    )


def check_packing(model: Any) -> None:
    """Check that two examples in one row do not see each other. Raises ConfigError."""
    entries = model.get_input_embeddings().weight.shape[0]
    first, second = torch.arange(3) % entries, torch.arange(3, 8) % entries
    first, second = first.to(model.device), second.to(model.device)
    batch: Tensors = {
        "input_ids": torch.cat([first, second])[None],
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]], device=model.device),
        "example_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2]]),
    }
    model.eval()
    with torch.no_grad():
        alone = model(input_ids=second[None], use_cache=False).logits
        try:
            packed = model(**model_inputs(batch)).logits[:, 3:]
        except TypeError:  # it takes no positions
            packed = None
    if packed is None or not torch.allclose(packed, alone, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"data.packing: models of type {model.config.model_type} cannot keep examples of one "
            "row apart; set data.packing = false"
        )
