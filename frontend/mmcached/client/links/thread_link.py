"""The connection of a blocking client, which any number of threads share: one of those that wait reads for all.

    waiter    registered ──> reads, if nobody does ──> takes in whatever comes, for all; when it leaves, rings the next
                        └──> sleeps until it is rung: there are news, or it is to read

A thread that only comes by (`catch_up`) reads what is there already.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from mmcached.client.links.link import Link, Waiter
from mmcached.wire.errors import LocalProtocolError

LOOK_INTERVAL_S = 0.1
"""How often a waiting client looks whether the frontend is still there."""


class ThreadWaiter(Waiter):
    """A call of one thread.

    Attributes:
        thread: the thread that waits, or has waited last.
        is_waiting: it would read if it were rung.
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
    """As `Link`; any thread may call anything.

    A wait raises `LocalProtocolError` in a signal handler or finalizer that interrupts the reader's own thread.

    Args:
        look_interval_s: the longest sleep of a waiter.
    """

    _reader: ThreadWaiter | None = None

    def __init__(self, *values: Any, look_interval_s: float = LOOK_INTERVAL_S, **named: Any) -> None:
        super().__init__(*values, **named)
        self._look_interval_s = look_interval_s

    def new_waiter(self, *, is_greeting: bool = False) -> ThreadWaiter:
        """Return what a call of this thread waits with."""
        return ThreadWaiter(is_greeting=is_greeting)

    def wait(self, waiter: ThreadWaiter, deadline: float) -> None:
        """Return when there are news for a waiter, or at the deadline; meanwhile read for all, if nobody does."""
        waiter.thread = threading.get_ident()
        try:
            while not waiter.news:
                left_s = min(self._look_interval_s, deadline - time.monotonic())
                if left_s <= 0:
                    break
                if not self._may_read(waiter):
                    waiter.sleep(left_s)
                else:
                    # The former reader may have read what is for this waiter, and handed it over since the look above.
                    if not (self._socket.has_read or waiter.news):
                        self._socket.sleep(left_s)
                    self._take_next()
        finally:
            # Without a call in it, so that no signal handler comes between.
            waiter.is_waiting = False
            if self._reader is waiter:
                self._reader = None
        self._ring_next_reader()

    def catch_up(self) -> None:
        """Take in what has come since the last call; a thread that reads does so already."""
        self._keep_presence()
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
        """As `Link.abandon`."""
        self._reader = None
        super().abandon()

    def _may_read(self, waiter: ThreadWaiter) -> bool:
        """Return whether this waiter is the one that reads, from now on or already.

        Raises:
            LocalProtocolError: this very thread reads, further down its stack.
        """
        if self._reader is waiter:
            return True
        waiter.is_waiting = True  # first: a reader that leaves after this look rings
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
