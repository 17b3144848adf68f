"""The socket of a blocking client: one request at a time, and everything else that arrives meanwhile.

An answer is taken by its request's number. Whatever else comes (late answers, barriers, a `Welcome`) is handed to
`hear`, whose reply is sent. A lost connection is told to `lost` once it is noticed, and ends the call that is open:
the frontend that knew of it has died. ZeroMQ connects again by itself.

Knows nothing of what the messages mean. One thread owns a link.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import zmq

from mmcached.client import forks
from mmcached.client.conversation import Ask, answer_id, failure_of
from mmcached.client.presence import Presence
from mmcached.wire.channels import DealerChannel, Frame
from mmcached.wire.errors import ChannelFull, DeadlineExceeded, PeerGone, RemoteProtocolError, ServiceUnavailable
from mmcached.wire.messages.client import Failed, ToClient, Welcome
from mmcached.wire.messages.frontend import ClientBye, ClientHello
from mmcached.wire.paths import RunDir

LOOK_INTERVAL_S = 0.1
"""How often a waiting client looks whether the frontend is still there."""

Hear = Callable[[ToClient], object | None]


class SyncLink:
    """One connection, and the client's presence.

    Args:
        hear: takes what answers no open call; returns what to reply, or None.
        lost: called when the connection was lost since the last call or look.
    Raises:
        ServiceUnavailable: no service has ever run in that directory.
    """

    def __init__(self, directory: RunDir, client_id: str, *, hear: Hear, lost: Callable[[], None]) -> None:
        self._socket_path = directory.client_address.removeprefix("ipc://")
        self._client_id = client_id
        self._hear = hear
        self._lost = lost
        self._presence = Presence(directory, client_id)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: DealerChannel[ToClient] = DealerChannel(self._context, directory.client_address, ToClient)

    def catch_up(self) -> None:
        """Take what has come since the last call, and notice a lost connection."""
        while True:
            try:
                received = self._channel.try_receive()
            except RemoteProtocolError:
                continue  # nobody waits for it
            if received is None:
                break
            self._take_in(received[0])
        self._look_for_loss()

    def greet(self, deadline: float, *, is_patient: bool) -> Welcome:
        """Say hello and wait for the answer.

        Args:
            is_patient: also wait for a service that is not there yet.
        Raises:
            ServiceUnavailable: there is none, or it does not answer in time.
        """
        if not is_patient and not forks.is_listening(self._socket_path):
            raise ServiceUnavailable("the service is not there; it is looked for again by itself")
        while True:
            self._channel.send(ClientHello(self._client_id))
            message = self._next_welcome(deadline)
            if isinstance(message, Welcome):
                return message
            if time.monotonic() >= deadline:
                raise ServiceUnavailable("the service does not answer the greeting in time")
            if not is_patient:
                raise ServiceUnavailable("the service went away while it was greeted")

    def exchange(
        self, request: Ask, payload: Sequence[Frame], *, deadline: float, timeout_s: float
    ) -> tuple[ToClient, list[Frame]]:
        """Send a request and wait for its answer.

        Raises:
            DeadlineExceeded, PeerGone, ChannelFull: retryable.
            RemoteProtocolError: what came is no answer.
        """
        operation = type(request).__name__.lower()
        self._channel.send(request, payload)
        while True:
            received = self._receive(deadline)
            if received is not None:
                message, frames = received
                if answer_id(message) == request.request_id or _is_for_all(message):
                    return message, frames
                self._take_in(message)
            elif self._look_for_loss():
                raise PeerGone(f"{operation}: the frontend died while it was open; try again")
            elif time.monotonic() >= deadline:
                raise DeadlineExceeded(operation, timeout_s)

    def tell(self, message: object) -> None:
        """Send what has no answer; drop it if the queue is full."""
        with contextlib.suppress(ChannelFull):
            self._channel.send(message)

    def abandon(self) -> None:
        """In a forked child: let go without a word; the connection stays the parent's."""
        self._presence.abandon()
        forks.keep_for_ever(self._channel, self._context)
        forks.close_connections(self._socket_path)

    def close(self) -> None:
        """Say goodbye, if somebody hears it, and let go of everything."""
        if forks.is_listening(self._socket_path):
            self.tell(ClientBye(self._client_id))
        else:
            self._channel.socket.setsockopt(zmq.LINGER, 0)  # nobody takes what is still queued
        self._channel.close()
        self._context.term()
        self._presence.close()

    def _receive(self, deadline: float) -> tuple[ToClient, list[Frame]] | None:
        """Return what comes next, or None when it is time to look around."""
        with contextlib.suppress(DeadlineExceeded):
            return self._channel.receive(min(LOOK_INTERVAL_S, max(0.0, deadline - time.monotonic())))
        return None

    def _next_welcome(self, deadline: float) -> Welcome | None:
        """Return it; None if the connection was lost or the time is over."""
        while True:
            received = self._receive(deadline)
            if received is None:
                if self._look_for_loss() or time.monotonic() >= deadline:
                    return None
            elif isinstance(received[0], Welcome):
                return received[0]
            elif _is_for_all(received[0]):
                raise failure_of(received[0]) or ServiceUnavailable("unexpected greeting")
            else:
                self._take_in(received[0])

    def _take_in(self, message: ToClient) -> None:
        reply = self._hear(message)
        if reply is not None:
            self.tell(reply)

    def _look_for_loss(self) -> bool:
        """Return whether the connection was lost; ask only when there is nothing left to receive."""
        if not self._channel.take_disconnects():
            return False
        self._lost()
        # The run directory may be another by now, and a client without a lock in it is dead to the next frontend.
        with contextlib.suppress(ServiceUnavailable):
            self._presence.renew()
        return True


def _is_for_all(message: ToClient) -> bool:
    """Return whether the service could not even read what was sent to it."""
    return isinstance(message, Failed) and message.request_id is None
