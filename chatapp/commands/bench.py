"""`chatapp bench`: the speed of a model here."""

import time
from dataclasses import asdict

from chatapp.commands.console import interruptible, write, write_json
from chatapp.commands.loading import load
from chatapp.commands.options import JsonOption, ModelOption, PrecisionOption
from chatapp.common.userfiles import UserError


def bench(
    model: ModelOption = None, precision: PrecisionOption = None, as_json: JsonOption = False
) -> None:
    """Measure how fast a model loads, reads a prompt and writes, beside the memory's speed."""
    from chatapp.common.settings import load_settings

    settings = load_settings({"model": model, "precision": precision})
    with interruptible("interrupted"):
        started = time.perf_counter()
        language_model = load(settings.model, settings.precision, settings.device)
        loading = time.perf_counter() - started

        from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
        from chatapp.engine.generation import LocalGenerator
        from chatapp.tasks.evaluation.speed import measure

        if not isinstance(language_model, LocalGenerator):
            raise UserError(f"{settings.model}: does not run on this machine")
        if isinstance(language_model, EncoderDecoderModel):
            raise UserError(
                f"{settings.model}: is an encoder-decoder model; bench measures causal "
                "language models only"
            )
        speed = measure(language_model)
    if as_json:
        write_json({"model": settings.model, "load_seconds": loading, **asdict(speed)})
        return
    lines = {
        "model": f"{settings.model}, {speed.precision}, {speed.device}, {speed.threads} threads",
        "load": f"{loading:,.2f} s, including imports",
        "prefill": f"{speed.prefill:,.0f} tokens/s, {speed.prefill_tokens} tokens",
        "decode": f"{speed.decode:,.1f} tokens/s, {speed.decode_tokens} tokens after "
        f"{speed.prompt_tokens}",
        "kernels": speed.kernels,
        "memory": f"{speed.bandwidth / 1e9:,.1f} GB/s read",
    }
    if speed.matrix_bytes is not None and speed.limit_share is not None:
        limit = speed.bandwidth / speed.matrix_bytes
        lines["limit"] = (
            f"{limit:,.1f} tokens/s by the memory's speed, as each token reads "
            f"{speed.matrix_bytes / 1e6:,.1f} MB of weights; {speed.limit_share:.0%} of it reached"
            + (", from the processor's cache" if speed.limit_share > 1 else "")
        )
    width = max(map(len, lines))
    write("".join(f"{name:<{width}}  {value}\n" for name, value in lines.items()))
