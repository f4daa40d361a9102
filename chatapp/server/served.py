"""The models of a server, each in memory while it is used.

Invariant: a model leaves memory only when no request uses it, and comes back with the next one.
"""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chatapp.common.unforeseen import describe_unforeseen
from chatapp.server.service import Service
from chatapp.server.worker import FAILED, ModelFailedError

_log = logging.getLogger("chatapp.server")


class Served:
    """A model of the server. context: its window in tokens."""

    def __init__(self, load: Callable[[], Service], patience: float | None = None) -> None:
        """Load the model once. Raises what `load` raises.

        patience: the seconds without a request after which it leaves memory; None for never.
        """
        self._load, self._patience = load, patience
        self._service: Service | None = load()
        self.context = self._service.model.context
        self._users = self._uses = 0
        self._loading = asyncio.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory."""
        return self._service is not None

    def close(self) -> None:
        """End all replies, and leave memory."""
        service, self._service = self._service, None
        if service is not None:
            service.close()
            del service
            gc.collect()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[Service]:
        """The model in memory. Raises ModelFailedError if it cannot be loaded any more."""
        self._users += 1
        self._uses += 1
        try:
            async with self._loading:
                if self._service is None:
                    self._service = await asyncio.to_thread(self._loaded)
            yield self._service
        finally:
            self._users -= 1
            if self._patience is not None:
                asyncio.get_running_loop().call_later(self._patience, self._leave, self._uses)

    def _loaded(self) -> Service:
        try:
            return self._load()
        except Exception as error:
            _log.error("%s", describe_unforeseen(error))
            raise ModelFailedError(FAILED) from None

    def _leave(self, uses: int) -> None:
        """Leave memory, unless there was another request meanwhile."""
        if uses == self._uses and not self._users:
            self.close()
