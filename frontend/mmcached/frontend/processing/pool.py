"""Threads that work for a loop: jobs go in, what became of them comes out through a mailbox that the loop polls.

    loop ──submit──> WorkPool, a queue and its threads ──> Mailbox ──a byte wakes the poller──> loop: take_all

For what lets go of the interpreter lock and has an end (BLAKE3); pictures are decoded in processes, see
`decoder_pool`.

Knows nothing of images or requests. `submit`, `withdraw`, `take_all` and `close` are for the loop's thread alone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from mmcached.frontend.processing.fair_queue import FairQueue


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a job.

    Attributes:
        generation: of the pool when a thread began it.
        outcome: what the call has returned, or the exception that it raised.
    """

    token: Hashable
    generation: int
    outcome: object


class NotWantedError(Exception):
    """Work ends because nobody wants its outcome any more."""


class Mailbox:
    """What threads leave for a loop, in their order. `fileno` is readable when something is there."""

    def __init__(self) -> None:
        self._done: deque[Done] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    def put(self, done: Done) -> None:
        """Leave something; any thread may call it."""
        self._done.append(done)
        with contextlib.suppress(BlockingIOError):  # full of bytes that wake the loop just as well
            self._wake_in.send(b"\0")

    def take_all(self) -> list[Done]:
        # First the bytes: what is left after that comes with another one.
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass
        return [self._done.popleft() for _ in range(len(self._done))]

    def fileno(self) -> int:
        return self._wake_out.fileno()

    def close(self) -> None:
        self._wake_in.close()
        self._wake_out.close()


class WorkPool:
    """A queue of jobs and the threads that do them; clients take turns.

    Args:
        name: of its threads, for who looks at the process.
        mailbox: where outcomes go; closed by its owner, after this pool.
    Attributes:
        generation: set by the loop; each outcome tells the one in which its job was begun.
    """

    def __init__(self, name: str, num_threads: int, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._queue: FairQueue[Hashable] = FairQueue()
        self._calls: dict[Hashable, Callable[[], object]] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        self.generation = 0
        # Daemons: should the loop end without `close`, no thread may keep the process alive.
        self._threads = [
            threading.Thread(target=self._work, name=f"{name} {index}", daemon=True) for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, token: Hashable, call: Callable[[], object], client: str) -> None:
        """Queue a job.

        Args:
            token: what the loop knows it by.
            call: runs in a thread of the pool; what it raises is its outcome.
            client: whose turn it takes.
        """
        with self._changed:
            self._calls[token] = call
            self._queue.add(token, client)
            self._changed.notify()

    def withdraw(self, token: Hashable) -> bool:
        """Take a job back; False if a thread has begun it, or it is not there."""
        with self._changed:
            self._calls.pop(token, None)
            return self._queue.discard(token)

    def close(self) -> None:
        """Drop what nobody has begun, and wait for the threads: each ends with the job that it has in hand."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._calls.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            taken = self._next_job()
            if taken is None:
                return
            token, call, generation = taken
            try:
                outcome: object = call()
            except Exception as error:
                # Its traceback would keep the frames of the work alive for as long as anybody has the error.
                outcome = error.with_traceback(None)
            self._mailbox.put(Done(token, generation, outcome))
            del taken, call, outcome  # or a thread without work would keep the last one's file and result

    def _next_job(self) -> tuple[Hashable, Callable[[], object], int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if self._is_closed:
                return None
            token = self._queue.take()
            return token, self._calls.pop(token), self.generation
