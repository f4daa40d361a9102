"""Models of an encoder and a decoder, such as T5 and BART, as a `LanguageModel`.

The encoder reads a whole prompt in both directions; the decoder writes the reply from left to right
and attends to the encoder's output. So a "prompt" is the encoder's input, and a "continuation" the
decoder's output.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from chatapp.engine.backends.transformers_internals import cache_arguments, cache_of
from chatapp.engine.backends.transformers_loading import load_network, put_on
from chatapp.engine.backends.transformers_model import NetworkModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.generation import CancelCheck
from chatapp.engine.model import PieceTokenizer, Request
from chatapp.engine.tokenizers import open_framed_tokenizer


@dataclass(slots=True)
class _Memory:
    """The last prompt and its continuation.

    encoded: the encoder's output. past: keys and values of the decoder; None before its first
    token. written: the decoder's tokens in `past`.
    """

    prompt: list[int] = field(default_factory=list)
    encoded: Any = None
    past: Any = None
    written: list[int] = field(default_factory=list)


class EncoderDecoderModel(NetworkModel):
    """A model of transformers with an encoder and a decoder.

    start, end: tokens that its encoder expects around a text. opening: the tokens after which the
    decoder begins a reply. context: the longest prompt and reply together, although each alone
    could be as long.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PieceTokenizer,
        *,
        name: str,
        files: ModelFiles | None = None,
        start: Sequence[int] = (),
        end: Sequence[int] = (),
    ) -> None:
        encoder = model.get_encoder()
        super().__init__(
            model,
            tokenizer,
            name=name,
            files=files,
            layers=encoder.config.num_hidden_layers,
            start=start,
            end=end,
        )
        self.opening = decoder_opening(model)
        self._encoder = encoder
        self._memory = _Memory()
        self._prompt_size: int | None = None

    @classmethod
    def load(
        cls, files: ModelFiles, *, name: str = "", device: str = "cpu"
    ) -> "EncoderDecoderModel":
        """Load from a folder in Hugging Face layout; a PEFT adapter is merged into its base.

        device: see `device_for`. Raises ModelError.
        """
        model = put_on(device, load_network(files), files)
        tokenizer, start, end = open_framed_tokenizer(files.tokenizer)
        name = name or str(files.path)
        return cls(model, tokenizer, name=name, files=files, start=start, end=end)

    def _with_own_cache(self) -> Self:
        other = copy.copy(self)
        other._memory = _Memory()
        return other

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`."""
        return super(EncoderDecoderModel, self.replying_to(len(request.ids))).generate(request)

    def replying_to(self, size: int) -> Self:
        """The same model, for which the first `size` tokens of a sequence are the prompt.

        The generation loop and steppers know one sequence. A copy, which shares everything else,
        knows where its prompt ends.
        """
        writing = copy.copy(self)
        writing._prompt_size = size
        return writing

    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int] = ()
    ) -> tuple[Tensor, int]:
        """See `LocalGenerator.next_logits`. Outside of `generate`, all of `ids` is the prompt."""
        size = len(ids) if self._prompt_size is None else self._prompt_size
        reused = self._read(ids[:size], raise_if_cancelled)
        raise_if_cancelled()
        memory, reply = self._memory, [*self.opening, *ids[size:]]
        known = len(memory.written)
        if memory.written != reply[:known] or known == len(reply):
            memory.past, memory.written, known = None, [], 0
        output = self.network(
            encoder_outputs=memory.encoded,
            decoder_input_ids=self._on_device([reply[known:]]),
            **cache_arguments(memory.past),
        )
        memory.past, memory.written = cache_of(output, self.network), reply
        return self._real(output.logits[0, -1]), reused

    def forget(self) -> None:
        memory = self._memory
        memory.prompt, memory.encoded, memory.past, memory.written = [], None, None, []

    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        tokens = self._on_device([[*self.start, *ids, *self.end]])
        states = self._encoder(input_ids=tokens, output_hidden_states=True).hidden_states
        first = len(self.start)
        return torch.as_tensor(states[layer][0, first : first + len(ids)]).cpu()

    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        """See `LocalGenerator.score_rows`: the decoder's log-probabilities of the continuation."""
        scores: list[list[float]] = [[] for _ in rows]
        prompts = [list(row[:first]) for row, first in zip(rows, firsts, strict=True)]
        # Sorted, so that rows with the same prompt are consecutive.
        for i in sorted(range(len(rows)), key=prompts.__getitem__):
            with self.lock, torch.inference_mode():
                self._read(prompts[i], lambda: None)
                scores[i] = self._logprobs(rows[i][firsts[i] :])
        return scores

    def _logprobs(self, continuation: Sequence[int]) -> list[float]:
        """Log-probabilities of the decoder's tokens after the encoded prompt."""
        tokens = self._on_device([[*self.opening, *continuation[:-1]]])
        output = self.network(encoder_outputs=self._memory.encoded, decoder_input_ids=tokens)
        logits = self._real(output.logits[0, len(self.opening) - 1 :])
        values = logits.log_softmax(1).gather(1, torch.tensor(continuation)[:, None])
        return [float(value) for value in values]

    def _read(self, prompt: Sequence[int], raise_if_cancelled: CancelCheck) -> int:
        """Encode a prompt, unless it is the cached one; return the number of cached tokens."""
        memory = self._memory
        if memory.encoded is not None and memory.prompt == list(prompt):
            return len(prompt)
        self.forget()
        tokens = self._on_device([[*self.start, *prompt, *self.end]])
        with _before_each_part(self._encoder, raise_if_cancelled):
            memory.encoded = self._encoder(input_ids=tokens, return_dict=True)
        memory.prompt = list(prompt)
        return 0


def decoder_opening(model: Any) -> list[int]:
    """The decoder's tokens before a reply, as in transformers' `generate`.

    A model that names none begins with the padding token, as T5 in its training. Raises ModelError.
    """
    chosen = model.generation_config
    for id in (chosen.decoder_start_token_id, chosen.bos_token_id, model.config.pad_token_id):
        if isinstance(id, int):
            forced = chosen.forced_bos_token_id
            return [id] if forced is None else [id, int(forced)]
    raise ModelError(
        f"{model.name_or_path}: the model does not say what its decoder begins with; expected "
        "decoder_start_token_id in its generation_config.json or config.json"
    )


@contextmanager
def _before_each_part(network: Any, look: CancelCheck) -> Iterator[None]:
    """Call `look` repeatedly while a network computes; an exception of it ends the computation."""
    hooks = [
        part.register_forward_pre_hook(lambda *arguments: look()) for part in network.modules()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
