"""`chatapp history`: list, search, show, export, import and delete chats."""

import json
import re
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import (
    FAILED,
    complain,
    interruptible,
    progress,
    write,
    write_json,
    write_output,
)
from chatapp.commands.loading import open_store
from chatapp.common.foreign import local_time, one_line, printable
from chatapp.common.userfiles import UserError
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows, rows_of_model

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from chatapp.dialogue.store import Store

app = typer.Typer(
    help="List, search, show, export, import and delete chats.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PIPED_WIDTH = 160  # columns of a table outside of a terminal

ChatArgument = Annotated[
    int,
    typer.Argument(help="The chat's id, as `history list` shows it.", autocompletion=shared.chats),
]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]


class ExportFormat(StrEnum):
    """The format of an exported chat."""

    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"
    JSONL = "jsonl"

    @property
    def suffix(self) -> str:
        """Of a file in this format."""
        return ".md" if self is self.MARKDOWN else f".{self}"


@app.command("list")
def list_chats(limit: Limit = 50, as_json: shared.JsonOption = False) -> None:
    """List chats, the last changed first."""
    with open_store() as store:
        chats = store.chats(limit=limit)
    if as_json:
        write_json([asdict(chat) for chat in chats])
    elif not chats:
        complain("there are no chats yet")
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for heading in ("id", "messages"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("updated", no_wrap=True)
        table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=24)
        # Rich shortens columns that may wrap first; the text itself does not wrap.
        table.add_column("title")
        for chat in chats:
            table.add_row(
                str(chat.id),
                str(chat.messages),
                _date(chat.updated),
                Text(one_line(chat.model)),
                Text(
                    f"{one_line(chat.title) or 'Untitled chat'}  {one_line(chat.tags)}".rstrip(),
                    no_wrap=True,
                    overflow="ellipsis",
                ),
            )
        _write_rich(table)


_MOST_SENTENCES = 20
"""How many faults of an import are printed, and how many notes."""


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Words that a message must contain.")],
    limit: Limit = 50,
    as_json: shared.JsonOption = False,
) -> None:
    """Find messages that hold all words of QUERY, the newest first."""
    with open_store() as store:
        hits = store.search(query, limit=limit)
    if as_json:
        unmarked = str.maketrans("", "", "\x02\x03")
        write_json([asdict(hit) | {"snippet": hit.snippet.translate(unmarked)} for hit in hits])
    elif not hits:
        complain(f"no message contains {query!r}")
    else:
        from rich.text import Text

        lines = []
        for hit in hits:
            heading = f"{hit.chat_id}  {_date(hit.updated)}  {one_line(hit.title)}"
            lines.append(Text(heading, style="bold", no_wrap=True, overflow="ellipsis"))
            lines.append(Text(f"    {hit.role}: ").append_text(_marked(hit.snippet)))
        _write_rich(*lines)


@app.command()
def show(chat_id: ChatArgument, as_json: shared.JsonOption = False) -> None:
    """Show a chat."""
    from chatapp.dialogue.export import to_json, to_markdown

    with open_store() as store:
        chat, messages = store.chat(chat_id), store.path(chat_id)
    if as_json:
        write_json(to_json(chat, messages))
    else:
        write(to_markdown(chat, messages))


@app.command()
def export(
    chat_id: Annotated[
        int | None, typer.Argument(help="The chat's id.", autocompletion=shared.chats)
    ] = None,
    export_all: Annotated[bool, typer.Option("--all", help="Export all chats.")] = False,
    format: Annotated[
        ExportFormat,
        typer.Option(help="jsonl is for fine-tuning and holds complete exchanges only."),
    ] = ExportFormat.MARKDOWN,
    feedback: Annotated[
        FeedbackFormat | None,
        typer.Option(
            help="Export training rows from your feedback instead, of one chat or all: sft "
            "(corrections), dpo (preferences) or kto (ratings)."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only feedback on the replies of this model.", autocompletion=shared.models
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file instead of standard output."),
    ] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Include the model's thinking, in jsonl.")
    ] = False,
    force: shared.ForceOption = False,
) -> None:
    """Export a chat, or all of them."""
    from chatapp.dialogue.export import as_text

    if (chat_id is None) != export_all and not (feedback and chat_id is None):
        raise UserError("give either the id of a chat or --all")
    if export_all and format is ExportFormat.HTML and not feedback:
        raise UserError("--format html is a page of one chat; give its id")
    if model is not None and not feedback:
        raise UserError("--model is for the training rows of --feedback")
    if thinking and (feedback or format is not ExportFormat.JSONL):
        raise UserError("--thinking is for the training rows of --format jsonl")
    with open_store() as store:
        ids = _all_ids(store) if chat_id is None else [chat_id]
        if feedback:
            text = _feedback(store, ids, feedback, model)
        else:
            chats = [(store.chat(id), store.path(id)) for id in ids]
            text = as_text(chats, format.suffix, as_list=export_all, thinking=thinking)
    if not ids:
        complain("there are no chats yet")
    elif not text:
        complain(f"there is no {'feedback' if feedback else 'complete exchange'} to export")
    if not text:
        raise typer.Exit(FAILED)  # and no empty file, which the next export would not replace
    if output:
        write_output(output, text, force=force)
    else:
        # A pipe gets the text unchanged; a terminal would obey its control characters.
        write(text, verbatim=not sys.stdout.isatty())


@app.command("import")
def import_chats(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Exports of chatapp, ChatGPT, Claude, LibreChat or open-webui, or messages in "
            "OpenAI's format: JSON files, folders of them, or the .zip of an export."
        ),
    ],
    as_json: shared.JsonOption = False,
) -> None:
    """Import chats; one that was imported before is continued where it has grown.

    A chat that cannot be read is left out and named.
    """
    from chatapp.dialogue.importing import read_chats, store_chats

    with interruptible("interrupted; nothing was imported"), open_store() as store:
        with progress("Reading chats") as report:
            imported = read_chats(*files, progress=report)
        with progress("Storing messages") as report:
            placed = store_chats(store, imported.chats, report)
    others, new = imported.others, sum(is_new for _, _, is_new in placed)
    grown = sum(added > 0 and not is_new for _, added, is_new in placed)
    if as_json:
        rows = zip(placed, imported.chats, strict=True)
        write_json([{"id": id, "title": chat.title, "added": n} for (id, n, _), chat in rows])
    else:
        complain(f"imported {_chats(new)}")
    reports = {
        f"continued {_chats(grown)} that had grown": grown and not as_json,
        f"left {_chats(len(placed) - new - grown)} as before": len(placed) > new + grown,
        f"skipped {_chats(imported.empty)} without a message": imported.empty,
        f"skipped {others} file{'s' * (others > 1)} without chats": others,
        f"left out {len(imported.faults)} that cannot be read:": imported.faults,
    }
    for sentence in (sentence for sentence, is_so in reports.items() if is_so):
        complain(sentence)
    notes = [chat.note for chat in imported.chats if chat.note]
    for sentences in (imported.faults, notes):
        for sentence in sentences[:_MOST_SENTENCES]:
            complain(sentence)
        if (more := len(sentences) - _MOST_SENTENCES) > 0:
            complain(f"and {more:,} more of this kind")


@app.command()
def delete(
    chat_id: ChatArgument,
    yes: shared.YesOption = False,
) -> None:
    """Delete a chat with all its messages, for good."""
    with open_store() as store:
        chat = store.chat(chat_id)
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("to delete a chat, confirm with --yes")
            title = one_line(chat.title) or "Untitled chat"
            if not typer.confirm(f"Delete chat {chat_id}, {title}?", err=True):
                complain("nothing was deleted")
                raise typer.Exit(1)
        store.delete_chat(chat_id)


@app.command()
def restore(
    copy: Annotated[
        Path | None,
        typer.Option("--from", help="The copy. [default: the newest of those made each day]"),
    ] = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Put a copy of all chats in the place of their file, which is moved aside."""
    from chatapp.common.paths import database_path
    from chatapp.dialogue.store.backup import restore

    restored, aside = restore(database_path(), copy)
    with open_store() as store:
        count = len(_all_ids(store))
    if as_json:
        write_json(
            {"from": str(restored), "chats": count, "replaced": str(aside) if aside else None}
        )
        return
    complain(f"restored {_chats(count)} from {restored}")
    if aside is not None:
        complain(f"the file that was there is {aside}")


def _all_ids(store: "Store") -> list[int]:
    return [chat.id for chat in store.chats(limit=sys.maxsize)]


def _feedback(store: "Store", ids: list[int], format: FeedbackFormat, model: str | None) -> str:
    rows = [row for id in ids for row in feedback_rows(store, id, format)]
    chosen = rows if model is None else rows_of_model(rows, model)
    if rows and not chosen:
        known = ", ".join(sorted({str(row.get("model", "an unknown one")) for row in rows}))
        raise UserError(f"there is no such feedback on replies of {model}; there is of {known}")
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)


def _chats(count: int) -> str:
    return f"{count} chat" if count == 1 else f"{count} chats"


def _write_rich(*parts: "RenderableType") -> None:
    """Print Rich's layout. All foreign text in it has been made printable."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    console = Console(markup=False, highlight=False, emoji=False, width=width)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    write(capture.get(), verbatim=True)


def _date(seconds: float) -> str:
    return local_time(seconds).strftime("%Y-%m-%d %H:%M")


def _marked(snippet: str) -> "Text":
    """A search's snippet with its hits in reverse, or between asterisks without a terminal."""
    from rich.text import Text

    mark = "" if sys.stdout.isatty() else "**"
    text = Text()
    for part in re.split(r"(\x02[^\x03]*\x03)", snippet.replace("\n", " ")):
        shown = printable(part.strip("\x02\x03"))
        if part.startswith("\x02"):
            text.append(f"{mark}{shown}{mark}", style="reverse")
        else:
            text.append(shown)
    return text
