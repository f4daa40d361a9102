"""A model on a server, for models that outgrow this machine.

Keep: this is the room's face; nothing outside imports from its modules, but for tests.
"""

from chatapp.engine.remote.chat import RemoteChatModel
from chatapp.engine.remote.connect import connect
from chatapp.engine.remote.listing import ServedModel, served_models
from chatapp.engine.remote.model import RemoteModel
from chatapp.engine.remote.pieces import TextPieces

__all__ = [
    "RemoteChatModel",
    "RemoteModel",
    "ServedModel",
    "TextPieces",
    "connect",
    "served_models",
]
