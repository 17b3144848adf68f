"""Enforces deadlines of calls that cannot be cancelled, by making each in a thread that may be left behind.

A call into Mooncake returns seconds after its master has died or stopped. The caller waits no longer than its deadline,
and a later result is dropped. The threads are few; while each of them is in a call beyond its deadline, further calls
fail at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from mmcached.second_level.backend import BackendError, BackendLate
from mmcached.wire.closeable import Closeable

Result = TypeVar("Result")


class BoundedCalls(Closeable):
    """At most `limit` threads, started as needed, and the calls under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_threads = 0
        self._made: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._running: set[_Call[Any]] = set()
        self._turn = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of calls that have not returned, abandoned ones included."""
        with self._turn:
            return len(self._running)

    def run(self, ask: Callable[[], Result], deadline: float) -> Result:
        """Run a function in another thread, and return or raise its outcome.

        Args:
            ask: Must not use the caller's objects: it may outlast the caller.

        Raises:
            BackendError: The deadline has passed (`BackendLate`), or no thread is free.
        """
        call = _Call(ask, deadline)
        with self._turn:
            self._await_thread(deadline)
            self._running.add(call)
            if len(self._running) > self._num_threads:
                threading.Thread(target=self._make_calls, name="mmc-l2-mooncake", daemon=True).start()
                self._num_threads += 1
        self._made.put(call)
        return call.result()

    def close(self) -> None:
        """End all waits; a stuck thread ends when its call returns."""
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            for call in self._running:
                call.give_up()
            self._turn.notify_all()
        for _ in range(self._num_threads):
            self._made.put(None)

    def _await_thread(self, deadline: float) -> None:
        def is_settled() -> bool:
            return self._is_closed or len(self._running) < self._limit or self._are_stuck()

        if not self._turn.wait_for(is_settled, _left_s(deadline)):
            raise _late()
        if self._is_closed:
            raise _closed()
        if len(self._running) >= self._limit:
            raise BackendError(f"all {self._limit} threads are stuck in calls to Mooncake")

    def _are_stuck(self) -> bool:
        now = time.monotonic()
        return all(call.deadline <= now for call in self._running)

    def _make_calls(self) -> None:
        while (call := self._made.get()) is not None:
            call.make()
            with self._turn:
                self._running.discard(call)
                self._turn.notify()
            call.is_over.set()


class _Call(Generic[Result]):
    def __init__(self, ask: Callable[[], Result], deadline: float) -> None:
        self.deadline = deadline
        self.is_over = threading.Event()
        self._ask = ask
        self._result: list[Result] = []
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._result.append(self._ask())
        except BaseException as error:
            self._error = error

    def give_up(self) -> None:
        self._error = _closed()
        self.is_over.set()

    def result(self) -> Result:
        """Wait for the end of the call; return its result or raise its error."""
        if not self.is_over.wait(_left_s(self.deadline)):
            raise _late()
        if self._error is not None:
            raise self._error
        return self._result[0]


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _late() -> BackendLate:
    return BackendLate("Mooncake has not answered in time")


def _closed() -> BackendError:
    return BackendError("the second level is closed")
