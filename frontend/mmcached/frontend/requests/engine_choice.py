"""Says which engine a request goes to: what the router needs to know is put together here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmcached.frontend.caches.item_cache import OutgoingItem
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.engines.routing import Candidate, Router
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.wire.config import ServiceConfig

if TYPE_CHECKING:  # most services hash no prompts here, and a store imports nothing for it
    from mmcached.frontend.requests.hashed_prompt import PromptHasher


class Chosen(NamedTuple):
    """An engine, and how many tokens it has to compute for the prompt."""

    connection: EngineConnection
    num_waiting: int


class EngineChoice:
    """The router among the engines of one frontend."""

    def __init__(self, config: ServiceConfig, connections: EngineConnections) -> None:
        self._connections = connections
        self._router = Router(config.routing_policy)
        self._hasher: PromptHasher | None = None
        if config.routes_by_content:
            from mmcached.frontend.requests.hashed_prompt import PromptHasher

            self._hasher = PromptHasher(config)

    def choose(self, request: OpenRequest, items: Sequence[OutgoingItem]) -> Chosen | None:
        """Return the engine for a request with these items; None if none is ready."""
        ready = {connection.index: connection for connection in self._connections.ready()}
        if not ready:
            return None
        uncached = self._uncached(request, items, list(ready.values()))
        chosen = self._router.choose(
            [Candidate(index, each.num_waiting, each.num_open, uncached[index]) for index, each in ready.items()]
        )
        return Chosen(ready[chosen.index], chosen.num_uncached)

    def sent(self, chosen: Chosen) -> None:
        """Take note that the request has been sent there."""
        self._router.pass_turn(chosen.connection.index)

    def _uncached(
        self, request: OpenRequest, items: Sequence[OutgoingItem], ready: Sequence[EngineConnection]
    ) -> Mapping[int, int]:
        """Return by the index of an engine what it has to compute for a request: all of it where nobody tells."""
        if self._hasher is None or len(ready) == 1:
            num_tokens = len(request.token_ids) + sum(item.num_embeds - 1 for item in items)
            return {connection.index: num_tokens for connection in ready}
        prompt = self._hasher.hashed(request, items)
        return {connection.index: prompt.num_uncached(connection.held) for connection in ready}
