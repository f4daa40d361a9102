"""The base of every table of a configuration file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a configuration file. An unknown key is an error that names the key, so that a
    misspelt option never silently trains something else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
