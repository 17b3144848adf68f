"""Keeps records where other hosts find them: frames, epochs and the circuit breaker above a `Backend`.

    get_many    found, or why not; parts of a large record are asked for together
    save        what lies there already is not sent again
    claim       who computes what nobody has

A record is found in the epoch in which it was saved, and in no other. A server that has no epoch has no record either:
it is new, or was emptied, or has evicted what told the epoch; whoever sees that first begins one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from mmcached.second_level.backend import Backend, BackendError, BackendLate, BackendRefused, Got, Value
from mmcached.second_level.breaker import Breaker
from mmcached.second_level.records import (
    HEAD_BYTES,
    Flaw,
    Framed,
    Manifest,
    Unusable,
    is_head,
    pack,
    unpack,
    unpack_part,
)
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ItemTooLarge

MAX_FLAWED = 4096
"""Names that are remembered as damaged in the second level: they are saved whatever their heads say."""

FAIR_S = 0.003
"""A call that had less time says nothing of a server that has not answered it."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes of an encoded record, one piece behind the other."""

    pieces: list[memoryview]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Missed:
    """There is no such record; or something lies there which is not it; or it was not read, while others were."""

    reason: Literal["absent", "late", "failed"] | Flaw


class SharedRecords(Closeable):
    """The records of one server. Any number of threads may call; each call raises `BackendError`.

    Args:
        max_bytes: limit of a record.
        ttl_s: time that a record stays at most.
        clock: monotonic seconds.
    Attributes:
        epoch: the one that was last seen; 0: none.
        breaker: whether the server is asked at all.
    """

    def __init__(
        self, backend: Backend, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.epoch = 0
        self.breaker = Breaker(clock())
        self._backend = backend
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._flawed: set[str] = set()

    def get_many(self, names: Sequence[str], *, deadline: float) -> list[Found | Missed]:
        """Return for each name its record, or why there is none."""
        epoch, values = self._values(names, deadline)
        self.epoch = epoch
        return [self._look(name, epoch, value, deadline) for name, value in zip(names, values, strict=True)]

    def holds(self, names: Sequence[str], *, deadline: float) -> list[bool]:
        """Return for each name whether a record of this epoch lies there, by its head alone."""
        epoch, heads = self._heads(names, deadline)
        return [
            head is not None and not isinstance(head, BackendError) and is_head(name, epoch, head)
            for name, head in zip(names, heads, strict=True)
        ]

    def save(
        self, name: str, pieces: Sequence[Value], *, as_of: int = 0, deadline: float
    ) -> Literal["kept", "there", "outdated"]:
        """Store a record, unless the same lies there.

        Args:
            pieces: the encoded record.
            as_of: `epoch` when the record came about; a later one has no room for it. 0: none was known.
        Raises:
            ItemTooLarge: it is above the limit.
        """
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        if nbytes > self._max_bytes:
            raise ItemTooLarge(nbytes, self._max_bytes, "record of the second level")
        epoch, (head,) = self._heads([name], deadline)
        if isinstance(head, BackendError):
            raise head
        if not epoch:
            epoch = self.begin_epoch(deadline=deadline)
        elif as_of not in (0, epoch):
            return "outdated"
        framed = pack(name, epoch, pieces)
        if head is not None and _begins_with(framed[-1], head) and name not in self._flawed:
            return "there"
        for part_name, value in framed:
            self._put(part_name, value, deadline)
        self._flawed.discard(name)
        return "kept"

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Return whether no other host computes a record; none shall for that time."""
        return self._ask(lambda: self._backend.claim(name, ttl_s=ttl_s, deadline=deadline), deadline)

    def drop_claim(self, name: str, *, deadline: float) -> None:
        self._ask(lambda: self._backend.drop_claim(name, deadline=deadline), deadline)

    def begin_epoch(self, *, deadline: float) -> int:
        """Begin an epoch for all hosts: what was saved before is found no more, once this has returned."""
        self.epoch = self._ask(lambda: self._backend.begin_epoch(deadline=deadline), deadline)
        return self.epoch

    def close(self) -> None:
        self._backend.close()

    def _values(self, names: Sequence[str], deadline: float) -> tuple[int, Sequence[Got]]:
        """Return the epoch and what lies under the names; if none of them was read, fail."""

        def get() -> tuple[int, Sequence[Got]]:
            epoch, values = self._backend.get_many(names, deadline=deadline)
            errors = [value for value in values if isinstance(value, BackendError)]
            if errors and len(errors) == len(values):
                raise errors[0]
            return epoch, values

        return self._ask(get, deadline)

    def _heads(self, names: Sequence[str], deadline: float) -> tuple[int, Sequence[Got]]:
        found = self._ask(lambda: self._backend.get_heads(names, HEAD_BYTES, deadline=deadline), deadline)
        self.epoch = found[0]
        return found

    def _put(self, name: str, pieces: Sequence[Value], deadline: float) -> None:
        self._ask(lambda: self._backend.put(name, pieces, ttl_s=self._ttl_s, deadline=deadline), deadline)

    def _look(self, name: str, epoch: int, value: Got, deadline: float) -> Found | Missed:
        if value is None:
            return Missed("absent")
        try:
            if isinstance(value, BackendError):
                raise value
            found = unpack(name, epoch, value, max_bytes=self._max_bytes)
            return Found([found] if isinstance(found, memoryview) else self._parts(name, epoch, found, deadline))
        except Unusable as wrong:
            if len(self._flawed) >= MAX_FLAWED:
                self._flawed.clear()
            self._flawed.add(name)
            return Missed(wrong.flaw)
        except BackendError as error:
            return Missed("late" if isinstance(error, BackendLate) else "failed")

    def _parts(self, name: str, epoch: int, manifest: Manifest, deadline: float) -> list[memoryview]:
        names = manifest.part_names(name)
        present, values = self._values(names, deadline)
        if present != epoch:
            raise Unusable("epoch")
        parts = []
        for number, value in enumerate(values):
            if value is None:  # it was evicted
                raise Unusable("cut")
            if isinstance(value, BackendError):
                raise value
            parts.append(unpack_part(name, epoch, manifest, number, value))
        return parts

    def _ask(self, call: Callable[[], Result], deadline: float) -> Result:
        """Make a call that the breaker allows; take note of its end."""
        began = self._clock()
        if began >= deadline:
            raise BackendLate("there was no time left to ask the second level")
        self.breaker.begin(began)
        try:
            result = call()
        except BackendRefused:
            self.breaker.succeeded(self._clock())
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, BackendError) else type(error).__name__
            is_unfair = isinstance(error, BackendLate) and deadline - began < FAIR_S
            self.breaker.failed(self._clock(), reason, is_fair=not is_unfair)
            raise
        self.breaker.succeeded(self._clock())
        return result


def _begins_with(framed: Framed, head: Value) -> bool:
    return bytes(head) == framed[1][0]
