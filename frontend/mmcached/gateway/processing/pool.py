"""Worker threads for an event loop: jobs go in, their outcomes come out through a mailbox that the loop polls.

    loop ──submit──> FairQueue: clients take turns ──> a thread ──> Mailbox ──a byte wakes the poller──> loop: take_all

    queued ──> begun ──> done: the call's result, or its exception
       │         └── withdrawn: `GRACE_S` later `is_wanted` returns False, and the call ends
       └── withdrawn: removed

Only the loop's thread may call the methods of a `WorkPool`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from mmcached.gateway.processing.fair_queue import FairQueue

GRACE_S = 0.5
"""Seconds that a withdrawn job goes on: finishing is often cheaper than starting again for the next client."""

IsWanted = Callable[[], bool]
"""Returns whether a call's outcome is still wanted; a long call checks it repeatedly."""


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The outcome of a job.

    Attributes:
        generation: The pool's `generation` when a thread began the job.
        outcome: The call's result, or its exception.
    """

    token: Hashable
    generation: int
    outcome: object


class NotWantedError(Exception):
    """The work has ended because its outcome is no longer wanted."""


class Mailbox:
    """Passes outcomes from threads to a loop, in order. `fileno` is readable when it is not empty."""

    def __init__(self) -> None:
        self._done: deque[WorkDone] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    def put(self, done: WorkDone) -> None:
        """Add an outcome; any thread may call it."""
        self._done.append(done)
        with contextlib.suppress(BlockingIOError):  # full of bytes that wake the loop just as well
            self._wake_in.send(b"\0")

    def take_all(self) -> list[WorkDone]:
        # First the bytes: outcomes added after that come with another byte.
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass
        return [self._done.popleft() for _ in range(len(self._done))]

    def fileno(self) -> int:
        return self._wake_out.fileno()

    def close(self) -> None:
        self._wake_in.close()
        self._wake_out.close()


@dataclass(slots=True, eq=False)
class _Job:
    call: Callable[[IsWanted], object]
    give_up_at: float | None = None


class WorkPool:
    """A queue of jobs, with the threads that do them; clients take turns.

    Args:
        mailbox: Receives the outcomes; closed by its owner, after this pool.
    Attributes:
        generation: Set by the loop; each outcome carries the value from the begin of its job.
    """

    def __init__(self, name: str, num_threads: int, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._queue: FairQueue[Hashable] = FairQueue()
        self._jobs: dict[Hashable, _Job] = {}  # that are not done
        self._changed = threading.Condition()
        self._is_closed = False
        self.generation = 0
        # Daemons: should the loop end without `close`, no thread may keep the process alive.
        self._threads = [
            threading.Thread(target=self._work, name=f"{name} {index}", daemon=True) for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, token: Hashable, call: Callable[[IsWanted], object], client: str) -> None:
        """Queue a call under a token; it takes one of the client's turns."""
        with self._changed:
            self._jobs[token] = _Job(call)
            self._queue.add(token, client)
            self._changed.notify()

    def join(self, token: Hashable, client: str) -> None:
        """Add a client to a queued job, which may then also take that client's turn; no effect on a finished job."""
        with self._changed:
            job = self._jobs.get(token)
            if job is None:
                return
            job.give_up_at = None
            if token in self._queue:
                self._queue.add(token, client)

    def withdraw(self, token: Hashable) -> bool:
        """Withdraw a job; return False if its outcome still comes, or has come."""
        with self._changed:
            if self._queue.discard(token):
                del self._jobs[token]
                return True
            if (job := self._jobs.get(token)) is not None:
                job.give_up_at = time.monotonic() + GRACE_S
            return False

    def num_waiting_of(self, client: str) -> int:
        with self._changed:
            return self._queue.num_of(client)

    def close(self) -> None:
        """Drop queued jobs, and wait for begun ones, which are no longer wanted."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._jobs.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # ---- the threads

    def _work(self) -> None:
        while (done := self._do_next()) is not None:
            self._mailbox.put(done)
            del done  # or a thread without work would keep its last outcome

    def _do_next(self) -> WorkDone | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            token = self._queue.take()
            job, generation = self._jobs[token], self.generation

        def is_wanted() -> bool:
            return not self._is_closed and (job.give_up_at is None or time.monotonic() < job.give_up_at)

        try:
            outcome = job.call(is_wanted)
        except Exception as error:
            # Traceback and context would keep the frames of the work alive for as long as the error lives.
            error.__context__ = None
            outcome = error.with_traceback(None)
        with self._changed:
            self._jobs.pop(token, None)
        return WorkDone(token, generation, outcome)
