"""The connection of a blocking client, shared by any number of threads: one of the waiting threads reads for all.

    waiter    registered ──> reads, if no other does ──> handles all messages; when it leaves, rings the next waiter
                         └──> sleeps until it is rung: it has news, or it is to read

`catch_up` handles messages that have arrived already, without waiting.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from mmcached.client.links.link import Link, WaitingCall
from mmcached.wire.errors import LocalProtocolError

LOOK_INTERVAL_S = 0.1
"""Seconds between a waiting client's checks that the frontend is still there."""


class ThreadWaiter(WaitingCall):
    """A call of one thread.

    Attributes:
        thread: Id of the thread that waits, or has waited last.
        is_waiting: Whether it would read if it were rung.
    """

    __slots__ = ("_bell", "is_waiting", "thread")

    def __init__(self, *, is_greeting: bool = False) -> None:
        super().__init__(is_greeting=is_greeting)
        self.thread = threading.get_ident()
        self.is_waiting = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        """End its wait, or the next one."""
        try:  # noqa: SIM105 (every message rings)
            self._bell.release()
        except RuntimeError:  # rung already
            pass

    def sleep(self, timeout_s: float) -> None:
        """Return when it is rung, or after `timeout_s`."""
        self._bell.acquire(timeout=timeout_s)


class ThreadLink(Link[ThreadWaiter]):
    """A `Link` for threads; any thread may call any method.

    A wait raises `LocalProtocolError` in a signal handler or finalizer that interrupts the reader's own thread.

    Args:
        look_interval_s: Longest sleep of a waiter in seconds.
    """

    new_waiter = ThreadWaiter
    _reader: ThreadWaiter | None = None

    def __init__(self, *values: Any, look_interval_s: float = LOOK_INTERVAL_S, **named: Any) -> None:
        super().__init__(*values, **named)
        self._look_interval_s = look_interval_s

    def wait(self, waiter: ThreadWaiter, deadline: float) -> None:
        """Return when a waiter has news, or at the deadline; meanwhile read for all, if no other thread reads."""
        waiter.thread = threading.get_ident()
        try:
            while not waiter.news:
                left_s = min(self._look_interval_s, deadline - time.monotonic())
                if left_s <= 0:
                    break
                if not self._may_read(waiter):
                    waiter.sleep(left_s)
                else:
                    # The former reader may have received this waiter's news since the check above.
                    if not (self._socket.has_read or waiter.news):
                        self._socket.sleep(left_s)
                    self._take_next()
        finally:
            # Contains no call, so that no signal handler can run in between.
            waiter.is_waiting = False
            if self._reader is waiter:
                self._reader = None
        self._ring_next_reader()

    def catch_up(self) -> None:
        """Handle messages that have arrived since the last call, unless another thread reads."""
        self._presence.keep()
        if self._reader is not None or not self._socket.has_news():
            return
        waiter = ThreadWaiter()
        try:
            if self._may_read(waiter):
                while self._take_next():
                    pass
        finally:
            if self._reader is waiter:
                self._reader = None
        self._ring_next_reader()

    def abandon(self) -> None:
        """Close in a forked child, as `Link.abandon`."""
        self._reader = None
        super().abandon()

    def _may_read(self, waiter: ThreadWaiter) -> bool:
        """Return whether this waiter is the reader, from now on or already.

        Raises:
            LocalProtocolError: The same thread is reading further down its stack.
        """
        if self._reader is waiter:
            return True
        waiter.is_waiting = True  # first: a reader that leaves after the check below rings this waiter
        with self._mutex:
            if self._reader is None:
                self._reader = waiter
                return True
        reader = self._reader
        if reader is not None and reader.thread == waiter.thread:
            raise LocalProtocolError("a signal handler or finalizer calls the client in the middle of its own call")
        return False

    def _ring_next_reader(self) -> None:
        if self._reader is None:
            for other in list(self._open.values()):
                if other.is_waiting:
                    other.ring()
                    return
