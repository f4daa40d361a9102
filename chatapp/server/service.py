"""One model and what it answers: completions, chats, embeddings, tokens.

Invariant: a reply is what `chatapp ask` and `complete` give for the same text, sampling and seed.
A text is cut into tokens on a thread, so that a long one holds up no other reply.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Choices
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import Template
from chatapp.server import bodies
from chatapp.server.prompts import BadRequestError, chat_prompt, ids_of
from chatapp.server.replies import ChatReplies, Completions, Document, Replies
from chatapp.server.worker import Worker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Service:
    """Answers requests to one model.

    template: of its chats. choices: the sampling that a request may change. worker: computes.
    """

    def __init__(
        self, model: LanguageModel, template: Template, choices: Choices, name: str
    ) -> None:
        self.model, self._template, self._choices, self._name = model, template, choices, name
        self.worker = Worker(model)

    def close(self) -> None:
        """End all replies."""
        self.worker.close()

    async def answer(self, body: bodies.Body) -> Document | AsyncGenerator[Document]:
        """The answer to a request, or the chunks of its stream."""
        if isinstance(body, bodies.EmbeddingBody):
            return await self._embed(body)
        if isinstance(body, bodies.TokenizeBody):
            return await asyncio.to_thread(self._tokenize, body)
        if isinstance(body, bodies.DetokenizeBody):
            return await asyncio.to_thread(self._detokenize, body)
        assert isinstance(body, bodies.Writing)
        replies = await asyncio.to_thread(self._replies, body)
        if not body.stream:
            return await replies.whole(self.worker, self._name)
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        return replies.chunks(self.worker, self._name, with_usage=with_usage)

    def _replies(self, body: bodies.Writing) -> Replies:
        if isinstance(body, bodies.CompletionBody):
            return Completions(self.model, self._choices, body)
        assert isinstance(body, bodies.ChatBody)
        return ChatReplies(self.model, self._template, self._choices, body)

    async def _embed(self, body: bodies.EmbeddingBody) -> Document:
        """Mean hidden states of texts after the final norm, for similarities."""
        texts = await asyncio.to_thread(ids_of, self.model, body.input, "input")
        vectors = [
            await self.worker.call(lambda ids=ids: self.model.embed(ids))  # type: ignore[misc]
            for ids in texts
        ]
        data = [
            {"object": "embedding", "index": place, "embedding": _vector(vector, body)}
            for place, vector in enumerate(vectors)
        ]
        count = sum(map(len, texts))
        return {
            "object": "list",
            "data": data,
            "model": self._name,
            "method": "mean of the hidden states after the final norm",
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def _tokenize(self, body: bodies.TokenizeBody) -> Document:
        """The tokens of a text or of a chat's prompt."""
        if body.messages is not None:
            chat = bodies.ChatBody(messages=body.messages)
            ids = list(chat_prompt(self.model, self._template, chat, 1).prompt.ids)
        elif body.prompt is not None:
            special = {} if body.parse_special is False else self.model.tokenizer.special
            id = special.get(body.prompt)
            text = without_surrogates(body.prompt)
            ids = self.model.tokenizer.encode(text) if id is None else [id]
        else:
            raise BadRequestError("there is neither prompt nor messages", "prompt")
        return {"tokens": ids, "count": len(ids), "max_model_len": self.model.context}

    def _detokenize(self, body: bodies.DetokenizeBody) -> Document:
        """The text of tokens."""
        if not all(0 <= id < self.model.tokenizer.size for id in body.tokens):
            raise BadRequestError("tokens has ids that are not in the vocabulary", "tokens")
        return {"prompt": self.model.tokenizer.decode(body.tokens)}

    def tokenizer_info(self) -> Document:
        """What a client has to know about the vocabulary."""
        tokenizer = self.model.tokenizer
        names = {id: name for name, id in tokenizer.special.items()}
        return {
            "vocab_size": tokenizer.size,
            "eos_token": names.get(tokenizer.end_id),
            "eos_token_id": tokenizer.end_id,
            "bos_token_ids": list(self.model.start),
            "model_max_length": self.model.context,
            "special_tokens": dict(tokenizer.special),
        }


def _vector(vector: "NDArray[np.float32]", body: bodies.EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
