"""Held leases of an engine's requests on chunks of the ring are given back when their requests end and nobody reads.

    hold --> (reading <--> idle) --> end --> given back, exactly once

Every plan that names a lease's chunk adds an outstanding read `(worker epoch, step)`, every `read_done` removes one.
Knows nothing of sockets or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mmcached.wire.errors import InvariantError, LocalProtocolError
from mmcached.wire.handle import Handle, LeaseId


@dataclass(slots=True)
class _Held:
    handle: Handle
    request_id: int
    reads: set[tuple[int, int]] = field(default_factory=set)
    has_ended: bool = False


class HeldLeases:
    """All leases of one engine incarnation, by seq.

    Args:
        give_back: writes the return into the ring; called once per lease.
    """

    def __init__(self, give_back: Callable[[Handle], None]) -> None:
        self._give_back = give_back
        self._held: dict[int, _Held] = {}
        self._of_request: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, seq: object) -> bool:
        return seq in self._held

    def hold(self, request_id: int, handle: Handle, lease: LeaseId) -> None:
        """Take note of a lease that came with a request. Raises LocalProtocolError if its seq is held already."""
        if lease.seq in self._held:
            raise LocalProtocolError(f"lease {lease.seq} is held already")
        self._held[lease.seq] = _Held(handle, request_id)
        self._of_request.setdefault(request_id, []).append(lease.seq)

    def reading(self, seqs: Iterable[int], worker_epochs: Iterable[int], step: int) -> None:
        """Note that a plan is about to make these workers read under these leases."""
        epochs = list(worker_epochs)
        for held in [self._held[seq] for seq in seqs]:  # all are known, or nothing is noted
            held.reads.update((epoch, step) for epoch in epochs)

    def read_done(self, worker_epoch: int, step: int, seq: int) -> None:
        """End a worker's read under a lease. Unknown or repeated reports change nothing."""
        held = self._held.get(seq)
        if held is not None:
            held.reads.discard((worker_epoch, step))
            self._settle(seq)

    def worker_died(self, worker_epoch: int) -> None:
        """Drop the reads of a worker that is certified dead."""
        for seq, held in list(self._held.items()):
            held.reads = {read for read in held.reads if read[0] != worker_epoch}
            self._settle(seq)

    def end_request(self, request_id: int) -> None:
        """Give back a request's leases as soon as nobody reads. A second call changes nothing."""
        for seq in self._of_request.pop(request_id, ()):
            self._held[seq].has_ended = True
            self._settle(seq)

    def forget_all(self) -> None:
        """Drop all leases of a ring that is over, without giving them back."""
        self._held.clear()
        self._of_request.clear()

    def check_integrity(self) -> None:
        for seq, held in self._held.items():
            if held.has_ended and not held.reads:
                raise InvariantError(f"lease {seq} has ended and is not read, but is still held")
            if not held.has_ended and seq not in self._of_request.get(held.request_id, ()):
                raise InvariantError(f"lease {seq} belongs to request {held.request_id}, which does not know it")

    def _settle(self, seq: int) -> None:
        held = self._held[seq]
        if held.has_ended and not held.reads:
            del self._held[seq]
            self._give_back(held.handle)
