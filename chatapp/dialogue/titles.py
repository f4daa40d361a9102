"""Titles that a chat's own model writes.

Invariant: a title is used only if it is one: a small model often writes something else, and then
the first message remains the title.
"""

import re
import threading
from dataclasses import replace

from chatapp.dialogue.reply import reply_events
from chatapp.dialogue.session import Session
from chatapp.dialogue.writers.prompt import trimmed
from chatapp.engine.events import Finished
from chatapp.engine.model import Request
from chatapp.prompting.chat_template import ChatTemplate

_REQUEST = "Give this conversation a short title, two to five words. Answer with the title only."
_TOKENS = 16
_WORDS = range(2, 8)
_EMPTY = {"and", "are", "for", "how", "the", "what", "with", "you", "your"}
_TO_THE_USER = re.compile(r"(i|i'm|i'll|here|here's|sure|you|title|this conversation)\b", re.I)
"""How a reply begins that is not a title."""


def suggest_title(session: Session, cancel: threading.Event) -> str:
    """A title for the session's chat, "" if its model writes none.

    Raises the errors of rendering and of the model.
    """
    writes = session.model.takes_messages or isinstance(session.template, ChatTemplate)
    if not (writes and session.writer.goes_on and not session.chat.interventions.words):
        return ""
    prompt = session.render(session.chat.messages, _REQUEST, ())
    sampling = replace(session.sampling, temperature=0.0, max_tokens=_TOKENS)
    request = Request(prompt.ids, sampling, session.writer.stop, cancel)
    text = ""
    for event in trimmed(reply_events(session.model, prompt, request, None)):
        text += event.text
        if isinstance(event, Finished) and event.reason != "stop":
            return ""
    return title_in(text, " ".join(message.text for message in session.chat.messages))


def title_in(text: str, chat: str) -> str:
    """A title that a model wrote, "" if it is none: it names something that the chat names."""
    title = text.strip().strip("\"'*#. ").removeprefix("Title: ")
    words = re.findall(r"\w+", title)
    is_short = len(words) in _WORDS and len(title) <= 60 and "\n" not in title
    named = {word.lower() for word in words if len(word) > 2} - _EMPTY
    names = named & {word.lower() for word in re.findall(r"\w+", chat)}
    return title if is_short and names and not _TO_THE_USER.match(title) else ""
