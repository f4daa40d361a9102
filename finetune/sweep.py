"""`finetune sweep`: a configuration trained with every combination of some keys' values."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import parse_toml, read_required
from finetune.config.sections import (
    ConfigError,
    FinetuneConfig,
    PretrainConfig,
    load_config,
    named_configuration,
    validated,
)
from finetune.pretrain import pretrain
from finetune.run import FREE_KEYS, resume, train
from finetune.training.display import restart_peak_memory
from finetune.training.record import (
    PRETRAIN_RECORD,
    RESULT_FILE,
    check_same_configuration,
    read_record,
)

# The precision "auto" is recorded as what it is.
_FREE = (*FREE_KEYS, "output", "train.log_every", "train.watch", "train.precision")


def sweep(path: Path, overrides: Sequence[str], console: Console, device: str) -> list[Path]:
    """Run all combinations; return their folders.

    overrides: key=a,b with the values of a key, or key=a. A configuration with [shape] is that of a
    pretraining. Raises as `train` and `pretrain` do.
    """
    configs = list(_configurations(path, overrides))
    for number, config in enumerate(configs, 1):
        folder = Path(config.output)
        if _is_finished(config, folder):
            continue
        console.print(f"run {number:,} of {len(configs):,}: {folder}", markup=False)
        restart_peak_memory()
        if isinstance(config, PretrainConfig):
            pretrain(config, console)
        elif (folder / RUN_RECORD).exists():
            resume(folder, [], console, device)
        else:
            train(config, console, device)
    return [Path(config.output) for config in configs]


def _configurations(
    path: Path, overrides: Sequence[str]
) -> Iterator[FinetuneConfig | PretrainConfig]:
    """The configurations of all runs, each with its own output."""
    path = named_configuration(path)
    kind: type[FinetuneConfig | PretrainConfig] = FinetuneConfig
    if "shape" in parse_toml(read_required(path, ConfigError), path, ConfigError):
        kind = PretrainConfig
    load = partial(load_config, kind, path)
    choices = [_choices(override) for override in overrides]
    keys = [values[0].partition("=")[0] for values in choices]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"{max(keys, key=keys.count)!r} is given twice")
    if any(key == "output" and len(values) > 1 for key, values in zip(keys, choices, strict=True)):
        raise ConfigError("'output' has one value, the folder in which each run gets its own")
    if all(len(values) == 1 for values in choices):
        raise ConfigError("expected a key with several values, as in seed=0,1,2")
    output = load([values[0] for values in choices]).output
    for chosen in product(*choices):
        varied = [one for one, values in zip(chosen, choices, strict=True) if len(values) > 1]
        pairs = (one.partition("=") for one in varied)
        names = (f"{key.rpartition('.')[2]}={value}".replace("/", "-") for key, _, value in pairs)
        folder = Path(output) / "_".join(names)
        yield load([*chosen, f"output={folder}"])


def _choices(override: str) -> list[str]:
    """key=a,b as key=a and key=b; a list or a text in quotes is one value."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r}: expected key=value,value, as in seed=0,1,2")
    values = [text] if text[:1] in ("[", "{", '"', "'") else text.split(",")
    return [f"{key}={value.strip()}" for value in values]


def _is_finished(config: FinetuneConfig | PretrainConfig, folder: Path) -> bool:
    """Whether there is a finished run of a configuration. Raises ConfigError for another one."""
    name = PRETRAIN_RECORD if isinstance(config, PretrainConfig) else RUN_RECORD
    if not (folder / name).exists():
        return False
    record = read_record(folder, name)
    begun = validated(type(config), record["config"], str(folder)).model_dump(mode="json")
    check_same_configuration(folder, begun, config.model_dump(mode="json"), _FREE)
    return (folder / RESULT_FILE).exists()
