"""From text to token ids and back: our byte-level BPE, and the tokenizers of transformers."""

from chatapp.engine.decoder.families import checkpoint_of
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers.byte_level import NotByteLevel, load_plain_tokenizer, load_tokenizer


def chat_tokenizer(files: ModelFiles) -> tuple[PieceTokenizer, list[int]]:
    """The tokenizer for a chat with a model, and the tokens that it puts before each text.

    Raises ModelError.
    """
    if files.has_decoder:
        try:
            if checkpoint_of(files.family, files.config_file).has_plain_tokenizer:
                return load_tokenizer(files.tokenizer), []
            return load_plain_tokenizer(files.tokenizer)
        except NotByteLevel:
            pass  # WordPiece, SentencePiece
    from chatapp.engine.tokenizers.transformers_tokenizer import open_tokenizer

    return open_tokenizer(files.tokenizer)
