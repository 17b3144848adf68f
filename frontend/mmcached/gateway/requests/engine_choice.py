"""Chooses the engine of a request: collects the figures of all engines for the router."""

from __future__ import annotations

from typing import NamedTuple

from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.engines.routing import Candidate, Router
from mmcached.gateway.requests.hashed_prompt import PromptHasher
from mmcached.gateway.requests.request_builder import Prompt
from mmcached.wire.config import ServiceConfig


class Chosen(NamedTuple):
    """An engine, and the number of tokens that it has to compute for the prompt."""

    engine: EngineConnection
    num_waiting: int


class EngineChoice:
    """The router among the engines of one frontend."""

    def __init__(self, config: ServiceConfig, connections: EngineConnections) -> None:
        self._connections = connections
        self._router = Router(config.routing_policy)
        self._hasher = PromptHasher(config) if config.routes_by_content else None

    def choose(self, prompt: Prompt, *, is_generated: bool) -> Chosen | None:
        """Return the engine for a prompt; None if none is ready.

        Args:
            is_generated: Whether the prompt is computed; else only its items are encoded.
        """
        ready = {engine.index: engine for engine in self._connections.ready()}
        if not ready:
            return None
        uncached = dict.fromkeys(ready, prompt.num_tokens)  # all of it, if engines do not report their content
        if self._hasher is not None and len(ready) > 1:
            if is_generated:
                self._hasher.extend(prompt)
            uncached = {index: self._hasher.num_uncached(prompt, engine.held) for index, engine in ready.items()}
        chosen = self._router.choose(
            [Candidate(index, each.num_waiting, each.num_open, uncached[index]) for index, each in ready.items()]
        )
        return Chosen(ready[chosen.index], chosen.num_uncached)

    def sent(self, chosen: Chosen) -> None:
        """Record that the request was sent to the engine."""
        self._router.pass_turn(chosen.engine.index)
