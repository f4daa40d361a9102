"""`chatapp docs`: passages of documents, without a model."""

from typing import Annotated

import typer

from chatapp.commands.console import complain, reading_documents, write, write_json
from chatapp.commands.options import JsonOption, MethodOption
from chatapp.common.command_groups import number_option
from chatapp.tasks.files.documents import LIMIT, PASSAGES, DocumentSet

app = typer.Typer(no_args_is_help=True, help="Search documents, without a model.")


@app.callback()
def docs() -> None:
    """Makes `search` a subcommand, although it is the only one."""


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    paths: Annotated[list[str], typer.Argument(help="Files, folders and patterns.")],
    limit: Annotated[int, number_option(LIMIT)] = PASSAGES,
    method: MethodOption = "bm25",
    as_json: JsonOption = False,
) -> None:
    """Find the passages of documents that are nearest to a query, the nearest first."""
    from chatapp.dialogue.documents.search import Documents

    documents = Documents(DocumentSet(tuple(paths), method, limit))
    with reading_documents() as show:
        coverage = documents.renew(show)
        passages = documents.search(query, show)
    if as_json:
        keys = ("file", "place", "score", "text")
        write_json({"passages": [{key: getattr(it, key) for key in keys} for it in passages]})
        return
    for number, passage in enumerate(passages, 1):
        write(f"[{number}] {passage.file}, {passage.place} ({passage.score:.3g})\n")
        write(f"{passage.text}\n\n")
    complain(f"{len(passages)} of {coverage}")
