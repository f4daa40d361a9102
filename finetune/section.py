"""What every table of a configuration file has in common.

Keep: a key that is not in the model is an error that names it, so a misspelt option never
trains something else in silence.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
