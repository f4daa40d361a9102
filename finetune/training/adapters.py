"""Chooses the trained part of a model, creates adapters for it, and rounds the base below them.

Of a rounded base, matrices stay in int8 or int4 while an adapter learns, on any device: y = x Wᵀ +
b, where W is made from its numbers for each product, and again for the gradient of x, so that only
one matrix at a time is in floating point (as in QLoRA, Dettmers et al. 2023).

Invariant: every parameter outside the chosen part has requires_grad off, so that the optimizer, the
checkpoint and the count of trained parameters agree. Matrices are rounded as they are for a chat in
the same precision.
"""

import shutil
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from chatapp.common.userfiles import did_you_mean, quoted
from chatapp.engine.files.model_files import COMPANIONS, ModelFiles
from chatapp.engine.kernels.rounding import GROUP, group_scales, quantise, rounded_groups
from chatapp.engine.tokenizers import save_tokenizer
from finetune.config.sections import Adapter, ConfigError, FinetuneConfig, Train

LOW_RANK = ("lora", "dora", "rslora")


def choose_trained(
    model: Any, train: Train, adapter: Adapter, files: ModelFiles, *, name: str
) -> Any:
    """The model with only the chosen part trainable; for a low-rank method, wrapped by peft.

    files, name: of the model. Raises ConfigError.
    """
    if train.optimizer == "muon" and train.method == "embeddings-and-head":
        raise ConfigError(
            "train.optimizer is muon, which is for the matrices inside the blocks; of method "
            "embeddings-and-head none of them learns: use adamw"
        )
    if train.method in LOW_RANK:
        return _with_adapter(model, train, adapter, files, name)
    # All of it: the base of a merged adapter is frozen.
    model.requires_grad_(train.method == "full")
    if train.method == "full":
        return model
    if train.method == "embeddings-and-head":
        parts = [model.get_input_embeddings(), model.get_output_embeddings()]
    else:
        blocks, after = _blocks(model)
        if train.last_blocks > len(blocks):
            raise ConfigError(
                f"train.last_blocks is {train.last_blocks}; the model has {len(blocks)} blocks"
            )
        parts = [*blocks[-train.last_blocks :], *after]
    for part in parts:
        part.requires_grad_(True)
    return model


def fuse_activations(model: nn.Module) -> None:
    """Compute GPT-2's GELU in one kernel: the same function, but one stored tensor instead of
    eight.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def switch_off_dropout(model: nn.Module, config: FinetuneConfig) -> None:
    """Switch dropout off, for an objective that compares probabilities.

    Raises ConfigError when dropout is configured.
    """
    if config.adapter.dropout:
        raise ConfigError(
            f"adapter.dropout is {config.adapter.dropout:g}, but objective.kind "
            f"{config.objective.kind} compares probabilities, which dropout blurs; set it to 0"
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention has it as a number that it passes on.
        for name, value in vars(module).items():
            if isinstance(value, float) and name.endswith("dropout"):
                setattr(module, name, 0.0)


def trained_parameters(model: nn.Module) -> int:
    """The number of trained parameters; tied ones count once."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def _with_adapter(model: Any, train: Train, adapter: Adapter, files: ModelFiles, name: str) -> Any:
    import peft

    if files.is_adapter:
        raise ConfigError(
            f"train.method is {train.method}, but {name} is an adapter already: merge it first "
            f"(finetune merge {name} OUT) and train on OUT"
        )
    settings = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM" if files.is_encoder_decoder else "CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=_targets(model, adapter.targets),
        modules_to_save=_modules_to_save(model, adapter.modules_to_save),
        ensure_weight_tying=_are_tied(model, adapter.modules_to_save),
        # GPT-2's linear layers store their weights as (in, out).
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        use_dora=train.method == "dora",
        use_rslora=train.method == "rslora",
    )
    with warnings.catch_warnings():
        # peft calls transformers by deprecated names.
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = peft.get_peft_model(model, settings)
    # During saving, peft would look up any other name on a hub.
    wrapped.peft_config["default"].base_model_name_or_path = str(files.path.absolute())
    return wrapped


def _targets(model: Any, names: Sequence[str]) -> list[str] | str:
    """The linear layers that get an adapter, in peft's notation. Raises ConfigError."""
    if not names:
        return "all-linear"
    linear = {
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)
    }
    head = next(n for n, m in model.named_modules() if m is model.get_output_embeddings())
    _check_named("adapter.targets", names, linear - {head})
    return list(names)


def _modules_to_save(model: Any, names: Sequence[str]) -> list[str] | None:
    """The modules trained completely, in peft's notation. Raises ConfigError."""
    modules = {
        name
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
    _check_named("adapter.modules_to_save", names, modules)
    return list(names) or None


def _check_named(key: str, names: Sequence[str], modules: Collection[str]) -> None:
    """Raises ConfigError for a name that is neither a module's nor the end of one."""
    ends = sorted({module.rpartition(".")[2] for module in modules} - {""})
    for name in names:
        if not any(module == name or module.endswith(f".{name}") for module in modules):
            raise ConfigError(
                f"{key}: there is no such layer as {quoted(name)}{did_you_mean(name, ends)}; "
                f"there are {', '.join(ends)}"
            )


def _are_tied(model: Any, names: Sequence[str]) -> bool:
    """Whether one of the named modules shares its weights, as embeddings and head may."""
    pair = model.get_input_embeddings(), model.get_output_embeddings()
    if pair[0].weight is not pair[1].weight:
        return False
    tied = [path for path, module in model.named_modules() if module in pair]
    return any(path == name or path.endswith(f".{name}") for path in tied for name in names)


def _blocks(model: Any) -> tuple[nn.ModuleList, list[nn.Module]]:
    """The decoder's blocks, first to last, and the modules after them."""
    decoder = model.get_decoder()
    children = list(decoder.children())
    count = model.config.get_text_config().num_hidden_layers
    for index, child in enumerate(children):
        if isinstance(child, nn.ModuleList) and len(child) == count:
            after = children[index + 1 :]
            return child, [module for module in after if any(True for _ in module.parameters())]
    raise ConfigError(
        f"train.method last-blocks: there is no list of {count} blocks in a "
        f"{model.config.model_type} model"
    )


def copy_companions(files: ModelFiles, target: Path) -> None:
    """Copy the files of a model other than config and weights; an adapter's over its base's."""
    if files.base is not None:
        copy_companions(files.base, target)
    if files.is_gguf:
        save_tokenizer(files.tokenizer, target)
    for pattern in COMPANIONS:
        for file in files.path.glob(pattern):
            shutil.copyfile(file, target / file.name)


class RoundedLinear(nn.Linear):
    """A linear layer with frozen weights in int8, or in int4, two in a byte.

    matrix: (out, in). bias: (out,) or None. In rows that are not a whole number of groups, int4 is
    int8.
    """

    scale: Tensor
    least: Tensor | None

    def __init__(self, matrix: Tensor, bias: nn.Parameter | None, precision: str) -> None:
        nn.Module.__init__(self)  # without the weights in floating point
        self.out_features, self.in_features = matrix.shape
        least, matrix = None, matrix.float()
        if precision == "int4" and self.in_features % GROUP == 0:
            groups = matrix.reshape(self.out_features, -1, GROUP)
            least, scale = group_scales(groups)
            pairs = rounded_groups(groups, least, scale).byte().view(self.out_features, -1, 2)
            numbers = pairs[..., 0] | pairs[..., 1] << 4
            least, scale = least.bfloat16(), scale.bfloat16()
        else:
            numbers, scale = quantise(matrix)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_buffer("least", least)
        self.register_parameter("bias", bias)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The weights (out, in) in floating point."""
        if self.least is None:
            return self.weight.to(dtype) * self.scale[:, None].to(dtype)
        matrix = torch.empty(self.out_features, self.in_features, device=self.weight.device)
        pairs = matrix.view(*self.weight.shape, 2)
        pairs[..., 0], pairs[..., 1] = self.weight & 15, self.weight >> 4
        matrix.view(self.out_features, -1, GROUP).mul_(self.scale).add_(self.least)
        return matrix.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        y: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """x Wᵀ, whose gradient makes W anew in place of keeping it."""

    @staticmethod
    def forward(context: Any, x: Tensor, layer: RoundedLinear) -> Tensor:
        context.layer = layer
        return F.linear(x, layer.matrix(x.dtype))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ context.layer.matrix(gradient.dtype), None


class _Room:
    """Memory for tensors that stay, in one piece.

    Between floats that come and go, they would leave gaps in which no other matrix finds place.
    """

    def __init__(self, size: int) -> None:
        self._bytes, self._used = torch.empty(size, dtype=torch.uint8), 0

    def copy(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        place = self._bytes[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // 16) * 16
        return place.copy_(tensor)


class RoundedBase:
    """Rounds the matrices of a model's layers, except the output matrix.

    whole: names of modules that learn themselves.
    """

    def __init__(self, precision: str, whole: Collection[str]) -> None:
        self._precision, self._whole = precision, whole
        self._taken: dict[str, RoundedLinear] = {}
        self._room: _Room | None = None

    def take(self, empty: Any, name: str, tensor: Tensor) -> bool:
        """Round a tensor while its model is read, if it is such a matrix; see `Take`."""
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or not self._rounds(empty, layer):
            return False
        if self._room is None:  # two bytes a weight are enough, and take memory once they are used
            self._room = _Room(2 * sum(weight.numel() for weight in empty.parameters()))
        rounded = self._rounded(empty.get_submodule(layer), tensor)
        for part in (rounded.weight, *rounded.buffers()):
            part.data = self._room.copy(part.data)
        self._taken[layer] = rounded
        return True

    def round(self, model: Any) -> None:
        """Give a model the matrices that were taken, and round the others."""
        for name, layer in list(model.named_modules()):
            if self._rounds(model, name):
                rounded = self._taken.pop(name, None) or self._rounded(layer, layer.weight.detach())
                rounded.bias = layer.bias
                model.set_submodule(name, rounded)

    def _rounds(self, model: Any, name: str) -> bool:
        layer = model.get_submodule(name)
        is_whole = any(part in self._whole for part in name.split("."))
        is_head = layer is model.get_output_embeddings()
        return isinstance(layer, nn.Linear | Conv1D) and not is_head and not is_whole

    def _rounded(self, layer: nn.Module, matrix: Tensor) -> RoundedLinear:
        matrix = matrix.t() if isinstance(layer, Conv1D) else matrix
        return RoundedLinear(matrix, None, self._precision)
