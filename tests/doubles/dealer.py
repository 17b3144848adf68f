"""A client's or an engine's end of a socket that a test plays by hand."""

from __future__ import annotations

from typing import Any

import zmq

from mmcached.wire.sockets.channels import DealerChannel
from mmcached.wire.sockets.frames import ReceivesT


class Dealer(DealerChannel[ReceivesT]):
    """A channel with a context of its own: the connection is closed when `close` returns."""

    def __init__(self, address: str, receives: Any) -> None:
        self._own_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        super().__init__(self._own_context, address, receives)

    def close(self) -> None:
        super().close()
        self._own_context.term()
