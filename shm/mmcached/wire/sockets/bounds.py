"""The limits of a listener: of its connections, of a message, and of the bytes that it holds for its peers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmcached.wire.limits import RESERVED_DESCRIPTORS

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one listener.

    Attributes:
        reserved_descriptors: The last descriptor numbers of the process, which connections leave free.
        max_frames, max_message_bytes: Limits of one message; see `limits`.
        max_body_bytes: Limit of a message without its payload, checked before it is decoded.
        max_queued_bytes: Limit of bytes that wait for one peer.
        max_held_bytes: Limit of bytes that wait for all peers together, or are committed for incomplete messages.
        stall_s: How long a peer may read nothing while bytes wait for it, or send no more of a message.
    """

    max_connections: int
    reserved_descriptors: int
    max_frames: int
    max_message_bytes: int
    max_body_bytes: int
    max_queued_bytes: int
    max_held_bytes: int
    stall_s: float


BOUNDS_OF_ROLES = Bounds(
    max_connections=64,
    reserved_descriptors=RESERVED_DESCRIPTORS // 2,  # they may use part of the clients' reserve
    max_frames=1 << 20,
    max_message_bytes=4 * GIB,
    max_body_bytes=256 * MIB,
    max_queued_bytes=4 * GIB,
    max_held_bytes=16 * GIB,
    stall_s=math.inf,
)
"""Ample limits for a socket to which processes of the service itself connect: engines, or the workers of one.

A stopped process keeps its connection: only its death closes it.
"""
