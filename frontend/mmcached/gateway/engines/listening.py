"""Binds the frontend's socket for engines, with ample bounds."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.limits import RESERVED_DESCRIPTORS
from mmcached.wire.messages.engine import Refused
from mmcached.wire.messages.frontend_from_engines import FromEngine
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.listener import Bounds, Listener

MAX_ENGINES = 64
STALL_OF_ENGINES_S = float("inf")
"""A stopped engine keeps its connection: it is closed only at its death."""


def listen_for_engines(run_dir: RunDir, config: ServiceConfig, clock: Callable[[], float]) -> Listener[FromEngine]:
    """Bind the socket for engines; raise OSError if that fails."""
    bounds = Bounds(
        max_connections=MAX_ENGINES,
        reserved_descriptors=RESERVED_DESCRIPTORS // 2,  # engines may use part of the clients' reserve
        max_frames=1 << 20,
        max_message_bytes=4 * GIB,
        max_body_bytes=256 * MIB,
        max_queued_bytes=4 * GIB,
        max_held_bytes=16 * GIB,
        stall_s=STALL_OF_ENGINES_S,
    )
    refusal = Refused(error_to_wire(ServiceUnavailable(f"{MAX_ENGINES} engines are connected")))
    return Listener(run_dir.engine_address, FromEngine, bounds, refusal=refusal, clock=clock)
