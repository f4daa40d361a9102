"""`chatapp bench`: how fast a model runs here.

The one invariant: a figure comes with what it was measured on, so that it can be reported.
"""

import time
from dataclasses import asdict

from chatapp.commands.ask import JsonOption, ModelOption, PrecisionOption, load
from chatapp.commands.console import write, write_json
from chatapp.commands.prompts import interruptible
from chatapp.userfiles import UserError


def bench(
    model: ModelOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a model loads, reads a prompt and writes, beside the memory's speed."""
    from chatapp.settings import load_settings

    settings = load_settings({"model": model, "precision": precision})
    with interruptible("interrupted"):
        started = time.perf_counter()
        language_model = load(settings.model, settings.precision, settings.device)
        loading = time.perf_counter() - started

        from chatapp.engine.bench import measure
        from chatapp.engine.generation import LocalGenerator

        if not isinstance(language_model, LocalGenerator):
            raise UserError(f"{settings.model}: does not run on this machine")
        found = measure(language_model)
    if as_json:
        write_json({"model": settings.model, "load_seconds": loading, **asdict(found)})
        return
    lines = {
        "model": f"{settings.model}, {found.precision}, {found.device}, {found.threads} threads",
        "load": f"{loading:,.2f} s, with what is imported for it",
        "prefill": f"{found.prefill:,.0f} tokens/s, {found.prefill_tokens} tokens",
        "decode": f"{found.decode:,.1f} tokens/s, {found.decode_tokens} tokens after "
        f"{found.prompt_tokens}",
        "memory": f"{found.bandwidth / 1e9:,.1f} GB/s read",
    }
    if found.matrix_bytes is not None and found.limit_share is not None:
        limit = found.bandwidth / found.matrix_bytes
        lines["limit"] = (
            f"{limit:,.1f} tokens/s: each reads {found.matrix_bytes / 1e6:,.1f} MB of weights; "
            f"{found.limit_share:.0%} of it reached"
        )
    width = max(map(len, lines))
    write("".join(f"{name:<{width}}  {value}\n" for name, value in lines.items()))
