"""What a server tells of a text or a chat without a reply to it: its tokens, and at `/v1/inspect`
the views of the microscope.
"""

from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Sampling
from chatapp.common.userfiles import Progress, suggestion
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.server.bodies import ChatBody, DetokenizeBody, InspectBody, TokenizeBody
from chatapp.server.prompts import (
    BadRequestError,
    changes_in,
    chat_prompt,
    ids_of,
    refuse_endless,
)

MOST_TOKENS = 512
"""Of a text that is looked at."""


def inspect(
    body: InspectBody,
    model: LanguageModel,
    template: ChatTemplate,
    sampling: Sampling,
    go_on: Progress,
) -> dict[str, Any]:
    """What the views of a request say, and what was changed; `go_on` raises to stop. Raises
    BadRequestError, UserError.
    """
    from chatapp.lab.encoder_decoder import reply_of
    from chatapp.lab.view import Subject, token_position
    from chatapp.lab.views import VIEWS

    wanted = body.views if isinstance(body.views, dict) else {name: {} for name in body.views}
    for name in wanted:
        if name not in VIEWS:
            hint = suggestion(name, VIEWS) or f"; there are {', '.join(VIEWS)}"
            raise BadRequestError(f"views: there is no view {name[:40]!r}{hint}", "views")
    chosen = {name: VIEWS[name].options_of(values) for name, values in wanted.items()}
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("expected either prompt or messages", "prompt")
    answer: dict[str, Any] = {}
    if body.messages is not None:
        chat = chat_prompt(model, template, ChatBody(messages=body.messages), 1)
        ids, segments = tuple(chat.prompt.ids), tuple(chat.prompt.segments)
        answer |= chat.loss
    else:
        (read,), segments = ids_of(model, body.prompt, "prompt"), ()
        ids = tuple(read)
    if len(ids) > MOST_TOKENS:
        raise BadRequestError(
            f"the text is {len(ids)} tokens long; views take at most {MOST_TOKENS}"
        )
    changes = changes_in(model, body.changes).added_after(len(ids))
    start, ids = len(ids), (*ids, *reply_of(model, ids))
    answer |= {"changes": changes.words} if changes else {}
    for name, options in chosen.items():
        go_on(0, 1)
        place = token_position(getattr(options, "token", None), len(ids))
        subject = Subject(model, ids, place, start, None, changes)
        subject.sampling, subject.segments = sampling, segments
        subject.progress = go_on
        answer |= VIEWS[name].document(subject, options)
    return answer


def tokenized(body: TokenizeBody, model: LanguageModel, template: ChatTemplate) -> dict[str, Any]:
    """The tokens of a text or of a chat's prompt. Raises BadRequestError."""
    loss: dict[str, Any] = {}
    if body.messages is not None:
        chat = chat_prompt(model, template, ChatBody(messages=body.messages), 1)
        ids, loss = list(chat.prompt.ids), chat.loss
    elif body.prompt is not None:
        special = {} if body.parse_special is False else model.tokenizer.special
        id = special.get(body.prompt)
        text = without_surrogates(body.prompt)
        refuse_endless(model, [text], "prompt")
        ids = model.tokenizer.encode(text) if id is None else [id]
    else:
        raise BadRequestError("there is neither prompt nor messages", "prompt")
    return {"tokens": ids, "count": len(ids), "max_model_len": model.context} | loss


def detokenized(body: DetokenizeBody, model: LanguageModel) -> dict[str, Any]:
    """The text of tokens. Raises BadRequestError."""
    if len(body.tokens) > model.context:
        raise BadRequestError("tokens has more than the model's window", "tokens")
    if not all(0 <= id < model.tokenizer.size for id in body.tokens):
        raise BadRequestError("tokens has ids that are not in the vocabulary", "tokens")
    return {"prompt": model.tokenizer.decode(body.tokens)}


def tokenizer_info(model: LanguageModel) -> dict[str, Any]:
    """What a client has to know about the vocabulary."""
    tokenizer = model.tokenizer
    names = {id: name for name, id in tokenizer.special.items()}
    return {
        "vocab_size": tokenizer.size,
        "eos_token": names.get(tokenizer.end_id) if tokenizer.names_end else None,
        "eos_token_id": tokenizer.end_id if tokenizer.names_end else None,
        "bos_token_ids": list(model.start),
        "model_max_length": model.context,
        "special_tokens": dict(tokenizer.special),
    }
