"""`chatapp models export`: a model for other programs, and whether it is the same model there."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import FAILED, complain, progress, write
from chatapp.common.userfiles import UserError, reason, system_error

if TYPE_CHECKING:
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.engine.model import LanguageModel
    from chatapp.prompting.chat_template import ChatTemplate
    from chatapp.prompting.messages import Role
    from chatapp.prompting.template import ShippedTemplate

_HI: "tuple[Role, str]" = ("user", "Hello! Who are you?")
_CHATS: "tuple[tuple[tuple[Role, str], ...], ...]" = (
    (_HI,),
    (_HI, ("assistant", "I am a model."), ("user", "Write about tea:  1,984 cups\n\nof 日本 🦙")),
    (("system", "Answer briefly."), ("user", "Name two seas <|im_end|></s>.")),
)
_MOST_APART = {"f32": 1e-3, "f16": 0.02, "q8_0": 0.1, "q4_0": 1.0}
"""How far rounding may move the log-probability of a token on average, in nats.

On SmolLM2-135M, rounding moves it by 0.001 (f16), 0.024 (q8_0), 0.59 (q4_0); one attention,
MLP or query matrix of 30 layers lost in f16 by 0.37 to 0.45. So q4_0 shows coarser damage only.
"""


def export(
    name: Annotated[
        str,
        typer.Argument(
            help="bundled, a folder, a GGUF file, a fine-tuned run, or a hub id.",
            autocompletion=shared.models,
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(help="The file to write, such as mine.gguf; another name is a new folder."),
    ],
    type: Annotated[
        Literal["f32", "f16", "q8_0", "q4_0"],
        typer.Option("--type", help="The format in which matrices are stored."),
    ] = "f16",
    unmerged: Annotated[
        bool,
        typer.Option("--unmerged", help="Write a LoRA adapter alone, to be applied to its base."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare the tokens of prompts and greedy replies; print Ollama's Modelfile.",
        ),
    ] = False,
    force: shared.ForceOption = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp, Ollama and LM Studio load, or as a Hugging
    Face folder, which transformers loads."""
    if check and unmerged:
        raise UserError("--check compares whole models; export the adapter merged to check it")
    if not (check and output.exists() and not force):
        _export(name, output, type, unmerged=unmerged, force=force)
    if check:
        _check(name, output, type)


def _export(name: str, output: Path, type: str, *, unmerged: bool, force: bool) -> None:
    """Write a model. Raises UserError."""
    from chatapp.engine.models.resolving import find_model

    is_file = output.suffix.lower() == ".gguf"
    if not is_file and os.path.lexists(output):
        raise UserError(f"{output}: exists already; name a new folder, or a file such as mine.gguf")
    if not is_file and type.startswith("q"):
        raise UserError(f"--type is {type}, which only a GGUF file can have; choose f32 or f16")
    if output.exists() and not force:
        raise UserError(f"{output}: this file already exists; --force replaces it")
    if output.is_dir():
        raise UserError(f"{output}: is a folder; expected the name of a file")
    files = find_model(name)
    if files.is_gguf and is_file and output.exists() and output.samefile(files.path):
        raise UserError(f"{output}: is the model itself; name another file")
    if unmerged and not (files.is_adapter and is_file):
        raise UserError(f"{name}: --unmerged writes an adapter to a file such as lora.gguf")
    write = _write_adapter if unmerged else _write_file if is_file else _write_folder
    try:
        remark = write(files, output, type)
        parts = [output] if is_file else [*output.iterdir()]
        size = sum(part.stat().st_size for part in parts)
    except Exception as error:
        if system_error(error) is None:
            raise
        raise UserError(f"{output}: cannot be written: {reason(error)}") from None
    if remark:
        complain(remark)
    complain(f"wrote {output}, {size / 1e6:,.1f} MB")


def _write_file(files: "ModelFiles", path: Path, kind: str) -> str:
    """Write a GGUF file; returns a remark, or ""."""
    from chatapp.common.paths import GGUF_TEMPLATE
    from chatapp.engine.exporting import write_gguf
    from chatapp.engine.files.gguf.vocabulary import CHAT_TEMPLATE
    from chatapp.prompting.template import as_jinja

    keys: dict[str, str] = {}
    if template := _own_template(files):
        saved = json.dumps(template.to_dict(), ensure_ascii=False)
        keys = {CHAT_TEMPLATE: as_jinja(template), GGUF_TEMPLATE: saved}
    with progress("Writing") as show:
        return write_gguf(files, path, kind, keys, show)


def _write_adapter(files: "ModelFiles", path: Path, kind: str) -> str:
    """Write an adapter alone; returns ""."""
    from chatapp.engine.exporting import write_adapter

    with progress("Writing") as show:
        write_adapter(files, path, kind, show)
    return ""


def _write_folder(files: "ModelFiles", folder: Path, kind: str) -> str:
    """Write a folder in the layout of the hub; returns ""."""
    from chatapp.common.paths import CHAT_TEMPLATE
    from chatapp.engine.exporting import write_folder
    from chatapp.prompting.template import as_jinja, save_template

    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name[:40]}.", dir=folder.parent) as draft:
        aside = Path(draft) / folder.name
        write_folder(files, aside, kind)
        if template := _own_template(files):
            save_template(template, aside)
            (aside / CHAT_TEMPLATE).write_text(as_jinja(template), encoding="utf-8")
        aside.rename(folder)
    return ""


def _own_template(files: "ModelFiles") -> "ShippedTemplate | None":
    """The template that a model was trained with here; None for another model."""
    from chatapp.dialogue.writers.choosing import own_template
    from chatapp.prompting.template import ShippedTemplate

    template = own_template(files, ())
    return template if isinstance(template, ShippedTemplate) else None


def _check(name: str, output: Path, kind: str) -> None:
    """Say whether an export is the same model, and print its Modelfile. Raises Exit if not."""
    prompts, replies, scores, *_ = _answers(name)
    others, again, moved, model, template = _answers(str(output), prompts, replies)
    if prompts != others:
        place = sum(before == after for before, after in zip(prompts, others, strict=False)) + 1
        complain(f"{output}: prompt {place} of {len(prompts)} has other tokens than with {name}")
        raise typer.Exit(FAILED)
    pairs = [pair for rows in zip(scores, moved, strict=True) for pair in zip(*rows, strict=True)]
    apart = sum(abs(before - after) for before, after in pairs) / max(1, len(pairs))
    same = sum(before == after for before, after in zip(replies, again, strict=True))
    complain(
        f"{len(prompts)} prompts have the same tokens; {same} of {len(replies)} greedy replies are "
        f"the same; the log-probability of a token moves by {apart:.5f} on average"
    )
    if not apart <= _MOST_APART[kind]:
        complain(f"{output}: is damaged, or another model: {kind} moves it by {_MOST_APART[kind]}")
        raise typer.Exit(FAILED)
    if output.is_file():
        write(_modelfile(model, template, output))


def _answers(
    name: str, prompts: "list[list[int]] | None" = None, replies: "list[list[int]] | None" = None
) -> "tuple[list[list[int]], list[list[int]], list[list[float]], LanguageModel, ChatTemplate]":
    """The tokens of prompts, greedy replies, the log-probabilities of replies, the model, and its
    template.

    prompts, replies: those to be continued and scored, instead of the model's own.
    """
    from chatapp.dialogue.writers.choosing import choose_template
    from chatapp.engine.encoding import ids_of, without_start
    from chatapp.engine.events import Token
    from chatapp.engine.model import Request, Sampling
    from chatapp.engine.models.loading import load_model
    from chatapp.prompting.messages import Message

    model = load_model(name, precision="float32")
    template = choose_template(model, "")
    chats = [template.render([Message(*turn) for turn in chat]) for chat in _CHATS]
    own = [ids_of(without_start(chat, model), model.tokenizer) for chat in chats]
    own = [ids[: model.context - 1] for ids in own]
    given, greedy = prompts or own, Sampling(temperature=0.0, max_tokens=24)
    events = (model.generate(Request(ids, greedy, template.stop)) for ids in given)
    written = [[event.id for event in reply if isinstance(event, Token)] for reply in events]
    pairs = zip(given, replies or written, strict=True)
    scores = model.score([(ids, reply) for ids, reply in pairs if reply])
    return own, written, scores, model, template


def _modelfile(model: "LanguageModel", template: "ChatTemplate", path: Path) -> str:
    """What `ollama create` needs: the file, its template in Ollama's language, and parameters."""
    from chatapp.engine.files.model_files import read_generation_config

    lines = [f"FROM ./{path.name}", *_ollama_template(model, template)]
    makers = read_generation_config(model.files)
    ends = [name for name, id in model.tokenizer.special.items() if id in makers.ends]
    lines += [f'PARAMETER stop """{text}"""' for text in dict.fromkeys([*template.stop, *ends])]
    sampling = makers.sampling
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        if sampling.get(name) is not None:
            lines.append(f"PARAMETER {name.replace('etition', 'eat')} {sampling[name]}")
    return "\n".join([*lines, f"PARAMETER num_ctx {model.context}"]) + "\n"


def _ollama_template(model: "LanguageModel", template: "ChatTemplate") -> list[str]:
    """A template as TEMPLATE and SYSTEM, if it puts the same texts around each turn of a role."""
    from chatapp.engine.encoding import without_start
    from chatapp.prompting.messages import Message, Segment, text_of

    ends = [name for name, id in model.tokenizer.special.items() if id == model.tokenizer.end_id]
    end = Segment("end", "".join(ends[:1]))

    def written(chat: "Sequence[tuple[Role, str]]") -> str:
        segments = without_start(template.render([Message(*turn) for turn in chat]), model)
        return text_of(end if segment.kind == "end" else segment for segment in segments)

    none = ["# Its template has no form in Ollama's language; llama.cpp reads it from the file."]
    roles: tuple[Role, ...] = ("system", "user", "assistant", "user")
    turns = [(role, f"{role} 0") for role in roles]
    pieces = re.split("system 0|user 0|assistant 0", written(turns))
    if len(pieces) != len(turns) + 1:
        return none
    begin, first, answer, later, announce = pieces
    alone = written(turns[1:2]).partition("user 0")[0]
    default = alone[len(begin) : len(alone) - len(first)] if alone.endswith(first) else ""
    others = (later, first if default else alone)
    starts = (first[start:] for start in range(len(first) + 1))
    before = next(end for end in starts if all(text.endswith(end) for text in others))
    around: dict[Role, tuple[str, str]] = {
        "system": (begin, first.removesuffix(before)),
        "user": (before, announce),
        "assistant": (answer.removeprefix(announce), later.removesuffix(before)),
    }
    for chat in _CHATS:
        opening = [(roles[0], default)] if default and chat[0][0] != "system" else []
        text = "".join(text.join(around[role]) for role, text in (*opening, *chat))
        if text != written(chat) or '"""' in text + default or "{{" in text:
            return none
    cases = "{{ else if ".join(
        f'eq .Role "{role}" }}}}{"{{ .Content }}".join(texts)}' for role, texts in around.items()
    )
    system = [f'SYSTEM """{default}"""'] if default else []
    whole = f"{{{{ range .Messages }}}}{{{{ if {cases}{{{{ end }}}}{{{{ end }}}}"
    return [f'TEMPLATE """{whole}"""', *system]
