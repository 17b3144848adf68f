"""The read ledger knows under which leases a step still reads.

Knows nothing of rings: it only counts what its owner opens and what finalizers report. Finalizers run in any thread
and at any moment, so they do one thing: append to a deque. The owner's thread looks at it when it asks.

    open(step, seq) -> read        before the view is taken
    read.release()                 by the view's finalizer, or by the owner if no view was taken; twice is once
    take_done() -> [ReadDone]      leases of which no read is open any more, each once
"""

from __future__ import annotations

from collections import deque

from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ReadDone


class Read:
    """One view to be taken under a lease."""

    __slots__ = ("_released", "seq", "step")

    def __init__(self, step: int, seq: int, released: deque[Read]) -> None:
        self.step = step
        self.seq = seq
        self._released = released

    def release(self) -> None:
        """Say that nothing is read any more; callable from any thread."""
        self._released.append(self)


class ReadLedger:
    """Reads that are open, by lease and step."""

    def __init__(self) -> None:
        self._open: set[Read] = set()
        self._released: deque[Read] = deque()

    def is_open(self, step: int) -> bool:
        """Return whether a read of this step has not been taken note of as released."""
        return any(read.step == step for read in self._open)

    def open(self, step: int, seq: int) -> Read:
        read = Read(step, seq, self._released)
        self._open.add(read)
        return read

    def take_done(self) -> list[ReadDone]:
        """Return the leases that have become free since the last call, in order of release."""
        done: dict[tuple[int, int], None] = {}
        while self._released:
            read = self._released.popleft()
            if read in self._open:
                self._open.discard(read)
                done[read.step, read.seq] = None
        still_read = {(read.step, read.seq) for read in self._open}
        return [ReadDone(step, seq) for step, seq in done if (step, seq) not in still_read]

    def check_integrity(self) -> None:
        if any(read._released is not self._released for read in self._open):
            raise InvariantError("a read is open in a ledger that is not its own")
