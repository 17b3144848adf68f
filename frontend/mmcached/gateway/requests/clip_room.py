"""Limits the bytes of the items made of clips, from the start of their decoding until no request waits for them.

    wait ──room?──> let in: counts as the largest clip ──> made: counts as its items ──> gone
              └──none──> queued, clients take turns

The places of slices do not tell the size of their items. If there is no room, clips of the request that waits longest
are let in nevertheless: so a clip larger than all room is made alone, and requests that each have made one of their
clips never wait for each other. The bytes exceed the room by no more than the clips of one request.

Bookkeeping only: no threads, no clock. Invariant: a queued work has a waiting request, and no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Generic, TypeVar

from mmcached.gateway.processing.fair_queue import FairQueue

Job = TypeVar("Job")


class ClipRoom(Generic[Job]):
    """Room for `max_bytes`, and the works that wait for it, by key.

    Args:
        max_of_one: Maximum bytes of one clip's items.
    """

    def __init__(self, max_bytes: int, max_of_one: int) -> None:
        self._max_bytes = max_bytes
        self._max_of_one = max_of_one
        self._line: FairQueue[str] = FairQueue()
        self._jobs: dict[str, tuple[Job, str]] = {}  # and the client that came first
        self._inside: dict[str, int] = {}  # key -> bytes

    def __len__(self) -> int:
        """Return the number of waiting works."""
        return len(self._jobs)

    def __contains__(self, key: object) -> bool:
        """Return whether work waits, or takes room."""
        return key in self._jobs or key in self._inside

    @property
    def num_bytes(self) -> int:
        """The bytes that are taken."""
        return sum(self._inside.values())

    def wait(self, key: str, job: Job, client: str) -> None:
        """Queue a work; if it takes room, that is released."""
        self._inside.pop(key, None)
        self._jobs[key] = job, client
        self._line.add(key, client)

    def join(self, key: str, client: str) -> None:
        """Let another client wait too, and take a turn for the work; a work that is not queued changes nothing."""
        if key in self._jobs:
            self._line.add(key, client)

    def withdraw(self, key: str) -> bool:
        """Remove a queued work; return whether it was queued."""
        self._line.discard(key)
        return self._jobs.pop(key, None) is not None

    def num_waiting_of(self, client: str) -> int:
        return self._line.num_of(client)

    def let_in(self, in_work: Container[str], urgent: Callable[[], Iterable[str]]) -> Iterator[tuple[str, Job, str]]:
        """Yield key, job and client of each work that may begin.

        Args:
            in_work: Keys of the works that a request waits for or a thread works on; other works take no room any more.
            urgent: Returns the keys of the works of the request that waits longest.
        """
        self._inside = {each: num_bytes for each, num_bytes in self._inside.items() if each in in_work}
        while self.num_bytes + self._max_of_one <= self._max_bytes and (key := self._line.take()) is not None:
            yield self._enter(key)
        if self._jobs:
            yield from [self._enter(each) for each in urgent() if self._line.discard(each)]

    def made(self, key: str, num_bytes: int) -> None:
        """Count a work as the bytes of its items; a work without room changes nothing."""
        if key in self._inside:
            self._inside[key] = num_bytes

    def _enter(self, key: str) -> tuple[str, Job, str]:
        self._inside[key] = self._max_of_one
        job, client = self._jobs.pop(key)
        return key, job, client
