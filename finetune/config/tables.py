"""The base of every table of a configuration, and the tables [[tasks]]: what a model is asked while
it learns.
"""

import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chatapp.common.userfiles import quoted, shown


class Section(BaseModel):
    """A table of a configuration file. An unknown key is an error that names the key, so that a
    misspelt option never silently trains something else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Metric = Literal["loss", "accuracy", "macro_f1", "exact_match", "pearson", "spearman"]
"""The figures of held-out rows."""


def _checked_name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"is {shown(name)}, expected small letters, digits and _, beginning with a letter"
        )
    return name


class Task(Section):
    """What a model is asked at each measurement: a prompt file with rows, or last words."""

    name: Annotated[str, AfterValidator(_checked_name)] = Field(
        description="the name of its figure, which train.metric_for_best_model may choose"
    )
    prompt: str = Field(
        "",
        description="a prompt file, whose first metric is the figure; without one the last word "
        "of each text of test is predicted",
    )
    test: str = Field(min_length=1, description="a file of rows with their answers, or of texts")
    limit: int = Field(100, ge=1, description="the most rows, drawn from the file")


def _no_name_twice(tasks: list[Task]) -> list[Task]:
    names = [task.name for task in tasks]
    for name in names:
        if name in get_args(Metric) or names.count(name) > 1:
            raise ValueError(
                f"has a task named {quoted(name)}, which is the name of another figure; "
                "choose another name"
            )
    return tasks


Tasks = Annotated[list[Task], AfterValidator(_no_name_twice)]
TASKS = "what the model is asked at each measurement of held-out rows, each a table of its own"
