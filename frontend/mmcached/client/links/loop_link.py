"""The connection of an asyncio client: its event loop reads the socket whenever it is readable.

Any number of calls wait at a time, each for a future of its own. A link belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any

from mmcached.client.links.link import Link, WaitingCall


class LoopWaiter(WaitingCall):
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
    """A `Link` for one event loop; make it inside that loop."""

    new_waiter = LoopWaiter

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        this = weakref.ref(self)  # the loop's callback must not keep the link alive

        def on_ready() -> None:
            if (link := this()) is not None:
                link._read()

        self._socket.watch(asyncio.get_running_loop(), on_ready)

    async def wait(self, waiter: LoopWaiter, deadline: float) -> None:
        """Return when a waiter has news, or at the deadline."""
        while not waiter.news and (left_s := deadline - time.monotonic()) > 0:
            await waiter.sleep(min(left_s, self._socket.retry_s()))
            if not waiter.news:
                self._read()  # no descriptor signals that it is time to reconnect

    def catch_up(self) -> None:
        """Handle messages that have arrived, but that the loop has had no turn to read."""
        self._presence.keep()
        while self._take_next():
            pass

    def _read(self) -> None:
        self._socket.sleep(0)  # resets the bell
        while self._take_next():
            pass
