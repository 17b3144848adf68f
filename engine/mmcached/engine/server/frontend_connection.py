"""The frontend connection finds the engine's frontend, and notices another one.

unknown  -- EngineHello, repeated -->  frontend
<-- Greeted --                the session of this connection
known    -- connection lost -->        unknown again; requests go on until it is clear who answers
<-- Greeted, another session  nobody waits for the requests of the former one
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog
import zmq

from mmcached.wire.errors import ChannelFull
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.sockets.channels import DealerChannel
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")

HELLO_INTERVAL_S = 0.5


class FrontendConnection:
    """The connection to the frontend.

    Attributes:
        is_known: the frontend has greeted this engine, and the connection has not been lost since.
    """

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
        """When `keep` has something to say: never, while the frontend knows this engine."""
        return math.inf if self.is_known else self._next_hello

    def keep(self, now: float) -> None:
        """Notice a lost connection; say hello while nobody has answered. Call it in every turn.

        A dead frontend's last messages may still come after that.
        """
        if self.channel.take_disconnects():
            log.info("connection to the frontend lost")
            self.is_known = False
        if now >= self.next_hello:
            self._next_hello = now + HELLO_INTERVAL_S
            self.send(self._hello)

    def on_greeted(self, message: received.Greeted) -> bool:
        """Take note of a session; return whether it is another one than before."""
        is_new = message.session != self._session
        self._session = message.session
        self.is_known = True
        return is_new

    def send(self, message: to_frontend.FromEngine, payload: Sequence[Frame] = ()) -> None:
        """Queue a message, or log that it is lost: no more than if the frontend had died."""
        try:
            self.channel.send(message, payload)
        except ChannelFull as error:
            log.error("message for the frontend lost", message=type(message).__name__, reason=str(error))

    def close(self) -> None:
        if not self.is_known:
            self.channel.socket.setsockopt(zmq.LINGER, 0)  # nobody is there to take what is queued
        self.channel.close()
