"""The model's input for a chat: a reply with its prompt, a draft, and their lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chatapp.common.foreign import without_surrogates
from chatapp.dialogue.session import Session, exchange_of, message_text, messages_in, up_to_call
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.dialogue.writers.prompt import MessageTooLong, Prompt
from chatapp.engine.events import Token
from chatapp.engine.model import ContextOverflow
from chatapp.prompting.messages import Segment


@dataclass(frozen=True, slots=True)
class PromptReading:
    """The model's input for one reply, and the reply so far.

    reply: its row; None after a user's message. segments, reply_ids: the reply, as an open one in a
    prompt; the ids are the drawn ones while the session remembers them. drawn: those with
    alternatives from a server's model; empty for other models. left_out: old messages that do not
    fit. outdated: whether the reply was generated from another prompt, because the chat's
    instructions, template or prompt file, or the model's window, have changed; False while a server
    of its tools has not listed them, because the prompt is then rendered without its tools.
    """

    prompt: Prompt
    reply: StoredMessage | None
    reply_ids: tuple[int, ...]
    left_out: tuple[StoredMessage, ...]
    outdated: bool = False
    drawn: tuple[Token, ...] = ()
    segments: tuple[Segment, ...] = ()


class Usage(NamedTuple):
    """used: tokens of the current prompt with its reply so far. window: the model's, in tokens.
    dropped: the number of messages of the current path out of context.
    """

    used: int
    window: int
    dropped: int


def read(session: Session, message_id: int) -> PromptReading:
    """The model's input up to a message: a reply with its prompt, or the prompt for the reply to a
    user's message.

    Raises MessageTooLong when it does not fit the window.
    """
    chat = session.chat
    message = session.message(message_id, "user", "assistant")
    path = chat.path_to(message_id)
    reply = path.pop() if message.role == "assistant" else None
    sources = session.find_sources(path[-1].text) if reply is None else reply.sources
    prompt = session.render(path, None, sources)
    sent = chat.store.sent_prompt(message_id)
    outdated = sent not in (None, without_surrogates(prompt.text))
    if outdated and chat.tools:
        registry = session.find_tools()
        outdated = not any(registry.may_have(name) for name in chat.tools)
    ids: list[int] = []
    segments: list[Segment] = []
    if reply is not None and reply.calls:  # everything up to the last call belongs to the prompt
        prompt = session.render([*path, up_to_call(reply)], None, sources)
        segments = session.writer.render_rest(exchange_of(reply))
        ids = session.writer.rest_ids(exchange_of(reply))
    elif reply is not None:
        segments = session.writer.render_reply(reply.text)
        ids = session.writer.written_ids(prompt, reply.text, reply.thoughts)
    room = session.model.context - len(prompt.ids)
    return PromptReading(
        prompt,
        reply,
        tuple(ids[:room]),
        _left_out(prompt, path),
        outdated=outdated,
        drawn=session.drawn(message_id),
        segments=tuple(segments),
    )


def draft(session: Session, text: str, instead_of: int | None = None) -> PromptReading:
    """The model's input if the user sent `text` now. Nothing is stored.

    instead_of: the user's message that it would replace. Raises ValueError as `Session.say` does.
    """
    path = session.chat.messages
    if instead_of is not None:
        path = session.chat.path_to(session.message(instead_of, "user").parent_id)
    text = message_text(text)
    prompt = session.render(path, text, session.find_sources(text))
    return PromptReading(prompt, None, (), _left_out(prompt, path))


def usage(session: Session) -> Usage:
    """The chat's share of the model's window. Raises PromptError as `Session.writer` does."""
    path, window, writer = session.chat.messages, session.model.context, session.writer
    if not path:
        return Usage(len(writer.instruction_ids(session.chat.basis.system)), window, 0)
    reply = path[-1] if path[-1].role == "assistant" else None
    before = list(path if reply is None else path[:-1])
    if reply is not None and reply.calls:
        before.append(up_to_call(reply))
    try:
        prompt = session.render(before, None, path[-1].sources)
    except (MessageTooLong, ContextOverflow):  # written with a model that had a longer window
        return Usage(window, window, len(path))
    used = len(prompt.ids)
    if reply is not None and reply.calls:
        used += len(writer.rest_ids(exchange_of(reply)))
    elif reply is not None:
        used += len(writer.reply_ids(reply.text))
    return Usage(min(used, window), window, messages_in(prompt.dropped, path))


def _left_out(prompt: Prompt, path: Sequence[StoredMessage]) -> tuple[StoredMessage, ...]:
    return tuple(path[: messages_in(prompt.dropped, path)])
