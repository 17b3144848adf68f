"""The socket of a client, which many threads share: any of them sends, and one at a time receives.

    sender      turn, send, and if the receiver sleeps although something has come: ring
    receiver    turn, receive; nothing there: sleep on the descriptors, without the turn; an event loop watches them
    post        as a sender; in the middle of its own thread's use (a finalizer) it is left to that use's end

ZeroMQ's descriptor tells once that something has come, to whoever touches the socket next. So whoever touches it looks
whether there is something left to receive, and the receiver does so in the same turn in which it says that it sleeps.

An exception in the middle of a message (Ctrl-C, or no memory) leaves half of it in the socket, and the other half would
be spliced into the next: such a socket is broken, and refuses everything. Knows nothing of what messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from mmcached.client.arguments import check_message
from mmcached.client.links import forks
from mmcached.wire.errors import ChannelFull, LocalProtocolError, MmcachedError, RequestAborted
from mmcached.wire.messages.client import ToClient
from mmcached.wire.messages.parts import MessageLimits
from mmcached.wire.sockets.channels import DealerChannel, Frame, encode_frames

CLOSE_LINGER_MS = 200
"""How long `close` goes on sending what was said; bounds the time that it takes beside a frontend that hangs."""
MAX_CLOSE_WAIT_S = 1.0

Received = tuple[ToClient, list[Frame]]


class SharedSocket:
    """One connection to a frontend. Dropped without `close` it lets go of everything at once, and waits for nobody.

    Args:
        address: where the frontend listens, or will.
    Attributes:
        limits: on what is sent; None while the frontend has named none.
    """

    def __init__(self, address: str) -> None:
        self.limits: MessageLimits | None = None
        self._path = address.removeprefix("ipc://")
        self._turn = threading.RLock()
        self._is_in_use = self._is_asleep = self._is_broken = self._is_closed = False
        self._num_losses = 0
        self._posted: deque[object] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._channel: DealerChannel[ToClient] = DealerChannel(self._context, address, ToClient)
        self._channel.socket.setsockopt(zmq.LINGER, 0)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptors = (*self._channel.descriptors(), self._bell)
        self._sleeper = select.poll()
        for fd in self._descriptors:
            self._sleeper.register(fd, select.POLLIN)
        self._watches: list[tuple[asyncio.AbstractEventLoop, int]] = []
        # Not at the interpreter's exit: a daemon thread may still use the socket, and the kernel closes it anyway.
        self._let_go = weakref.finalize(self, _let_go, self._channel, self._context, self._bell, self._watches)
        self._let_go.atexit = False

    @property
    def is_broken(self) -> bool:
        return self._is_broken

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Queue one message; never waits for the service. Any thread.

        Raises:
            InvalidRequest: it is larger than `limits`; nothing was queued.
            ChannelFull: the queue is at its limit; nothing was queued.
            RequestAborted: the socket is closed or broken.
            LocalProtocolError: called from the middle of another use by the same thread, as by a signal handler.
        """
        with self._turn:
            self._check()
            try:
                self._is_in_use = True
                self._send(message, payload)
            except BaseException as error:
                self._judge(error)
                raise
            finally:
                self._is_in_use = False
            if self._posted:
                self._send_posted()

    def post(self, message: object) -> None:
        """Send what has no answer; drop it if the queue is full, or the socket closed or broken.

        A finalizer may call it, in any thread: from the middle of that thread's own use it is sent after that.
        """
        self._posted.append(message)
        with self._turn:
            if not self._is_in_use:
                self._send_posted()

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none now; one thread at a time.

        Raises:
            RemoteProtocolError: it was taken off the queue and can't be read.
            RequestAborted, LocalProtocolError: as `send`.
        """
        with self._turn:
            self._check()
            try:
                self._is_in_use = True
                has_message, is_lost = self._channel.look()
                received = self._channel.try_receive() if has_message else None
                self._is_asleep = received is None
                if is_lost and not has_message:
                    self._num_losses += self._channel.take_disconnects()
            except BaseException as error:
                self._judge(error)
                raise
            finally:
                self._is_in_use = False
            if self._posted:
                self._send_posted()
        return received

    def take_losses(self) -> int:
        """Return how often the connection was lost, as `receive` has seen when there was nothing left to receive."""
        count, self._num_losses = self._num_losses, 0
        return count

    def sleep(self, timeout_s: float) -> None:
        """Return when something may have come, or somebody rings; the receiver's, after `receive` has found nothing."""
        ready = self._sleeper.poll(math.ceil(timeout_s * 1000))
        if any(fd == self._bell for fd, _ in ready):
            with self._turn, contextlib.suppress(BlockingIOError):
                if not self._is_closed:
                    os.eventfd_read(self._bell)

    def ring(self) -> None:
        """End the receiver's sleep."""
        with self._turn:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def watch(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[], None]) -> None:
        """Have an event loop call a function, instead of `sleep`; the function shall not keep this socket alive."""
        for fd in self._descriptors:
            loop.add_reader(fd, on_ready)
            self._watches.append((loop, fd))

    def unwatch(self) -> None:
        """Have no event loop look at this socket any more."""
        _unwatch(self._watches)

    def abandon(self) -> None:
        """In a forked child: let go without a word; the connection stays the parent's."""
        self._turn = threading.RLock()  # the thread that held it may not exist here
        self._is_closed = True
        self._let_go.detach()
        forks.keep_for_ever(self._channel, self._context)
        forks.close_connections(self._path)
        os.close(self._bell)

    def close(self, last_word: object) -> None:
        """Say a last word, if somebody hears it, and let go. A second call does nothing."""
        # A signal handler may close in the middle of its own thread's use; then the process's end does.
        if self._is_closed or not self._turn.acquire(timeout=MAX_CLOSE_WAIT_S):
            return
        try:
            if self._is_in_use:
                return
            if not self._is_broken and forks.is_listening(self._path):
                self._channel.socket.setsockopt(zmq.LINGER, CLOSE_LINGER_MS)
                self.post(last_word)
            self._is_closed = True
            os.eventfd_write(self._bell, 1)
            self._let_go()
        finally:
            self._turn.release()

    # ---- with the turn

    def _check(self) -> None:
        if self._is_in_use:
            raise LocalProtocolError("a signal handler or finalizer calls the client in the middle of its own call")
        if self._is_closed:
            raise RequestAborted("the client is closed")
        if self._is_broken:
            raise RequestAborted("an interrupted call has broken the connection; try again")

    def _judge(self, error: BaseException) -> None:
        """Whatever else than a typed refusal ends a use has broken the socket."""
        if not isinstance(error, MmcachedError):
            self._is_broken = True

    def _send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        frames = encode_frames(message, payload)
        if self.limits is not None:
            check_message(frames, self.limits)
        self._channel.send_frames(frames)
        if self._is_asleep and any(self._channel.look()):
            os.eventfd_write(self._bell, 1)

    def _send_posted(self) -> None:
        if self._is_closed or self._is_broken:
            self._posted.clear()
            return
        try:
            self._is_in_use = True
            while self._posted:
                with contextlib.suppress(ChannelFull):
                    self._send(self._posted.popleft())
        except BaseException as error:
            self._judge(error)
            raise
        finally:
            self._is_in_use = False


def _let_go(
    channel: DealerChannel[ToClient],
    context: zmq.Context[zmq.Socket[bytes]],
    bell: int,
    watches: list[tuple[asyncio.AbstractEventLoop, int]],
) -> None:
    """Close everything; the sockets first, or the end of the context would wait for them for ever."""
    _unwatch(watches)
    channel.close()
    context.term()
    os.close(bell)


def _unwatch(watches: list[tuple[asyncio.AbstractEventLoop, int]]) -> None:
    while watches:
        loop, fd = watches.pop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.remove_reader(fd)
