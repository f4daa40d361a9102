"""A model on a server, for models too large for this machine.

Invariant: other rooms import only from this module.
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
