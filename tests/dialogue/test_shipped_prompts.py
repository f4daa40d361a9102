"""The templates of this program give the prompts and masks on which earlier models were trained.

The recorded chats are odd on purpose: calls, passages, unanswered messages, typed markers. The
digests are those of the code before the templates were Jinja programs.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import pytest
from fakes import ScriptedModel

from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.model import ContextOverflow
from chatapp.engine.models.resolving import BUNDLED_FOLDER, find_model
from chatapp.engine.tokenizers import chat_tokenizer
from chatapp.prompting.messages import Call, Message
from chatapp.prompting.template import TEMPLATES
from finetune.data.encoding import ChatEncoder

RECORDED = json.loads(Path(__file__).with_name("shipped_prompts.json").read_text())
TEXTS = {None: None, **dict(enumerate(RECORDED["texts"]))}
WINDOWS = (90, 250, 4000)


def digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:10]


def figures(name, chat):
    """The digests of a chat's prompts in each window, and of its training example."""
    template, (tokenizer, _) = TEMPLATES[name], chat_tokenizer(find_model(str(BUNDLED_FOLDER)))
    exchanges = [
        Exchange(TEXTS[user], TEXTS[reply], "", tuple(parts), tuple(Call(*call) for call in calls))
        for user, reply, parts, calls in chat["exchanges"]
    ]
    digests = []
    for window in WINDOWS:
        model = ScriptedModel([], context=window)
        model.tokenizer = tokenizer
        writer = writer_for(model, template)
        for end, newest in enumerate(exchanges[:-1]):  # a writer knows what it has written
            with suppress(ValueError, ContextOverflow):
                asked = [*exchanges[:end], Exchange(newest.user)]
                writer.write(TEXTS[chat["system"]], asked, max_tokens=40)
        try:
            prompt = writer.write(TEXTS[chat["system"]], exchanges, max_tokens=40)
        except (ValueError, ContextOverflow) as error:
            digests.append(digest(str(error)))
            continue
        segments = [(part.kind, part.text) for part in prompt.segments]
        digests.append(digest([segments, prompt.ids, prompt.dropped, writer.stop]))
    row = [
        Message(role, TEXTS[text], call=call and Call(*call), learnt=learnt)
        for role, text, call, learnt in chat["row"]
    ]
    (pieces,) = ChatEncoder(template, tokenizer).encode(row, tuple(chat["tools"]))
    return [*digests, digest([[piece.span, piece.ids, piece.may_be_cut] for piece in pieces])]


@pytest.mark.parametrize("name", ["plain", "alpaca", "chat"])
def test_prompts_and_masks_are_as_recorded(name):
    computed = [" ".join(figures(name, chat)) for chat in RECORDED["chats"]]
    assert computed == RECORDED["digests"][name]
