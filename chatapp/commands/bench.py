"""`chatapp bench`: the speed of a model here."""

import os
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp import __version__
from chatapp.commands.console import interruptible, write, write_json
from chatapp.commands.loading import load
from chatapp.commands.options import JsonOption, ModelOption, PrecisionOption
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.tasks.evaluation.peer import Peer
    from chatapp.tasks.evaluation.speed import Speed

_PEER = "llama.cpp"


def bench(
    model: ModelOption = None,
    precision: PrecisionOption = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar=_PEER,
            help=f"Measure {_PEER} in turns, with the same weights; needs the package xllamacpp.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a model loads, reads a prompt and writes, beside the memory's speed."""
    from chatapp.common.settings import load_settings

    if against not in (None, _PEER):
        raise UserError(f"--against: expected {_PEER}")
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
        peer: AbstractContextManager[Peer | None] = nullcontext()
        if against is not None:
            from chatapp.engine.backends.local import LocalModel
            from chatapp.tasks.evaluation.peer import llama_cpp

            if not isinstance(language_model, LocalModel) or language_model.device.type != "cpu":
                raise UserError(f"{settings.model}: {_PEER} is measured beside decoders on the CPU")
            assert language_model.files is not None  # a local model has them
            kind, most = language_model.decoder.precision, os.cpu_count() or 1
            peer = llama_cpp(language_model.files, kind, most)
        with peer as other:
            speed = measure(language_model, other)
    if as_json:
        write_json({"model": settings.model, "load_seconds": loading, **asdict(speed)})
        return
    lines = _table(settings.model, loading, speed)
    width = max(map(len, lines))
    write("".join(f"{name:<{width}}  {value}\n" for name, value in lines.items()))


def _table(name: str, loading: float, speed: "Speed") -> dict[str, str]:
    """What is shown of a model's speed. loading: seconds."""
    lines = {
        "model": f"{name}, {speed.precision}, {speed.device}, {speed.threads} threads",
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
    if speed.peer is not None:
        lines["against"] = _comparison(name, speed)
    return lines


def _comparison(name: str, speed: "Speed") -> str:
    """One line with everything that a reader needs to compare it with another machine's."""
    from importlib.metadata import version

    from chatapp.engine.kernels.machine import processor_name

    peer = speed.peer
    assert peer is not None
    return (
        f"{_PEER} (xllamacpp {peer.version}, {peer.kind}): {name}, {speed.precision}, "
        f"decode {speed.decode:,.1f} : {peer.decode:,.1f} = {speed.decode / peer.decode:.2f} ×, "
        f"prefill {speed.prefill:,.0f} : {peer.prefill:,.0f} = "
        f"{speed.prefill / peer.prefill:.2f} ×; {processor_name()}, {os.cpu_count()} cores, "
        f"{platform.system()}; chatapp {__version__}, torch {version('torch')}, "
        f"Python {platform.python_version()}; {date.today()}"
    )
