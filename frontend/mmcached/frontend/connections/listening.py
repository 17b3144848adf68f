"""Binds the frontend's socket for clients, within `limits`."""

from __future__ import annotations

from collections.abc import Callable

from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.limits import MAX_MESSAGE_FRAMES, RESERVED_DESCRIPTORS
from mmcached.wire.messages.client import Failed
from mmcached.wire.messages.frontend import FromClient
from mmcached.wire.messages.parts import MessageLimits
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.bounds import Bounds
from mmcached.wire.sockets.listener import Listener

BODY_BYTES = 2 * MIB
"""Maximum size of a client's message without its payload: enough for 4096 keys of the usual length."""
TOKEN_BYTES = 5


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
