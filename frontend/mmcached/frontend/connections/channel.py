"""Interface of a socket with many peers, as the frontend's parts use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmcached.wire.sockets.frames import Frame


class Channel(Protocol):
    """One end of a socket with many peers; no method waits."""

    def __contains__(self, peer: bytes) -> bool:
        """Return whether a peer is connected."""

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue a message; raise PeerGone or ChannelFull if nothing was queued."""

    def try_send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> bool:
        """Queue a message; return whether it was queued."""
