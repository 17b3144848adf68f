"""Connection to the frontend: announces the engine until it is greeted, and detects a new frontend session.

After a lost connection requests go on until the next `Greeted`; if that names another session, the requests of the
former one are obsolete.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import structlog

from mmcached.wire.errors import ChannelFull
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.sending import LINGER_S

log = structlog.get_logger("mmcached.engine")

HELLO_INTERVAL_S = 0.5


class FrontendConnection:
    """Connection to the frontend; `is_known` if it has greeted this engine, with no disconnect since."""

    def __init__(self, address: str, hello: to_frontend.EngineHello, now: float) -> None:
        self.dialer: Dialer[received.FromFrontend] = Dialer(address, received.FromFrontend)
        self.is_known = False
        self._hello = hello
        self._next_hello = now
        self._session: int | None = None
        self._num_losses = 0

    def wait_s(self, now: float) -> float:
        """Return how long the loop may wait for a message: zero while there is something to read or to send."""
        if self.dialer.has_read:
            return 0.0
        if not self.dialer.is_connected:
            return self.dialer.retry_s()
        return math.inf if self.is_known else max(0.0, self._next_hello - now)

    def maintain(self, now: float) -> None:
        """Detect a lost connection, and send a hello while the frontend is unknown. Called in every turn of the loop.

        All messages of a dead frontend were read before.
        """
        if self._num_losses != self.dialer.num_losses:
            self._num_losses = self.dialer.num_losses
            log.info("connection to the frontend lost")
            self.is_known = False
            self._next_hello = now
        if not self.is_known and self.dialer.is_connected and now >= self._next_hello:
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
            self.dialer.send(message, payload)
        except ChannelFull as error:
            log.error("message for the frontend lost", message=type(message).__name__, reason=str(error))

    def close(self) -> None:
        if self.is_known:  # else no peer will read the queued messages
            self.dialer.flush(LINGER_S)
        self.dialer.close()
