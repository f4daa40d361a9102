"""A model on a server, for models that outgrow this machine.

Keep: this is the room's face; nothing outside imports from its modules, but for tests.
"""

from chatapp.engine.backends.remote.chat import RemoteChatModel
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.backends.remote.connecting import ServedModel, connect, served_models
from chatapp.engine.backends.remote.stream import TextPieces

__all__ = [
    "RemoteChatModel",
    "RemoteModel",
    "ServedModel",
    "TextPieces",
    "connect",
    "served_models",
]
