"""What a file says of a tensor before it is read.

Keep: the same for every kind of file, and free of torch.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor of a model before it is read.

    name: as in Hugging Face's checkpoints. dtype: in the words of the file: "F16", "Q4_1" …
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
