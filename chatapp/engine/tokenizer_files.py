"""A model's tokenizer without the model: from its folder, or from a GGUF file.

Keep: no weights are read, and none need be there.
"""

from chatapp.engine.folder import ModelFiles, model_folder
from chatapp.engine.generation import PieceTokenizer
from chatapp.engine.tokenizer import NotByteLevel, load_plain_tokenizer, load_tokenizer


def chat_tokenizer(files: ModelFiles) -> tuple[PieceTokenizer, list[int]]:
    """The tokenizer that a chat with a model uses, and the tokens that it puts before each text.

    Raises ModelError.
    """
    if files.has_decoder:
        try:
            if files.family == "gpt2":
                return load_tokenizer(files.tokenizer), []
            return load_plain_tokenizer(files.tokenizer)
        except NotByteLevel:
            pass  # WordPiece, SentencePiece
    from chatapp.engine.transformers_tokenizer import open_tokenizer

    return open_tokenizer(files.tokenizer)


def read_tokenizer(name: str) -> PieceTokenizer:
    """The tokenizer of a model by its name. Raises ModelError.

    name: as `load_model` takes it, the folder of a tokenizer, or a GGUF file, which need hold no
        more than a vocabulary.
    """
    folder = model_folder(name)
    try:
        return load_tokenizer(folder)
    except NotByteLevel:
        from chatapp.engine.transformers_tokenizer import open_tokenizer

        return open_tokenizer(folder)[0]
