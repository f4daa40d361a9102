"""Masked models of transformers, such as BERT: what they fill into the gaps of a text."""

import threading
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from chatapp.engine.backends.transformers_loading import context_of, load_network, put_on
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import ContextOverflow, PieceTokenizer
from chatapp.engine.tokenizers import mask_token, open_framed_tokenizer


class MaskedModel:
    """A masked model, in float32.

    network: transformers' model. start, end: special tokens that it expects around a text. mask,
    mask_id: the spelling and the id of the token that hides another. context: tokens of the
    longest text.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: PieceTokenizer,
        *,
        name: str,
        start: Sequence[int],
        end: Sequence[int],
        mask: tuple[str, int],
    ) -> None:
        self.name, self.network, self.tokenizer = name, network.eval(), tokenizer
        self.start, self.end = list(start), list(end)
        self.mask, self.mask_id = mask
        self.context = context_of(network.config) - len(self.start) - len(self.end)
        entries = network.get_input_embeddings().weight.shape[0]
        self.vocabulary = min(tokenizer.size, entries)
        self.lock = threading.Lock()

    @classmethod
    def load(cls, files: ModelFiles, *, name: str, device: str = "cpu") -> Self:
        """Load from a folder in Hugging Face layout. device: see `device_for`. Raises
        ModelError."""
        network = put_on(device, load_network(files), files)
        tokenizer, start, end = open_framed_tokenizer(files.tokenizer)
        mask = mask_token(files.tokenizer)
        return cls(network, tokenizer, name=name, start=start, end=end, mask=mask)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, in which `mask` is the mask; spaces before it are dropped.

        Raises ContextOverflow for a text that is longer than the window.
        """
        first, *rest = text.split(self.mask)
        ids = self.tokenizer.encode(first.rstrip(" ") if rest else first)
        for number, part in enumerate(rest):
            is_last = number == len(rest) - 1
            ids += [self.mask_id, *self.tokenizer.encode(part if is_last else part.rstrip(" "))]
        if len(ids) > self.context:
            raise ContextOverflow(
                f"the text has {len(ids):,} tokens, and the model reads {self.context:,}"
            )
        return ids

    def piece(self, id: int) -> str:
        """A token's own text for display."""
        return self.mask if id == self.mask_id else self.tokenizer.piece(id)

    def run(self, rows: Sequence[Sequence[int]], **options: Any) -> Any:
        """The network's output for rows of one length, framed. options: of its forward pass."""
        framed = [[*self.start, *row, *self.end] for row in rows]
        ids = torch.tensor(framed, device=self.network.device)
        with torch.inference_mode():
            return self.network(input_ids=ids, **options)

    def without_frame(self, values: Tensor, size: int) -> Tensor:
        """The part of (…, tokens, n) that belongs to a text of `size` tokens."""
        first = len(self.start)
        return values[..., first : first + size, :]
