"""Connection to the frontend: announces the engine until it is greeted, and detects a new frontend session.

After a lost connection requests go on until the next `Greeted`; if that names another session, the requests of the
former one are obsolete.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
import zmq

from mmcached.wire.errors import ChannelFull
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.sockets.channels import DealerChannel
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")

HELLO_INTERVAL_S = 0.5


class FrontendConnection:
    """Connection to the frontend; `is_known` if it has greeted this engine, with no disconnect since."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, hello: to_frontend.EngineHello, now: float
    ) -> None:
        self.channel: DealerChannel[received.FromFrontend] = DealerChannel(context, address, received.FromFrontend)
        self.is_known = False
        self._hello = hello
        self._next_hello = now
        self._session: int | None = None

    @property
    def next_hello(self) -> float:
        """Time when `maintain` sends the next hello; infinity while the frontend knows this engine."""
        return math.inf if self.is_known else self._next_hello

    def maintain(self, now: float) -> None:
        """Detect a lost connection, and send a hello while the frontend is unknown. Called in every turn of the loop.

        A dead frontend's last messages may still arrive afterwards.
        """
        if self.channel.take_disconnects():
            log.info("connection to the frontend lost")
            self.is_known = False
        if now >= self.next_hello:
            self._next_hello = now + HELLO_INTERVAL_S
            self.send(self._hello)

    def on_greeted(self, message: received.Greeted) -> bool:
        """Store the session; return whether it has changed."""
        is_new = message.session != self._session
        self._session = message.session
        self.is_known = True
        return is_new

    def send(self, message: to_frontend.FromEngine, payload: Sequence[Frame] = ()) -> None:
        """Queue a message, or log that it is lost, as if the frontend had died."""
        try:
            self.channel.send(message, payload)
        except ChannelFull as error:
            log.error("message for the frontend lost", message=type(message).__name__, reason=str(error))

    def close(self) -> None:
        if not self.is_known:
            self.channel.socket.setsockopt(zmq.LINGER, 0)  # no peer will read the queued messages
        self.channel.close()
