"""`/v1/inspect`: the views of the microscope of a request's text or chat."""

from typing import Any

from chatapp.common.parameters import Sampling
from chatapp.common.userfiles import Progress, suggestion
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.server.bodies import ChatBody, InspectBody
from chatapp.server.prompts import BadRequestError, changes_in, chat_prompt, ids_of

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
