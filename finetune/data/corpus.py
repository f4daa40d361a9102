"""Documents to tokens: reads training files, trains a byte-level BPE, encodes."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from chatapp.prompting.messages import END_OF_TEXT, Segment
from chatapp.prompting.template import ShippedTemplate
from chatapp.rows.reading import BadRow, tables
from finetune.config.sections import ConfigError, TrainSource
from finetune.data.encoding import dialogue_segments
from finetune.data.formats import detect
from finetune.data.split import is_held_out, text_key
from finetune.data.turns import regular

Ids = NDArray[np.int32]
Document = list[Segment]
"""A training text; the end-of-text token follows it."""

MASK = "[MASK]"
"""The token that hides another, of a masked model."""

# GPT-2's own pattern with one change: digits are separate and without a leading space, so that a
# number is always spelled in the same ten tokens.
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def read_documents(path: Path, template: ShippedTemplate) -> Iterator[Document]:
    """The documents of a file: of any layout of `formats`, or one plain text.

    Raises ConfigError naming file, line and the expected content.
    """
    for table in tables(TrainSource.model_validate({"path": str(path)})):
        for row in table.rows():
            if isinstance(row, BadRow):
                raise row
            example = detect(row).read(row)
            if not example.messages:
                texts = example.parts or (example.text,)
                yield [Segment("instruction", text) for text in texts]
                continue
            messages = regular(example.messages, example.location)
            document = [s for s, _ in dialogue_segments(template, messages, example.tools)]
            # Otherwise the end-of-text token that closes every document would come twice.
            if document[-1].kind == "end":
                document.pop()
            yield document


def document_key(document: Document) -> str:
    """The key of a document's text, for `is_held_out`."""
    return text_key("\0".join(segment.text for segment in document))


def train_tokenizer(
    documents: Iterable[Document], vocabulary: int, *, has_mask: bool = False
) -> Tokenizer:
    """A byte-level BPE of `vocabulary` entries; id 0 is the end-of-text token.

    has_mask: of a masked model. Its id 1 is the mask, and a text is framed by end-of-text tokens.
    """
    end = END_OF_TEXT.text
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end, MASK] if has_mask else [end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (segment.text for document in documents for segment in document)
    tokenizer.train_from_iterator(texts, trainer)
    if has_mask:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{end} $A {end}", special_tokens=[(end, 0)]
        )
    return tokenizer


def end_id(tokenizer: Tokenizer) -> int:
    """The id of the end-of-text token. Raises ConfigError when the vocabulary has none."""
    end = tokenizer.token_to_id(END_OF_TEXT.text)
    if end is None:
        raise ConfigError(f"the tokenizer has no token {END_OF_TEXT.text}")
    return end


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer) -> list[Ids]:
    """Token ids of each document, closed by the end-of-text token.

    Segments are encoded one by one; text never becomes a special token.
    """
    end = end_id(tokenizer)
    tokenizer.encode_special_tokens = True
    texts = list({s.text for document in documents for s in document if s.kind != "end"})
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    known = {text: e.ids for text, e in zip(texts, encodings, strict=True)}
    encoded = []
    for document in documents:
        ids: list[int] = []
        for segment in document:
            ids += [end] if segment.kind == "end" else known[segment.text]
        encoded.append(np.array([*ids, end], dtype=np.int32))
    return encoded


def split_off(
    documents: Sequence[Ids], keys: Iterable[str], share: float, long: int
) -> tuple[list[Ids], list[Ids]]:
    """Documents for training, and held-out ones, about a `share` of the text.

    keys: of the documents, see `is_held_out`. A document longer than `long` tokens is cut: its end
    is held out. Where chance holds out none of several documents, it is the last one.
    """
    sides: tuple[list[Ids], list[Ids]] = ([], [])
    for document, key in zip(documents, keys, strict=True):
        if share and len(document) > long:
            cut = round(len(document) * (1 - share))
            sides[0].append(document[:cut])
            sides[1].append(document[cut:])
        else:
            sides[is_held_out(key, share)].append(document)
    train, held_out = sides
    if share and not held_out and len(train) > 1:
        held_out.append(train.pop())
    return sides


def cut_windows(documents: Sequence[Ids], length: int, seed: int) -> Ids:
    """Shuffle, join and cut into windows.

    Returns (windows, length) token ids. Documents cross window borders, as in GPT-2's own training;
    the rest at the end, shorter than a window, is left out.
    """
    order = np.random.default_rng(seed).permutation(len(documents))
    stream = np.concatenate([np.empty(0, dtype=np.int32), *(documents[i] for i in order)])
    windows = len(stream) // length
    return stream[: windows * length].reshape(windows, length)


def in_lanes(windows: Ids, rows: int) -> Ids:
    """Consecutive windows in an order in which a batch of `rows` continues the one before it, row
    by row: each row of the batches is a part of the text. The windows of a rest are left out.
    """
    steps = len(windows) // rows
    length = windows.shape[1]
    lanes = windows[: rows * steps].reshape(rows, steps, length)
    return lanes.swapaxes(0, 1).reshape(rows * steps, length)
