"""The connection of one client id: passes every message to the call that waits for it.

call      registered by its number ──send──> waits ──news──> answer
stream    as a call; tokens and rows of a generation are news too

Messages that answer no open call (late answers, a `Welcome`) go to `on_unsolicited`, whose reply is sent. A lost
connection is reported to `on_loss` and ends the open calls, because the frontend that knew them has died. `ThreadLink`
and `LoopLink` implement how a call waits, and how the socket is read meanwhile; the socket reconnects by itself.

Does not know the further meaning of messages. Invariants: one thread reads at a time, so `on_arrival` and `on_loss` are
called one after the other, in the order of arrival. A message for a call that has ended goes to `on_unsolicited`, also
if it came at the same moment. An exception in the middle of a message ends the connection, as if it was lost.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from mmcached.client.links.presence import Presence
from mmcached.client.links.shared_socket import CLOSED, PARENTS, Received, SharedSocket
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.token_stream import News
from mmcached.client.verb import Verb
from mmcached.wire.errors import (
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    ServiceUnavailable,
    copy_of,
    error_from_wire,
)
from mmcached.wire.messages.client import Failed, ToClient, Tokens, Welcome
from mmcached.wire.messages.frontend import ANY_CLIENT, ClientBye, ClientHello
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame


class WaitingCall(ABC):
    """A waiting call, and its news.

    Attributes:
        news: Received messages and errors for the call.
        is_greeting: Whether any `Welcome` is for it.
    """

    __slots__ = ("is_greeting", "news")

    def __init__(self, *, is_greeting: bool = False) -> None:
        self.news: deque[News | MmcachedError] = deque()
        self.is_greeting = is_greeting

    @abstractmethod
    def ring(self) -> None:
        """End its wait, or the next one."""


WaiterT = TypeVar("WaiterT", bound=WaitingCall)


class Link(ABC, Generic[WaiterT]):
    """One connection, and the client's presence. Dropped without `close`, it does not wait.

    Args:
        name: Name of this kind of client, under which the service counts its hits, misses and puts.
        on_arrival: Called with each message before it is passed on; returns the message to pass on.
        on_unsolicited: Called with each message that answers no open call; returns the reply, or None.
        on_loss: Called when the connection was lost.

    Attributes:
        new_waiter: Class of the waiters for its calls.

    Raises:
        ServiceUnavailable: No service has ever run in that directory.
        ConfigError: The directory does not belong to this user alone.
    """

    new_waiter: type[WaiterT]

    def __init__(
        self,
        directory: RunDir,
        client_id: str,
        *,
        name: str = ANY_CLIENT,
        on_arrival: Callable[[ToClient], ToClient],
        on_unsolicited: Callable[[ToClient], object | None],
        on_loss: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._client_id = client_id
        self._name = name
        self._on_arrival = on_arrival
        self._on_unsolicited = on_unsolicited
        self._on_loss = on_loss
        self._open: dict[object, WaiterT] = {}
        self._mutex = threading.RLock()
        self._presence = Presence(directory, client_id, name=name)
        self._end_presence = weakref.finalize(self, self._presence.close)
        self._end_presence.atexit = False  # at exit the kernel frees the lock
        self._socket = SharedSocket(directory.client_address)

    # ---- waiting

    @abstractmethod
    def wait(self, waiter: WaiterT, deadline: float) -> Awaitable[None] | None:
        """Return when a waiter has news, or at the deadline."""

    @abstractmethod
    def catch_up(self) -> None:
        """Handle received messages, and notice a lost connection; keep the client's presence."""

    # ---- calls

    def greet(self, deadline: float, *, is_patient: bool) -> Verb[None]:
        """Send a hello and wait for the `Welcome`, which is passed to `on_unsolicited` first.

        Args:
            is_patient: Also wait for a service that is still missing.

        Raises:
            ServiceUnavailable: No service is there, or it does not answer in time.
        """
        if not uninterrupted(self._directory.is_served) and not is_patient:
            raise ServiceUnavailable("the service is not there; it is looked for again by itself")
        while True:
            waiter = self.new_waiter(is_greeting=True)
            try:
                found = yield from self.ask(waiter, waiter, ClientHello(self._client_id, self._name), (), deadline)
            except PeerGone:
                if not is_patient:
                    raise ServiceUnavailable("the service went away while it was greeted") from None
            else:
                if found is None and not uninterrupted(self._directory.is_served):
                    path = self._directory.path
                    raise ServiceUnavailable(f"no service in {path}; start one: mmcached serve --run-dir {path}")
                if found is None:
                    raise ServiceUnavailable("the service does not answer the greeting in time")
                return

    def ask(
        self, key: object, waiter: WaiterT, message: object, payload: Sequence[Frame], deadline: float
    ) -> Verb[Received | None]:
        """Send a message and return its answer; None: no answer before the deadline.

        Args:
            key: Number of the request, or the waiter itself.

        Raises:
            PeerGone, ChannelFull, RequestAborted: Retryable.
            ClientClosed: The client was closed.
            RemoteProtocolError: The answer is invalid.
        """
        self._open[key] = waiter
        try:
            self._socket.send(message, payload)
            yield partial(self.wait, waiter, deadline)
            with self._mutex:  # after this the waiter gets no more news
                self._open.pop(key)
            found = waiter.news[0] if waiter.news else None
        except BaseException:
            with self._mutex:
                self._open.pop(key, None)
            for news in waiter.news:  # no other call will see it
                if not isinstance(news, MmcachedError):
                    self._reply(news[0])  # type: ignore[arg-type]  # no pieces come for a call
            raise
        if isinstance(found, MmcachedError):
            raise found
        return found  # type: ignore[return-value]

    def open(self, request_id: int, waiter: WaiterT | None = None) -> WaiterT:
        """Register a call that waits more than once, with its own waiter or that of others; `leave` must follow."""
        waiter = self._open[request_id] = waiter or self.new_waiter()
        return waiter

    def leave(self, request_id: int) -> None:
        """Stop accepting news for a call. A finalizer may call it."""
        self._open.pop(request_id, None)

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message; see `SharedSocket.send`."""
        self._socket.send(message, payload)

    def tell(self, message: object) -> None:
        """Send a message that has no answer; see `SharedSocket.post`."""
        self._socket.post(message)

    # ---- the end

    def abandon(self) -> None:
        """In a forked child: close without sending; the connection stays the parent's."""
        self._mutex = threading.RLock()  # the thread that held it may not exist here
        self._presence.abandon()
        self._end_presence.detach()
        self._socket.abandon()
        self._end_all(PARENTS)

    def close(self) -> None:
        """Send a goodbye if connected, and close; open and later calls and streams end with `ClientClosed`."""
        self._end_all(CLOSED)
        self._socket.close(ClientBye(self._client_id))
        self._end_presence()

    # ---- internals

    def _take_next(self) -> bool:
        """Handle one message, or a lost connection; return whether there was either."""
        try:
            received = self._socket.receive()
            if received is not None:
                self._take_in(*received)
            elif self._socket.take_losses():
                self._lose()
            else:
                return False
        except RemoteProtocolError as error:
            self._end_all(error)
        except MmcachedError:  # closed, or in use further down this stack
            raise
        except BaseException:  # a message may be lost, and with it the answer to another call
            self._socket.break_off()
            raise
        return True

    def _take_in(self, message: ToClient, payload: list[Frame]) -> None:
        """Pass a message to its call."""
        message = self._on_arrival(message)
        match message:
            case Tokens():
                for rows in message.rows:
                    self._hand_over(rows.request_id, (rows, payload))
                for piece in message.streams:
                    self._hand_over(piece.request_id, (piece, ()))
            case Welcome():
                self._socket.limits = message.limits
                self._reply(message)
                for waiter in list(self._open.values()):
                    if waiter.is_greeting:
                        self._hand_over(waiter, (message, payload))
            case Failed(request_id=None):
                # Too many clients, or an unreadable message: of another version, or sent as a frontend with narrower
                # limits took over. The call it belongs to is unknown.
                self._end_all(error_from_wire(message.error))
            case _:
                if not self._hand_over(message.request_id, (message, payload)):
                    self._reply(message)

    def _hand_over(self, key: object, news: News) -> bool:
        """Pass news to the call that waits for it; return whether there is one."""
        with self._mutex:
            waiter = self._open.get(key)
            if waiter is None:
                return False
            waiter.news.append(news)
        waiter.ring()
        return True

    def _reply(self, message: ToClient) -> None:
        reply = self._on_unsolicited(message)
        if reply is not None:
            self.tell(reply)

    def _lose(self) -> None:
        self._on_loss()
        self._end_all(PeerGone("the connection to the frontend was lost while the call was open; try again"))
        # The run directory may be a new one by now, and the next frontend takes a client without a lock for dead.
        with contextlib.suppress(MmcachedError, OSError):
            self._presence.renew()

    def _end_all(self, error: MmcachedError) -> None:
        """End all calls and streams, each with its own copy of the error, because raising an error changes it."""
        for waiter in list(self._open.values()):
            waiter.news.append(copy_of(error))
            waiter.ring()
        self._socket.ring()
