"""The requests that rank 0 holds rows for, and what it has been told of each: digests, and at last its release.

    (unknown) --open--> resident --release--> to be told --take--> told with a step --(it is withdrawn)--> to be told

Knows nothing of rows or steps. Invariant: a worker that executes the plans as they come knows the digests of a
request's blocks without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable


class Resident:
    """One request.

    Attributes:
        has_chunk: a chunk of it has been, or is being, computed.
        num_named: blocks whose digests the worker has been told.
        is_void: it began in a former epoch, so what it computes is not what its digests name.
    """

    __slots__ = ("_end", "_start", "has_chunk", "is_void", "num_named")

    def __init__(self) -> None:
        self.has_chunk = False
        self.is_void = False
        self.set_named(0, 0)

    def set_named(self, num_blocks: int, block_size: int) -> None:
        """The worker is told the digests of so many blocks."""
        self.num_named = num_blocks
        self._start = num_blocks * block_size
        self._end = self._start + block_size

    def is_in_open_block(self, start: int, end: int, num_digests: int) -> bool:
        """Whether a chunk lies in one block that has no digest and gets none by it: there is nothing to tell."""
        return self._start <= start and end < self._end and num_digests <= self.num_named


class Residents:
    """All of them, by request id."""

    def __init__(self) -> None:
        self._residents: dict[int, Resident] = {}
        self._released: list[int] = []

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._residents

    def find(self, request_id: int) -> Resident | None:
        return self._residents.get(request_id)

    def ids(self) -> set[int]:
        return set(self._residents)

    def open(self, request_id: int) -> Resident:
        """Return a new resident."""
        resident = self._residents[request_id] = Resident()
        return resident

    def begin_anew(self, request_ids: Iterable[int]) -> None:
        """Steps of these were withdrawn: what the worker was told with them it may never have heard."""
        for request_id in request_ids:
            resident = self._residents.get(request_id)
            if resident is not None and not resident.is_void:
                self._residents[request_id] = Resident()

    def make_void(self) -> None:
        """An epoch has begun: nothing that is being computed will be found."""
        for resident in self._residents.values():
            resident.is_void = True

    def release(self, request_id: int) -> None:
        """Have the worker told that a request's rows need not be held; an unknown one changes nothing."""
        if self._residents.pop(request_id, None) is not None:
            self._released.append(request_id)

    def take_released(self) -> list[int]:
        """Return and clear whom the worker must be told to release."""
        released, self._released = self._released, []
        return released

    def retell(self, released: Iterable[int]) -> None:
        """What was taken has perhaps not been told."""
        self._released = [*released, *self._released]

    def clear(self) -> None:
        self._residents.clear()
        self._released.clear()
