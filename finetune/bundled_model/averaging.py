"""Average the weights of two stages, which keeps some abilities that the later one lost.

    python -m finetune.bundled_model.averaging EARLIER LATER OUT [--share 0.2]

After fine-tuning, weights on the straight line back to those before it are often better on the old
tasks and no worse on the new (WiSE-FT; Wortsman et al. 2022, arXiv 2109.01903). OUT is LATER's
folder with the averaged weights, in float16.
"""

from pathlib import Path
from typing import Annotated

import typer

from finetune.config.sections import ConfigError
from finetune.recipes import run


def average(
    earlier: Annotated[str, typer.Argument(help="folder of the earlier stage")],
    later: Annotated[str, typer.Argument(help="folder of the later stage")],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="of the earlier weights")] = 0.2,
) -> None:
    """Write the weighted mean of two stages' weights. Raises ConfigError and ModelError."""
    import torch

    from chatapp.engine.backends.transformers_loading import load_causal
    from chatapp.models.resolving import find_model
    from finetune.training.adapters import copy_companions, require_new_folder

    require_new_folder(out)
    files = find_model(later)
    old, new = load_causal(find_model(earlier)), load_causal(files)
    before, after = old.state_dict(), new.state_dict()
    shapes = [{name: parameter.shape for name, parameter in one.items()} for one in (before, after)]
    if shapes[0] != shapes[1]:
        raise ConfigError(f"{earlier} and {later} are models of different shapes")
    with torch.no_grad():
        for name, parameter in new.named_parameters():  # a tied one once
            parameter.lerp_(before[name], share)
    out.mkdir(parents=True, exist_ok=True)
    new.half().save_pretrained(out)
    copy_companions(files, out)


if __name__ == "__main__":
    run(average)
