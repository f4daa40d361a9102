"""The messages of a stored chat as a prompt has them.

Keep: what is stored alone decides; a reply becomes the same part of every prompt.
"""

from collections.abc import Iterable
from dataclasses import replace

from chatapp.dialogue.prompt import Exchange
from chatapp.dialogue.store import StoredMessage


def exchanges_of(path: Iterable[StoredMessage]) -> list[Exchange]:
    """A chat from its first message on."""
    exchanges: list[Exchange] = []
    for message in path:
        if message.role == "user":
            exchanges.append(Exchange(message.text))
        else:
            exchanges[-1] = replace(exchange_of(message), user=exchanges[-1].user)
    return exchanges


def exchange_of(reply: StoredMessage) -> Exchange:
    """A reply as part of a prompt, without the message that it answers."""
    return Exchange("", reply.text, reply.thoughts, calls=reply.calls)


def up_to_call(reply: StoredMessage) -> StoredMessage:
    """A reply as it was when its last call had ended; as it is where there is none."""
    if not reply.calls:
        return reply
    last = reply.calls[-1]
    return replace(reply, text=reply.text[: last.at + last.inside])
