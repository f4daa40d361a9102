"""A program that is killed while a tool runs: `killed_during_a_call.py FOLDER STORE`."""

import sys
from pathlib import Path

from thinking_model import thinking_model

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store

CALL = '<tool_call>{"name": "hang", "arguments": {}}</tool_call>'


def session_in(folder: Path, store: Store, chat_id: int | None = None) -> Session:
    """A chat with a model that calls a tool."""
    replies = ["Hello.", f"Let me see.{CALL}", "It was cut off."]
    model = thinking_model(folder / "model", replies if chat_id is None else replies[2:])
    return Session(Chat(store, chat_id), model)


if __name__ == "__main__":
    session = session_in(Path(sys.argv[1]), Store(Path(sys.argv[2])))
    session.chat.ask = lambda request, cancel: "once"
    list(session.say("Hi"))
    session.set_tools(["hang"])
    list(session.say("Do it"))
