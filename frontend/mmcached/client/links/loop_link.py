"""The connection of an asyncio client: its event loop reads the socket whenever something has come.

Any number of calls wait at a time, each for a future of its own. One event loop owns a link.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any

from mmcached.client.links.link import Link, Waiter


class LoopWaiter(Waiter):
    """A call of one event loop."""

    __slots__ = ("_rung",)

    def __init__(self, *, is_greeting: bool = False) -> None:
        super().__init__(is_greeting=is_greeting)
        self._rung: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End its wait, if it waits."""
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    async def sleep(self, timeout_s: float) -> None:
        """Return when it is rung, or after `timeout_s`."""
        loop = asyncio.get_running_loop()
        self._rung = loop.create_future()
        timer = loop.call_later(timeout_s, self.ring)
        try:
            await self._rung
        finally:
            timer.cancel()


class LoopLink(Link[LoopWaiter]):
    """As `Link`, for one event loop; make it inside that loop."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        this = weakref.ref(self)  # the loop keeps nobody alive

        def on_ready() -> None:
            if (link := this()) is not None:
                link._read()

        self._socket.watch(asyncio.get_running_loop(), on_ready)

    def new_waiter(self, *, is_greeting: bool = False) -> LoopWaiter:
        """Return what a call waits with."""
        return LoopWaiter(is_greeting=is_greeting)

    async def wait(self, waiter: LoopWaiter, deadline: float) -> None:
        """Return when there are news for a waiter, or at the deadline."""
        while not waiter.news and (left_s := deadline - time.monotonic()) > 0:
            await waiter.sleep(min(left_s, self._socket.retry_s()))
            if not waiter.news:
                self._read()  # nothing tells when it is time to try to connect again

    def catch_up(self) -> None:
        """Take in what has come and the loop has had no turn to read."""
        self._keep_presence()
        while self._take_next():
            pass

    def _read(self) -> None:
        try:
            self._socket.sleep(0)  # the bell was heard
            while self._take_next():
                pass
        except BaseException:  # in pieces: it would be ready for ever
            self._socket.unwatch()
            raise
