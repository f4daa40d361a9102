"""`finetune filter`: the documents of a pool that are most like a good text."""

import json
from pathlib import Path
from typing import Annotated

import typer

from finetune.console import errors_in_words, print_answer


def filter_documents(
    pool: Annotated[str, typer.Argument(help="documents to choose from: a file or a folder")],
    like: Annotated[str, typer.Option(help="good text, a file or a folder")],
    output: Annotated[Path, typer.Option(help="the chosen documents, a .jsonl file")],
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="share of the documents to keep, the likest")
    ] = 0.5,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="keep by chance, the likelier the more alike: GPT-3")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the classifier and of --pareto")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Keep the pretraining documents that are most like a good text, by a linear classifier."""
    with errors_in_words() as console:
        from finetune.data.quality import filter_pool

        chosen = filter_pool(pool, like, output, share=share, pareto=pareto, seed=seed)
        for line in chosen.lines():
            console.print(line, markup=False)
        print_answer(json.dumps(chosen.document()) if as_json else str(output))
