"""Code named in a configuration, and the user's permission to run it.

Invariant: code runs only in training, or in a check with --run-rewards. Before it runs, the user is
asked on a terminal, unless it is in a folder that the user has listed as trusted.
"""

import sys
from pathlib import Path

from chatapp.common.foreign import printable
from chatapp.common.paths import trusted_folders_path
from chatapp.common.userfiles import read_text
from finetune.config.objectives import GrpoSettings
from finetune.config.rewards import Function, WithheldFunction
from finetune.config.sections import ConfigError, FinetuneConfig


def withhold_code(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with every reward function replaced by one that does not run."""
    settings = config.objective
    if not _functions(config):
        return config
    assert isinstance(settings, GrpoSettings)
    rewards = [
        WithheldFunction(**check.model_dump()) if isinstance(check, Function) else check
        for check in settings.rewards
    ]
    return config.model_copy(update={"objective": settings.model_copy(update={"rewards": rewards})})


def require_permission(config: FinetuneConfig) -> None:
    """Ask the user whether the code of a configuration may run, unless that is known.

    Raises ConfigError when it may not, or when there is no terminal to ask on.
    """
    trusted = _trusted_folders()
    for place in _functions(config):
        file = Path(place.rpartition(":")[0]).absolute()
        if any(file.resolve().is_relative_to(folder) for folder in trusted):
            continue
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise ConfigError(
                f"objective.rewards: {file} is code that would run as you, and there is no "
                f"terminal to ask on; {trusted_folders_path()} lists the folders whose code may "
                "run, one a line"
            )
        question = f"This configuration runs the code in {file} as you. Allow it? [y/N] "
        print(printable(question), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigError(f"objective.rewards: {file} may not run")


def _functions(config: FinetuneConfig) -> list[str]:
    """The reward functions, each as file.py:function."""
    checks = config.objective.rewards if isinstance(config.objective, GrpoSettings) else []
    return list(dict.fromkeys(check.function for check in checks if isinstance(check, Function)))


def _trusted_folders() -> list[Path]:
    path = trusted_folders_path()
    lines = read_text(path, ConfigError).splitlines() if path.exists() else []
    folders = [Path(line.strip()).expanduser() for line in lines if line.strip()]
    return [folder.resolve() for folder in folders if folder.is_absolute()]
