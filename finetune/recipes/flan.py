"""Write the rows of `flan.toml`: phrased prompts with their clusters, and labelled questions.

    python -m finetune.recipes.flan PROMPTS QUESTIONS OUT

PROMPTS is JSONL, also with .gz, with `template`, `prompt` and `completion` a line, where the
template's name begins with its data set's, as in the Public Pool of Prompts. QUESTIONS is the
TREC file of question types, `COARSE:fine question` a line. OUT receives prompts.jsonl (with
the cluster of Sanh et al. 2021 a row) and questions.jsonl.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chatapp.rows.reading import BadRow, tables
from finetune.config.sections import ConfigError, TrainSource
from finetune.data.formats import text_field
from finetune.recipes import run, write_rows

FIELDS = ("template", "prompt", "completion")

# The task clusters of Sanh et al. (2021, figure 2), by the beginning of a template's name.
CLUSTERS = {
    "extractive question answering": "adversarial_qa quoref ropes duorc",
    "multiple-choice question answering": (
        "commonsense_qa cosmos_qa dream qasc quarel quartz sciq social_i_qa wiki_hop wiqa"
    ),
    "closed-book question answering": "kilt_tasks_hotpotqa wiki_qa",
    "structure to text": "common_gen wiki_bio",
    "sentiment": "amazon_polarity app_reviews imdb rotten_tomatoes yelp_review_full",
    "summarization": "cnn_dailymail gigaword multi_news samsum xsum",
    "topic classification": "ag_news dbpedia_14 trec",
    "paraphrase identification": "glue_mrpc glue_qqp paws",
}

COARSE = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}


def cluster_of(template: str) -> str:
    """The task cluster of a template. Raises ConfigError for one of another data set."""
    for cluster, names in CLUSTERS.items():
        if template.startswith(tuple(f"{name}_" for name in names.split())):
            return cluster
    raise ConfigError(f"the template {template!r} is of no data set that has a cluster here")


def prompts(path: Path) -> Iterator[dict[str, str]]:
    """The phrased rows that have an answer, each with its cluster."""
    for table in tables(TrainSource.model_validate({"path": str(path)})):
        for row in table.rows():
            if isinstance(row, BadRow):
                raise row
            if str(row.fields.get("completion", "x")).strip():
                texts = {name: text_field(row, name) for name in FIELDS}
                yield {**texts, "cluster": cluster_of(texts["template"])}


def questions(path: Path) -> Iterator[dict[str, str]]:
    """The labelled questions, labels in words."""
    for number, line in enumerate(path.read_text(encoding="latin-1").split("\n"), 1):
        label, _, text = line.partition(" ")
        if text.strip():
            kind = label.partition(":")[0]
            if kind not in COARSE:
                raise ConfigError(
                    f"{path}, line {number}: begins with {label!r}, expected one of "
                    f"{', '.join(COARSE)} and a colon"
                )
            yield {"text": text.strip(), "label": COARSE[kind]}


def build(
    prompt_file: Annotated[Path, typer.Argument(help="phrased prompts", exists=True)],
    question_file: Annotated[Path, typer.Argument(help="TREC's questions", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
) -> None:
    """Write both files and print the number of rows per cluster."""
    phrased = list(prompts(prompt_file))
    write_rows(out / "questions.jsonl", questions(question_file), "rows")
    write_rows(out / "prompts.jsonl", phrased, "rows")
    for cluster, count in Counter(row["cluster"] for row in phrased).most_common():
        print(f"  {count:,} of {cluster}")


if __name__ == "__main__":
    run(build)
