"""Binds the frontend's two sockets: for clients, within `limits`, and for engines, with ample bounds."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.limits import MAX_MESSAGE_FRAMES, RESERVED_DESCRIPTORS
from mmcached.wire.messages.client import Failed
from mmcached.wire.messages.engine import Refused
from mmcached.wire.messages.frontend import FromClient
from mmcached.wire.messages.frontend_from_engines import FromEngine
from mmcached.wire.messages.parts import MessageLimits
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.listener import Bounds, Listener

BODY_BYTES = 2 * MIB
"""Maximum size of a client's message without its payload: enough for 4096 keys of the usual length."""
TOKEN_BYTES = 5
MAX_ENGINES = 64
STALL_OF_ENGINES_S = float("inf")
"""A stopped engine keeps its connection: it is closed only at its death."""


def message_limits(config: ServiceConfig) -> MessageLimits:
    limits = config.limits
    body_bytes = BODY_BYTES + TOKEN_BYTES * config.max_model_len
    return MessageLimits(MAX_MESSAGE_FRAMES, limits.max_message_mb * MIB, body_bytes)


def listen_for_clients(run_dir: RunDir, config: ServiceConfig, clock: Callable[[], float]) -> Listener[FromClient]:
    """Bind the socket for clients; raise OSError if that fails."""
    limits, of_message = config.limits, message_limits(config)
    bounds = Bounds(
        max_connections=limits.max_clients,
        reserved_descriptors=RESERVED_DESCRIPTORS,
        max_frames=of_message.max_frames,
        max_message_bytes=of_message.max_bytes,
        max_body_bytes=of_message.max_body_bytes,
        max_queued_bytes=limits.max_queued_mb_per_client * MIB,
        max_held_bytes=limits.max_held_mb * MIB,
        stall_s=limits.client_stall_s,
    )
    reason = f"{limits.max_clients} clients are connected (limits.max_clients), or no descriptors are left for more"
    error = ServiceUnavailable(f"{reason}; try again later", field="limits.max_clients", limit=limits.max_clients)
    refusal = Failed(None, error_to_wire(error))
    reason = f"clients hold more than {limits.max_held_mb} MiB together (limits.max_held_mb), this one most for longest"
    error = ServiceUnavailable(f"{reason}; try again", field="limits.max_held_mb", limit=limits.max_held_mb)
    overload = Failed(None, error_to_wire(error))
    return Listener(run_dir.client_address, FromClient, bounds, refusal=refusal, overload=overload, clock=clock)


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
