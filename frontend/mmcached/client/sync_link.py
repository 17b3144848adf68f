"""The socket of a blocking client: one call at a time, and everything else that arrives meanwhile.

An answer is taken by its request's number. What comes for a stream is put there, whoever waits for what. Whatever else
comes (late answers, barriers, a `Welcome`) is handed to `hear`, whose reply is sent. A lost connection is told to
`lost` once it is noticed, and ends the call and the streams that are open: the frontend that knew of them has died.
ZeroMQ connects again by itself.

Knows nothing of what else the messages mean. One thread owns a link; only `end_stream` may come from another, or in
the middle of a call, since the collector of garbage may be who ends a stream.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from mmcached.client import forks
from mmcached.client.conversation import Ask, answer_id, failure_of
from mmcached.client.presence import Presence
from mmcached.client.token_stream import TokenStream
from mmcached.wire.channels import DealerChannel, Frame
from mmcached.wire.errors import (
    ChannelFull,
    DeadlineExceeded,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
)
from mmcached.wire.messages.client import Failed, ToClient, Tokens, Welcome
from mmcached.wire.messages.frontend import Cancel, ClientBye, ClientHello, Generate
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
        ConfigError: it is not this user's alone.
    """

    def __init__(self, directory: RunDir, client_id: str, *, hear: Hear, lost: Callable[[], None]) -> None:
        self._directory = directory
        self._socket_path = directory.client_address.removeprefix("ipc://")
        self._client_id = client_id
        self._hear = hear
        self._lost = lost
        self._presence = Presence(directory, client_id)
        self._streams: dict[int, TokenStream] = {}
        self._cancels: deque[int] = deque()
        self._owner = threading.get_ident()
        self._is_sending = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: DealerChannel[ToClient] = DealerChannel(self._context, directory.client_address, ToClient)

    def catch_up(self) -> None:
        """Take what has come since the last call, and notice a lost connection."""
        self._owner = threading.get_ident()
        self._presence.keep()
        self._send_cancels()
        while True:
            try:
                received = self._channel.try_receive()
            except RemoteProtocolError:
                continue  # nobody waits for it
            if received is None:
                break
            self._take_in(*received)
        self._look_for_loss()

    def greet(self, deadline: float, *, is_patient: bool) -> Welcome:
        """Say hello and wait for the answer.

        Args:
            is_patient: also wait for a service that is not there yet.
        Raises:
            ServiceUnavailable: there is none, or it does not answer in time.
            ConfigError: the run directory is not this user's alone.
        """
        if not self._directory.is_served() and not is_patient:
            raise ServiceUnavailable("the service is not there; it is looked for again by itself")
        while True:
            self._send(ClientHello(self._client_id))
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
        self._send(request, payload)
        while True:
            received = self._receive(deadline)
            if received is not None:
                message, frames = received
                if answer_id(message) == request.request_id:
                    return message, frames
                self._take_in(message, frames)
                if _is_for_all(message):
                    return message, frames
            elif self._look_for_loss():
                raise PeerGone(f"{operation}: the frontend died while it was open; try again")
            elif time.monotonic() >= deadline:
                raise DeadlineExceeded(operation, timeout_s)

    def open_stream(self, request: Generate, payload: Sequence[Frame]) -> TokenStream:
        """Send a request whose tokens shall come as they commit; `end_stream` must follow.

        Raises:
            ChannelFull: nothing was sent.
        """
        self._send(request, payload)
        stream = self._streams[request.request_id] = TokenStream(request)
        return stream

    def wait_for_news(self, stream: TokenStream, *, deadline: float, timeout_s: float) -> None:
        """Return when a stream has something to take; what has come is put there first, then it is waited for.

        Raises:
            DeadlineExceeded: retryable.
            RemoteProtocolError: what came cannot be read.
        """
        if not stream.is_over:
            self.catch_up()
        while not stream.has_news:
            received = self._receive(deadline)
            if received is not None:
                self._take_in(*received)
            elif not self._look_for_loss() and time.monotonic() >= deadline:
                raise DeadlineExceeded("generate", timeout_s)

    def end_stream(self, stream: TokenStream) -> None:
        """Take in no more of it, and have the service end it if it goes on there: at once, or with the next call."""
        self._streams.pop(stream.request_id, None)
        if not stream.is_open:
            return
        self._cancels.append(stream.request_id)
        if threading.get_ident() == self._owner and not self._is_sending:
            self._send_cancels()

    def tell(self, message: object) -> None:
        """Send what has no answer; drop it if the queue is full."""
        with contextlib.suppress(ChannelFull):
            self._send(message)

    def abandon(self) -> None:
        """In a forked child: let go without a word; the connection stays the parent's."""
        self._fail_streams(RequestAborted("the stream is the parent's"))
        self._presence.abandon()
        forks.keep_for_ever(self._channel, self._context)
        forks.close_connections(self._socket_path)

    def close(self) -> None:
        """Say goodbye, if somebody hears it, and let go of everything; open streams end with `RequestAborted`."""
        self._fail_streams(RequestAborted("the client was closed"))
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
            else:
                self._take_in(*received)
                if _is_for_all(received[0]):
                    raise failure_of(received[0]) or ServiceUnavailable("unexpected greeting")

    def _take_in(self, message: ToClient, payload: Sequence[Frame]) -> None:
        """Put what is for a stream there, and let the owner hear everything else."""
        if isinstance(message, Tokens):
            for rows in message.rows:
                if (stream := self._streams.get(rows.request_id)) is not None:
                    stream.put_rows(rows, payload)
            for piece in message.streams:
                if (stream := self._streams.get(piece.request_id)) is not None:
                    stream.put(piece)
            return
        request_id = answer_id(message)
        if request_id is not None and (stream := self._streams.get(request_id)) is not None:
            stream.answer(message, payload)
            return
        if request_id is None and (error := failure_of(message)) is not None:
            self._fail_streams(error)
        reply = self._hear(message)
        if reply is not None:
            self.tell(reply)

    def _look_for_loss(self) -> bool:
        """Return whether the connection was lost; ask only when there is nothing left to receive."""
        if not self._channel.take_disconnects():
            return False
        self._fail_streams(PeerGone("the frontend died while the stream was open; try again"))
        self._lost()
        # The run directory may be another by now, and a client without a lock in it is dead to the next frontend.
        with contextlib.suppress(MmcachedError):
            self._presence.renew()
        return True

    def _fail_streams(self, error: MmcachedError) -> None:
        for stream in list(self._streams.values()):
            stream.fail(error)

    def _send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        self._is_sending = True
        try:
            self._channel.send(message, payload)
        finally:
            self._is_sending = False

    def _send_cancels(self) -> None:
        while self._cancels:
            self.tell(Cancel(self._client_id, self._cancels.popleft()))


def _is_for_all(message: ToClient) -> bool:
    """Return whether the service could not even read what was sent to it."""
    return isinstance(message, Failed) and message.request_id is None
