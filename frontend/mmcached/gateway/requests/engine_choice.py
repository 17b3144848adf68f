"""Says which engine a request goes to: what the router needs to know is put together here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.engines.routing import Candidate, Router
from mmcached.gateway.requests.request_builder import Prompt
from mmcached.wire.config import ServiceConfig

if TYPE_CHECKING:  # most services hash no prompts here
    from mmcached.gateway.requests.hashed_prompt import PromptHasher


class Chosen(NamedTuple):
    """An engine, and how many tokens it has to compute for the prompt."""

    engine: EngineConnection
    num_waiting: int


class EngineChoice:
    """The router among the engines of one frontend."""

    def __init__(self, config: ServiceConfig, connections: EngineConnections) -> None:
        self._connections = connections
        self._router = Router(config.routing_policy)
        self._hasher: PromptHasher | None = None
        if config.routes_by_content:
            from mmcached.gateway.requests.hashed_prompt import PromptHasher

            self._hasher = PromptHasher(config)

    def choose(self, prompt: Prompt, *, is_generated: bool) -> Chosen | None:
        """Return the engine for a prompt; None if none is ready.

        Args:
            is_generated: it is computed; if not, its items are encoded alone.
        """
        ready = {engine.index: engine for engine in self._connections.ready()}
        if not ready:
            return None
        uncached = dict.fromkeys(ready, prompt.num_tokens)  # all of it, where no engine says what it holds
        if self._hasher is not None and len(ready) > 1:
            if is_generated:
                self._hasher.extend(prompt)
            uncached = {index: self._hasher.num_uncached(prompt, engine.held) for index, engine in ready.items()}
        chosen = self._router.choose(
            [Candidate(index, each.num_waiting, each.num_open, uncached[index]) for index, each in ready.items()]
        )
        return Chosen(ready[chosen.index], chosen.num_uncached)

    def sent(self, chosen: Chosen) -> None:
        """Take note that the request has been sent there."""
        self._router.pass_turn(chosen.engine.index)
