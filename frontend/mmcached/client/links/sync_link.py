"""The connection of a blocking client, which any number of threads share.

    call      registered by its number ──send──> waits ──news──> answer
    reader    one of those that wait: takes in whatever comes, for all of them; when it leaves it calls the next
    stream    as a call, and takes its news when its own thread asks for them

An answer is for the call or stream of its number. Whatever else comes (late answers, barriers, a `Welcome`) is handed
to `hear`, whose reply is sent. A lost connection is told to `lost` once it is noticed, and ends the calls and streams
that are open: the frontend that knew of them has died. ZeroMQ connects again by itself.

Knows nothing of what else the messages mean. Invariants: one thread reads at a time, so `arrived` and `lost` are called
one after the other, in the order of arrival. What comes for a call that is left goes to `hear`, also if it came at the
same moment. A link that an exception in the middle of a message has broken ends all who wait, and says so.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from mmcached.client.links.conversation import Ask, answer_id, failure_of
from mmcached.client.links.presence import Presence
from mmcached.client.links.shared_socket import Received, SharedSocket
from mmcached.client.links.uninterrupted import uninterrupted
from mmcached.client.token_stream import News, TokenStream
from mmcached.wire.errors import (
    DeadlineExceeded,
    LocalProtocolError,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_from_wire,
    error_to_wire,
)
from mmcached.wire.messages.client import ToClient, Tokens, Welcome
from mmcached.wire.messages.frontend import Cancel, ClientBye, ClientHello, Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import Frame

LOOK_INTERVAL_S = 0.1
"""How often a waiting client looks whether the frontend is still there."""

Arrived = Callable[[ToClient], ToClient]
Hear = Callable[[ToClient], object | None]


class _Waiter:
    """What one thread waits for, and what has come for it.

    Attributes:
        thread: whose it is.
        is_greeting: any `Welcome` is for it.
        is_waiting: it would read if it were called.
    """

    __slots__ = ("_bell", "is_greeting", "is_waiting", "news", "thread")

    def __init__(self, *, is_greeting: bool = False) -> None:
        self.news: deque[News | MmcachedError] = deque()
        self.thread = threading.get_ident()
        self.is_greeting = is_greeting
        self.is_waiting = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        """End its wait, or the next one."""
        with contextlib.suppress(RuntimeError):  # rung already
            self._bell.release()

    def wait(self, timeout_s: float) -> None:
        self._bell.acquire(timeout=timeout_s)


class SyncLink:
    """One connection, and the client's presence.

    Args:
        arrived: takes note of each message before it is handed on, and returns what to hand on.
        hear: takes what answers no open call; returns what to reply, or None.
        lost: called when the connection was lost since the last look.
    Raises:
        ServiceUnavailable: no service has ever run in that directory.
        ConfigError: it is not this user's alone.
    """

    def __init__(
        self, directory: RunDir, client_id: str, *, arrived: Arrived, hear: Hear, lost: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._socket_path = directory.client_address.removeprefix("ipc://")
        self._client_id = client_id
        self._arrived = arrived
        self._hear = hear
        self._lost = lost
        self._open: dict[object, _Waiter] = {}
        self._reader: _Waiter | None = None
        self._mutex = threading.RLock()
        self._is_broken = False
        self._presence = Presence(directory, client_id)
        self._end_presence = weakref.finalize(self, self._presence.close)
        self._end_presence.atexit = False  # the kernel frees the lock
        self._socket = SharedSocket(directory.client_address)

    @property
    def is_broken(self) -> bool:
        """Whether an interrupted call has left it in pieces: close it, and make another under another client id."""
        return self._is_broken or self._socket.is_broken

    def catch_up(self) -> None:
        """Take in what has come since the last call, and notice a lost connection; a thread that reads does so too."""
        with self._mutex:
            self._presence.keep()
        if self._reader is not None:
            return
        waiter = _Waiter()
        try:
            if self._may_read(waiter):
                while self._take_next():
                    pass
        finally:
            if self._reader is waiter:
                self._reader = None
        self._call_next_reader()

    def greet(self, deadline: float, *, is_patient: bool) -> None:
        """Say hello and wait for a `Welcome`, which `hear` has got when this returns.

        Args:
            is_patient: also wait for a service that is not there yet.
        Raises:
            ServiceUnavailable: there is none, or it does not answer in time.
            ConfigError: the run directory is not this user's alone.
        """
        if not uninterrupted(self._directory.is_served) and not is_patient:
            raise ServiceUnavailable("the service is not there; it is looked for again by itself")
        while True:
            waiter = _Waiter(is_greeting=True)
            try:
                found = self._ask(waiter, waiter, ClientHello(self._client_id), (), deadline)
            except PeerGone:
                if not is_patient:
                    raise ServiceUnavailable("the service went away while it was greeted") from None
            else:
                if found is None:
                    raise ServiceUnavailable("the service does not answer the greeting in time")
                return

    def exchange(self, request: Ask, payload: Sequence[Frame], *, deadline: float, timeout_s: float) -> Received:
        """Send a request and wait for its answer.

        Raises:
            DeadlineExceeded, PeerGone, ChannelFull, RequestAborted: retryable.
            RemoteProtocolError: what came is no answer.
        """
        found = self._ask(request.request_id, _Waiter(), request, payload, deadline)
        if found is None:
            raise DeadlineExceeded(type(request).__name__.lower(), timeout_s)
        return found

    def open_stream(self, request: Generate, payload: Sequence[Frame]) -> TokenStream:
        """Send a request whose tokens shall come as they commit; `end_stream` must follow.

        Raises:
            ChannelFull: nothing was sent.
        """
        self._open[request.request_id] = _Waiter()
        try:
            self._socket.send(request, payload)
        except BaseException:
            self._open.pop(request.request_id, None)
            raise
        return TokenStream(request)

    def wait_for_news(self, stream: TokenStream, *, deadline: float, timeout_s: float) -> None:
        """Return when a stream has something to take; what has come is put there first, then it is waited for.

        Raises:
            DeadlineExceeded: retryable.
        """
        waiter = self._open[stream.request_id]
        waiter.thread = threading.get_ident()
        if not (waiter.news or stream.is_over):
            self.catch_up()
        while True:
            while waiter.news:
                stream.feed(waiter.news.popleft())
            if stream.has_news:
                return
            if time.monotonic() >= deadline:
                raise DeadlineExceeded("generate", timeout_s)
            self._wait(waiter, deadline)

    def end_stream(self, stream: TokenStream) -> None:
        """Take in no more of it, and have the service end it if it goes on there. A finalizer may call it."""
        self._open.pop(stream.request_id, None)
        if stream.is_open:
            self.tell(Cancel(self._client_id, stream.request_id))

    def tell(self, message: object) -> None:
        """Send what has no answer; see `SharedSocket.post`."""
        self._socket.post(message)

    def abandon(self) -> None:
        """In a forked child: let go without a word; the connection stays the parent's."""
        self._mutex = threading.RLock()  # the thread that held it may not exist here
        self._reader = None
        self._presence.abandon()
        self._end_presence.detach()
        self._socket.abandon()
        self._end_all(RequestAborted("the stream is the parent's"))

    def close(self) -> None:
        """Say goodbye, if somebody hears it, and let go; open calls and streams end with `RequestAborted`."""
        self._end_all(RequestAborted("the client was closed"))
        self._socket.close(ClientBye(self._client_id))
        self._end_presence()

    # ---- a call

    def _ask(
        self, key: object, waiter: _Waiter, message: object, payload: Sequence[Frame], deadline: float
    ) -> Received | None:
        """Send a message and return what comes for it; None: nothing before the deadline."""
        self._open[key] = waiter
        try:
            self._socket.send(message, payload)
            self._wait(waiter, deadline)
            with self._mutex:  # after this nothing more comes
                self._open.pop(key)
            found = waiter.news[0] if waiter.news else None
        except BaseException:
            with self._mutex:
                self._open.pop(key, None)
            for news in waiter.news:  # nobody else will see it
                if not isinstance(news, MmcachedError):
                    self._hear_and_reply(news[0])  # type: ignore[arg-type]  # no pieces come for a call
            raise
        if isinstance(found, MmcachedError):
            raise found
        return found  # type: ignore[return-value]

    def _wait(self, waiter: _Waiter, deadline: float) -> None:
        """Return when something has come for a waiter, or at the deadline. Meanwhile one of them reads for all."""
        try:
            while not waiter.news:
                left_s = min(LOOK_INTERVAL_S, deadline - time.monotonic())
                if left_s <= 0:
                    break
                if not self._may_read(waiter):
                    waiter.wait(left_s)
                elif not self._take_next():
                    self._socket.sleep(left_s)
        finally:
            # Without a call in it, so that no signal handler comes between.
            waiter.is_waiting = False
            if self._reader is waiter:
                self._reader = None
        self._call_next_reader()

    # ---- reading

    def _may_read(self, waiter: _Waiter) -> bool:
        """Return whether this waiter is the one that reads, from now on or already.

        Raises:
            LocalProtocolError: this very thread reads, further down its stack.
        """
        if self._reader is waiter:
            return True
        waiter.is_waiting = True  # first: whoever stops reading after this look calls
        with self._mutex:
            if self._reader is None:
                self._reader = waiter
                return True
        reader = self._reader
        if reader is not None and reader.thread == waiter.thread:
            raise LocalProtocolError("a signal handler or finalizer calls the client in the middle of its own call")
        return False

    def _call_next_reader(self) -> None:
        if self._reader is None and len(self._open) > 1:
            for other in list(self._open.values()):
                if other.is_waiting:
                    other.ring()
                    return

    def _take_next(self) -> bool:
        """Take in one message, or notice that the connection was lost; return whether there was either."""
        try:
            try:
                received = self._socket.receive()
            except RemoteProtocolError as error:
                self._end_all(error)
                return True
            if received is not None:
                self._take_in(*received)
                return True
            if self._socket.take_losses():
                self._lose()
                return True
            return False
        except LocalProtocolError:
            raise
        except BaseException:  # a message may be lost, and with it the answer to another thread
            self._is_broken = True
            self._end_all(RequestAborted("an interrupted call has broken the connection; try again"))
            raise

    def _take_in(self, message: ToClient, payload: list[Frame]) -> None:
        """Hand a message to whom it is for."""
        message = self._arrived(message)
        if isinstance(message, Tokens):
            for rows in message.rows:
                self._hand_over(rows.request_id, (rows, payload))
            for piece in message.streams:
                self._hand_over(piece.request_id, (piece, ()))
            return
        request_id = answer_id(message)
        if request_id is not None and self._hand_over(request_id, (message, payload)):
            return
        self._hear_and_reply(message)
        if isinstance(message, Welcome):
            for waiter in list(self._open.values()):
                if waiter.is_greeting:
                    self._hand_over(waiter, (message, payload))
        elif request_id is None and (error := failure_of(message)) is not None:
            self._end_all(error)

    def _hand_over(self, key: object, news: News) -> bool:
        """Return whether somebody waits for it, who has got it then."""
        with self._mutex:
            waiter = self._open.get(key)
            if waiter is None:
                return False
            waiter.news.append(news)
        if waiter is not self._reader:
            waiter.ring()
        return True

    def _hear_and_reply(self, message: ToClient) -> None:
        reply = self._hear(message)
        if reply is not None:
            self.tell(reply)

    def _lose(self) -> None:
        self._lost()
        self._end_all(PeerGone("the frontend died while the call was open; try again"))
        # The run directory may be another by now, and a client without a lock in it is dead to the next frontend.
        with self._mutex, contextlib.suppress(MmcachedError, OSError):
            self._presence.renew()

    def _end_all(self, error: MmcachedError) -> None:
        """End all calls and streams; each with an error of its own, since raising one changes it."""
        for waiter in list(self._open.values()):
            waiter.news.append(error_from_wire(error_to_wire(error)))
            waiter.ring()
        if self._reader is not None and self._reader.thread != threading.get_ident():
            self._socket.ring()
