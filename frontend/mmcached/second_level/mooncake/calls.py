"""Ends calls by their deadlines that cannot be cut off: each runs in a thread that may stay behind in it.

A call into Mooncake is over when Mooncake says so: seconds after its master has died or stopped. Who has made it waits
no longer than his deadline, and what it returns then is dropped. The threads are few; while each of them is in a call
that is beyond its deadline, another call fails at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mmcached.second_level.backend import BackendError, BackendLate
from mmcached.wire.closeable import Closeable

Result = TypeVar("Result")


class Calls(Closeable):
    """The calls that are made now, each in a thread that lives no longer than it.

    Args:
        limit: of threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[_Call[Any]] = set()
        self._turn = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many have not come back, those included that nobody waits for any more."""
        with self._turn:
            return len(self._running)

    def run(self, ask: Callable[[], Result], deadline: float) -> Result:
        """Return what a function returns in another thread, or raise what it raises there.

        Args:
            ask: keeps nothing of the caller's: it may run on after he has gone.
        Raises:
            BackendLate: it has not by then.
            BackendError: there is no thread for it.
        """
        call = _Call(ask, deadline)
        with self._turn:
            self._await_thread(deadline)
            self._running.add(call)
        try:
            threading.Thread(target=self._make, args=(call,), name="mmc-l2-mooncake", daemon=True).start()
        except BaseException:
            self._end(call)
            raise
        with self._turn:
            self._wait(lambda: call.is_over, deadline)
        return call.result()

    def close(self) -> None:
        """Let nobody wait any more; a call that is stuck goes on alone."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def _await_thread(self, deadline: float) -> None:
        def is_settled() -> bool:
            return len(self._running) < self._limit or self._are_stuck()

        self._wait(is_settled, deadline)
        if len(self._running) >= self._limit:
            raise BackendError(f"Mooncake holds up all {self._limit} threads that ask it")

    def _are_stuck(self) -> bool:
        now = time.monotonic()
        return all(call.deadline <= now for call in self._running)

    def _wait(self, is_so: Callable[[], bool], deadline: float) -> None:
        if not self._turn.wait_for(lambda: self._is_closed or is_so(), max(0.0, deadline - time.monotonic())):
            raise BackendLate("Mooncake has not answered in time")
        if self._is_closed:
            raise BackendError("the second level is closed")

    def _make(self, call: _Call[Any]) -> None:
        try:
            call.make()
        finally:
            self._end(call)

    def _end(self, call: _Call[Any]) -> None:
        with self._turn:
            call.is_over = True
            self._running.discard(call)
            self._turn.notify_all()


class _Call(Generic[Result]):
    """A function, and what came of it."""

    def __init__(self, ask: Callable[[], Result], deadline: float) -> None:
        self.deadline = deadline
        self.is_over = False
        self._ask = ask
        self._result: list[Result] = []
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._result.append(self._ask())
        except BaseException as error:
            self._error = error

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._result[0]
