"""Bounds the bytes of what is made of clips, from the moment that their decoding begins until nobody waits for them.

    wait ──room?──> let in: counts as the most that a clip may be made into ──> made: counts as what it is ──> gone
              └──none──> in line, clients take turns

Where slices lie does not say what is made of them. Where there is no room, clips of the request that waits longest are
let in all the same: so what is larger than all room is made alone, and requests that each have made one of their clips
never wait for each other. What counts never exceeds the room by more than one request's clips.

Books only: no threads, no clock. Invariant: what is in line is in work for somebody, and no thread knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Generic, TypeVar

from mmcached.gateway.processing.fair_queue import FairQueue

Job = TypeVar("Job")


class ClipRoom(Generic[Job]):
    """Room for `max_bytes`; works by key.

    Args:
        max_of_one: bytes that a clip may be made into.
    """

    def __init__(self, max_bytes: int, max_of_one: int) -> None:
        self._max_bytes = max_bytes
        self._max_of_one = max_of_one
        self._line: FairQueue[str] = FairQueue()
        self._jobs: dict[str, tuple[Job, str]] = {}  # and the client that came first
        self._inside: dict[str, int] = {}  # key -> bytes

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._jobs)

    def __contains__(self, key: object) -> bool:
        """Return whether work waits, or is inside."""
        return key in self._jobs or key in self._inside

    @property
    def num_bytes(self) -> int:
        """Return what counts."""
        return sum(self._inside.values())

    def wait(self, key: str, job: Job, client: str) -> None:
        """Get in line; what was inside begins anew."""
        self._inside.pop(key, None)
        self._jobs[key] = job, client
        self._line.add(key, client)

    def join(self, key: str, client: str) -> None:
        """Let another client wait, too, and lend it a turn; what is not in line changes nothing."""
        if key in self._jobs:
            self._line.add(key, client)

    def withdraw(self, key: str) -> bool:
        """Take back what waits; return whether it did."""
        self._line.discard(key)
        return self._jobs.pop(key, None) is not None

    def num_waiting_of(self, client: str) -> int:
        return self._line.num_of(client)

    def let_in(self, in_work: Container[str], urgent: Callable[[], Iterable[str]]) -> Iterator[tuple[str, Job, str]]:
        """Yield key, job and client of what may begin.

        Args:
            in_work: what somebody waits for, or works on: the rest takes no room any more.
            urgent: returns the keys that the request which waits longest waits for.
        """
        self._inside = {each: num_bytes for each, num_bytes in self._inside.items() if each in in_work}
        while self.num_bytes + self._max_of_one <= self._max_bytes and (key := self._line.take()) is not None:
            yield self._enter(key)
        if self._jobs:
            yield from [self._enter(each) for each in urgent() if self._line.discard(each)]

    def made(self, key: str, num_bytes: int) -> None:
        """Count what has been made as what it is; what is not inside changes nothing."""
        if key in self._inside:
            self._inside[key] = num_bytes

    def _enter(self, key: str) -> tuple[str, Job, str]:
        self._inside[key] = self._max_of_one
        job, client = self._jobs.pop(key)
        return key, job, client
