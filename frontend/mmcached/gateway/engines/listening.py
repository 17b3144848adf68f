"""Binds the frontend's socket for engines, with ample bounds."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.messages.engine import Refused
from mmcached.wire.messages.frontend_from_engines import FromEngine
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.bounds import BOUNDS_OF_ROLES
from mmcached.wire.sockets.listener import Listener


def listen_for_engines(run_dir: RunDir, clock: Callable[[], float]) -> Listener[FromEngine]:
    """Bind the socket for engines; raise OSError if that fails."""
    error = ServiceUnavailable(f"{BOUNDS_OF_ROLES.max_connections} engines are connected")
    refusal = Refused(error_to_wire(error))
    return Listener(run_dir.engine_address, FromEngine, BOUNDS_OF_ROLES, refusal=refusal, clock=clock)
