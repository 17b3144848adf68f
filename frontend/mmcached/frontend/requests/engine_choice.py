"""Says which engine a request goes to: what the router needs to know is put together here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.routing import Candidate, Router
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.wire.config import ServiceConfig


class Chosen(NamedTuple):
    """An engine, and how many tokens it has to compute for the prompt."""

    connection: EngineConnection
    num_waiting: int


class EngineChoice:
    """The router among the engines of one frontend."""

    def __init__(self, config: ServiceConfig, connections: EngineConnections, requests: OpenRequests) -> None:
        self._connections = connections
        self._requests = requests
        self._router = Router(config.routing_policy)

    @property
    def is_possible(self) -> bool:
        return bool(self._connections.ready())

    def choose(self, request: OpenRequest, items: Sequence[OutgoingItem]) -> Chosen | None:
        """Return the engine for a request with these items; None if none is ready."""
        ready = {connection.index: connection for connection in self._connections.ready()}
        if not ready:
            return None
        num_tokens = len(request.token_ids) + sum(item.num_embeds - 1 for item in items)
        chosen = self._router.choose([self._candidate(connection) for connection in ready.values()])
        return Chosen(ready[chosen.index], num_tokens)

    def _candidate(self, connection: EngineConnection) -> Candidate:
        requests, engine = self._requests, connection.incarnation
        return Candidate(connection.index, requests.tokens_on_engine(engine), requests.num_on_engine(engine))
