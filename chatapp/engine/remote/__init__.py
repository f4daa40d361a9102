"""A model on a server, for models that outgrow this machine.

Keep: the key goes to the server's own address and nowhere else, into no message and no name;
and text that has arrived is kept, whatever happens to the connection.
"""

from chatapp.engine.remote.model import RemoteModel, Served, TextPieces, served_models

__all__ = ["RemoteModel", "Served", "TextPieces", "served_models"]
