"""The socket of a client, shared by many threads: any of them sends, and one at a time receives.

    sender      turn, send
    receiver    turn, receive; no message: sleep on the descriptors, without the turn; an event loop watches them
    post        as a sender; called in the middle of its own thread's use (a finalizer), it is sent at that use's end

The receiver sends bytes that the kernel did not take at once, when the socket is writable, and it reconnects.

An exception in the middle of a message (Ctrl-C, or no memory) leaves half of the message in the socket, and the rest
would be mixed with the next one: the next use ends the connection, which counts as lost. Does not know the meaning of
messages.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mmcached.client.arguments import check_message
from mmcached.wire.errors import ClientClosed, LocalProtocolError, MmcachedError, RequestAborted, copy_of
from mmcached.wire.messages.client import ToClient
from mmcached.wire.messages.parts import MessageLimits
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.sockets.frames import Frame, encode_frames

if TYPE_CHECKING:
    import asyncio

CLOSE_LINGER_S = 0.2
"""Seconds for which `close` goes on sending queued messages; bounds its time if the frontend hangs."""
MAX_CLOSE_WAIT_S = 1.0

T = TypeVar("T")
Received = tuple[ToClient, list[Frame]]
PARENTS = RequestAborted("a call of the process that has forked this one; try again")
CLOSED = ClientClosed()
"""Errors that end calls; raised as copies."""


class SharedSocket:
    """One connection to a frontend. Dropped without `close`, it closes at once, without waiting.

    Args:
        address: Address at which the frontend listens, or will listen.

    Attributes:
        limits: Limits of sent messages; None until the frontend has announced them.
    """

    def __init__(self, address: str) -> None:
        self.limits: MessageLimits | None = None
        self._turn = threading.RLock()
        self._is_in_use = self._is_halfway = False
        self._refusal: MmcachedError | None = None
        self._num_losses_taken = 0
        self._posted: deque[object] = deque()
        self._dialer: Dialer[ToClient] = Dialer(address, ToClient)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptors = (self._dialer.fileno(), self._bell)
        self._sleeper = select.poll()
        for fd in self._descriptors:
            self._sleeper.register(fd, select.POLLIN)
        self._watches: list[tuple[asyncio.AbstractEventLoop, int]] = []
        # Not at the interpreter's exit: a daemon thread may still use the socket, and the kernel closes it anyway.
        self._let_go = weakref.finalize(self, _let_go, self._dialer, self._bell, self._watches)
        self._let_go.atexit = False

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message; never waits for the service. Any thread may call it.

        Raises:
            InvalidRequest: It exceeds `limits`; no message was queued.
            ChannelFull: The queue is at its limit; no message was queued.
            ClientClosed: After `close`; RequestAborted in a forked child.
            LocalProtocolError: Called in the middle of another use by the same thread, as by a signal handler.
        """
        frames = self._frames(message, payload)
        self._use(self._dialer.send_frames, frames)

    def post(self, message: object) -> None:
        """Send a message that has no answer; drop it if the queue is full, or the socket closed.

        A finalizer may call it, in any thread: in the middle of that thread's own use it is sent at the end of that
        use.
        """
        self._posted.append(message)
        with self._turn:
            if self._refusal is not None:
                self._posted.clear()
            elif not self._is_in_use:
                self._guarded(self._send_posted)

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none now; one thread at a time.

        While a loss was not taken it returns None, so that a loss is taken before messages of the next connection.

        Raises:
            RemoteProtocolError: The message was taken off the queue and is invalid.
            ClientClosed, RequestAborted, LocalProtocolError: As `send`.
        """
        return self._use(self._receive)

    def break_off(self) -> None:
        """End the connection at the next use, and wake the receiver; the socket reconnects by itself."""
        with self._turn:
            self._is_halfway = True
            self.ring()

    def has_news(self) -> bool:
        """Return whether `receive` may return a message, or notice a lost connection. Raises as `send`."""
        with self._turn:
            self._check()
            return self._is_halfway or self.num_untaken_losses > 0 or self._dialer.has_news()

    @property
    def has_read(self) -> bool:
        """Whether `receive` may return a message that was read already, or a loss was not yet taken."""
        return self._dialer.has_read or self.num_untaken_losses > 0

    @property
    def num_untaken_losses(self) -> int:
        return self._dialer.num_losses - self._num_losses_taken

    def take_losses(self) -> int:
        """Return how often the connection was lost since the last call, as far as `receive` has noticed."""
        count = self.num_untaken_losses
        self._num_losses_taken += count
        return count

    def retry_s(self) -> float:
        """Return the seconds after which `receive` should be called in any case; infinite while connected."""
        return self._dialer.retry_s()

    def sleep(self, timeout_s: float) -> None:
        """Return when a message may have arrived, at a ring, or when it is time to reconnect; for the receiver."""
        ready = self._sleeper.poll(math.ceil(min(timeout_s, self.retry_s()) * 1000))
        for fd, _ in ready:
            if fd == self._bell:
                with self._turn, contextlib.suppress(BlockingIOError):
                    if self._refusal is None:
                        os.eventfd_read(self._bell)

    def ring(self) -> None:
        """End the receiver's sleep."""
        with self._turn:
            if self._refusal is None:
                os.eventfd_write(self._bell, 1)

    def watch(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]) -> None:
        """Have an event loop call a function, instead of `sleep`; the function must not keep this socket alive."""
        for fd in self._descriptors:
            loop.add_reader(fd, on_ready)
            self._watches.append((loop, fd))

    def unwatch(self) -> None:
        """Remove the callbacks of event loops."""
        _unwatch(self._watches)

    def abandon(self) -> None:
        """In a forked child: close without sending; the connection stays the parent's."""
        self._turn = threading.RLock()  # the thread that held it may not exist here
        self._refusal = PARENTS
        self._let_go.detach()
        self._dialer.abandon()
        os.close(self._bell)

    def close(self, last_word: object) -> None:
        """Send a last message if connected, and close; later uses raise `ClientClosed`. A second call does nothing."""
        # A signal handler may close in the middle of its own thread's use; then the end of the process closes it.
        if self._refusal is not None or not self._turn.acquire(timeout=MAX_CLOSE_WAIT_S):
            return
        try:
            if self._is_in_use:
                return
            if self._dialer.is_connected:
                self.post(last_word)
                self._dialer.flush(CLOSE_LINGER_S)
            self._refusal = CLOSED
            os.eventfd_write(self._bell, 1)
            self._let_go()
        finally:
            self._turn.release()

    # ---- with the turn

    def _use(self, use: Callable[..., T], *values: Any) -> T:
        """Use the dialer, and then send the messages posted meanwhile."""
        with self._turn:
            self._check()
            result = self._guarded(use, *values)
            if self._posted:
                self._guarded(self._send_posted)
            return result

    def _guarded(self, use: Callable[..., T], *values: Any) -> T:
        """Use the dialer; an exception other than a typed refusal ends the connection at the next use."""
        try:
            self._is_in_use = True
            if self._is_halfway:
                self._dialer.break_off()
            self._is_halfway = True
            result = use(*values)
            self._is_halfway = False
            return result
        except MmcachedError:
            self._is_halfway = False
            raise
        finally:
            self._is_in_use = False
            if self._is_halfway:
                os.eventfd_write(self._bell, 1)  # the receiver takes the loss

    def _check(self) -> None:
        if self._is_in_use:
            raise LocalProtocolError("a signal handler or finalizer calls the client in the middle of its own call")
        if self._refusal is not None:
            raise copy_of(self._refusal)

    def _frames(self, message: object, payload: Sequence[Frame] = ()) -> list[Frame]:
        frames = encode_frames(message, payload)
        if self.limits is not None:
            check_message(frames, self.limits)
        return frames

    def _receive(self) -> Received | None:
        return None if self.num_untaken_losses else self._dialer.try_receive()

    def _send_posted(self) -> None:
        while self._posted:
            with contextlib.suppress(MmcachedError):  # too large, or too many wait
                self._dialer.send_frames(self._frames(self._posted.popleft()))


def _let_go(dialer: Dialer[ToClient], bell: int, watches: list[tuple[asyncio.AbstractEventLoop, int]]) -> None:
    _unwatch(watches)
    dialer.close()
    os.close(bell)


def _unwatch(watches: list[tuple[asyncio.AbstractEventLoop, int]]) -> None:
    while watches:
        loop, fd = watches.pop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.remove_reader(fd)
