"""A model on a server, for models too large for this machine.

Invariant: other rooms import only from this module.
"""

from chatapp.engine.backends.remote.protocol import TextPieces
from chatapp.engine.backends.remote.remote_model import (
    RemoteChatModel,
    RemoteModel,
    ServedModel,
    connect,
    served_models,
)

__all__ = [
    "RemoteChatModel",
    "RemoteModel",
    "ServedModel",
    "TextPieces",
    "connect",
    "served_models",
]
