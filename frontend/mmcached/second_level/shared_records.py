"""Keeps records where other hosts find them: frames, epochs and the circuit breaker above a `Backend`.

Epochs are numbers; a later one is larger. The server has one number for all hosts, and each host belongs to one epoch:

    a host without an epoch       joins the server's, or begins the first
    flush, no host went before    begins the next epoch and joins it
    flush, another host did       joins the epoch that the other one has begun
    the server has a larger one   another host was flushed: until this one is flushed too, it is apart: it neither
                                  fetches nor saves nor claims
    the server has a smaller      it was emptied, or is back from an old snapshot: the largest known one is put back
    one, or none

A host saves and finds records of its own epoch alone. So the records of an epoch were computed by hosts that were
flushed into it, after that flush. Records computed before a host's flush are of an older epoch, which no flushed host
finds. A flush with a version begins no epoch: its host finds records of its version alone, see `versions`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from mmcached.second_level.backend import (
    Backend,
    BackendError,
    BackendLate,
    BackendRefused,
    Got,
    HostApart,
    Value,
    next_epoch,
)
from mmcached.second_level.breaker import FAIR_S, Breaker
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.records import (
    HEAD_BYTES,
    MAX_FLAWED,
    Found,
    Manifest,
    Missed,
    Unusable,
    cost_s_of,
    expiry_ms_of,
    is_head,
    pack,
    unpack,
    unpack_part,
)
from mmcached.second_level.versions import VERSION_NAME, Scope, value_of, version_in, warn_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ItemTooLarge
from mmcached.wire.messages.frontend import MAX_TTL_S
from mmcached.wire.stats import Trouble

log = logging.getLogger("mmcached.second_level")

Result = TypeVar("Result")


class SharedRecords(Closeable):
    """The records of one server. Any number of threads may call; each call raises `BackendError`.

    Args:
        max_bytes: The largest size of a record.
        ttl_s: The longest lifetime of a record on the server.
        clock: Monotonic seconds.
        wall_clock: Seconds since 1970, in which expiries are stored and compared between hosts.

    Attributes:
        scope: Epoch and version of this host.
        fleet_version: The version of the host that was flushed last, as far as it is known.
        on_apart: Called when another host was found to be flushed; it must not block.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_bytes: int,
        ttl_s: float,
        note: EpochNote | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self._note = note or EpochNote(None)
        self.scope = self._note.read()
        self._newest = self.scope.epoch
        self.fleet_version: str | None = None
        self.on_apart: Callable[[], object] = lambda: None
        self.breaker = Breaker(clock())
        self._write_trouble: Trouble = ""
        self._last_trouble: Trouble = ""
        self._epochs = threading.Lock()
        self._backend = backend
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._flawed: set[str] = set()

    def get_many(self, names: Sequence[str], *, deadline: float) -> list[Found | Missed]:
        names = self.scope.names(names)
        epoch, values = self._of_own_epoch(lambda: self._values(names, deadline), deadline)
        return [self._look(name, epoch, value, deadline) for name, value in zip(names, values, strict=True)]

    def holds(self, names: Sequence[str], *, deadline: float) -> list[bool]:
        """Return for each name whether it has a record of this epoch, by its head alone."""
        names = self.scope.names(names)
        epoch, heads = self._of_own_epoch(lambda: self._heads(names, deadline), deadline)
        return [
            head is not None and not isinstance(head, BackendError) and is_head(name, epoch, head)
            for name, head in zip(names, heads, strict=True)
        ]

    def probe(self, *, deadline: float) -> None:
        """Read the server's epoch and version, to notice an outage or another host's flush without traffic."""
        found, (value,) = self._values([VERSION_NAME], deadline)
        self._see(found, deadline)
        former, self.fleet_version = self.fleet_version, version_in(value)
        if self.fleet_version is None and self.scope.version:  # expired, evicted, or the server was emptied
            self._tell_version(self.scope.version, deadline)
        elif former != self.fleet_version and self.has_other_version:
            warn_of(self.scope.version, self.fleet_version)

    def save(
        self,
        name: str,
        pieces: Sequence[Value],
        *,
        ttl_s: float = 0.0,
        cost_s: float = 0.0,
        as_of: Scope | None = None,
        deadline: float,
    ) -> Literal["kept", "there", "outdated"]:
        """Store a record, unless the same is stored already.

        Args:
            pieces: The encoded record.
            ttl_s: Seconds until it expires; 0.0 for never.
            cost_s: Seconds that computing it took; 0.0: unknown. A record that is there keeps its own.
            as_of: `scope` when the save was ordered: in another one it is outdated. None for the current one.

        Raises:
            ItemTooLarge: The record exceeds `max_bytes`.
        """
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        if nbytes > self._max_bytes:
            raise ItemTooLarge(nbytes, self._max_bytes, "record of the second level")
        scope = as_of or self.scope
        name = scope.name(name)
        epoch, (head,) = self._of_own_epoch(lambda: self._heads([name], deadline), deadline)
        if isinstance(head, BackendError):
            raise head
        if self.scope.version != scope.version or (as_of is not None and as_of.epoch != epoch):
            return "outdated"
        expiry_ms = round(1000 * (self._wall_clock() + ttl_s)) if ttl_s else 0
        if head is not None and is_head(name, epoch, head):
            cost_s = cost_s_of(head)
        framed = pack(name, epoch, pieces, expiry_ms=expiry_ms, cost_s=cost_s)
        if head is not None and bytes(head) == framed[-1][1][0] and name not in self._flawed:
            return "there"
        for part_name, value in framed:
            self._put(part_name, value, min(self._ttl_s, ttl_s or self._ttl_s), deadline)
        self._flawed.discard(name)
        return "kept"

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Claim the computing of a record for `ttl_s`; return False if another host computes it."""
        self._check_epoch()
        return self._ask(lambda: self._backend.claim(self.scope.name(name), ttl_s=ttl_s, deadline=deadline), deadline)

    def drop_claim(self, name: str, *, deadline: float) -> None:
        self._ask(lambda: self._backend.drop_claim(self.scope.name(name), deadline=deadline), deadline)

    @property
    def is_apart(self) -> bool:
        """Whether another host is known to have been flushed since this one."""
        return 0 < self.epoch < self._newest

    @property
    def epoch(self) -> int:
        return self.scope.epoch

    @property
    def has_other_version(self) -> bool:
        """Whether the host that was flushed last has another version than this one."""
        return self.fleet_version not in (None, self.scope.version)

    def flush(self, version: str = "", *, deadline: float) -> None:
        """Begin an epoch, or join an epoch that another host has begun since the last flush here.

        Afterwards this host finds no record saved before, and no flushed host finds a record that this one saved
        before. With a version it joins the current epoch instead, and finds records of that version alone.
        """
        found, _ = self._heads([], deadline, is_urgent=True)
        former = max(found, self._newest)
        joined = former
        if version:
            joined = former or next_epoch(0)
            if found < joined:
                joined = max(joined, self._raise_epoch(joined, over=found, deadline=deadline, is_urgent=True))
            self._tell_version(version, deadline)
            return self._join(Scope(joined, version))
        if not 0 < self.epoch < former:
            joined = next_epoch(former)
        elif found == former:
            return self._join(self.scope._replace(epoch=former))
        found = self._raise_epoch(joined, over=former, deadline=deadline, is_urgent=True)
        return self._join(self.scope._replace(epoch=joined if found <= former else found))

    @property
    def trouble(self) -> Trouble:
        """Why the server is not called, or why it refuses writes; "" if no trouble is known."""
        return self._last_trouble if self.breaker.state != "closed" else self._write_trouble

    def close(self) -> None:
        self._backend.close()

    def _values(self, names: Sequence[str], deadline: float) -> tuple[int, Sequence[Got]]:
        """Return the epoch and the values; raise if none of them was read."""

        def get() -> tuple[int, Sequence[Got]]:
            epoch, values = self._backend.get_many(names, deadline=deadline)
            errors = [value for value in values if isinstance(value, BackendError)]
            if errors and len(errors) == len(values):
                raise errors[0]
            return epoch, values

        return self._ask(get, deadline)

    def _heads(self, names: Sequence[str], deadline: float, *, is_urgent: bool = False) -> tuple[int, Sequence[Got]]:
        return self._ask(
            lambda: self._backend.get_heads(names, HEAD_BYTES, deadline=deadline), deadline, is_urgent=is_urgent
        )

    def _of_own_epoch(
        self, read: Callable[[], tuple[int, Sequence[Got]]], deadline: float
    ) -> tuple[int, Sequence[Got]]:
        """Return this host's epoch and the values; raise `HostApart` if another host was flushed since."""
        self._check_epoch()
        found, values = read()
        self._see(found, deadline)
        self._check_epoch()
        return self.epoch, values

    def _check_epoch(self) -> None:
        if self.is_apart:
            raise HostApart

    def _see(self, found: int, deadline: float) -> None:
        """Handle the server's epoch: join the first one, stay apart from a larger one, replace a smaller one.

        A smaller one is replaced by the largest known one: other hosts may have been flushed into it.
        """
        if found < (newest := self._newest) or not found:
            wanted = newest or next_epoch(0)
            former = self._raise_epoch(wanted, over=newest, deadline=deadline)
            if former < newest:
                log.warning("the server had lost the epoch (emptied, failed over, or back from a snapshot): put back")
            found = former if former > newest else wanted
        with self._epochs:
            if found <= self._newest:
                return
            if not self.epoch:
                scope = self.scope._replace(epoch=found)
                self._note.write(scope)
                self.scope = scope
            self._newest = found
        if self.is_apart:
            self.on_apart()

    def _join(self, scope: Scope) -> None:
        with self._epochs:
            self._note.write(scope)  # first, so that a host that saves in an epoch remembers it
            self.scope = scope
            self._newest = max(self._newest, scope.epoch)

    def _tell_version(self, version: str, deadline: float) -> None:
        self._put(VERSION_NAME, [value_of(version)], self._ttl_s, deadline)
        self.fleet_version = version

    def _raise_epoch(self, epoch: int, *, over: int, deadline: float, is_urgent: bool = False) -> int:
        return self._ask(
            lambda: self._backend.raise_epoch(epoch, over=over, deadline=deadline), deadline, is_urgent=is_urgent
        )

    def _put(self, name: str, pieces: Sequence[Value], ttl_s: float, deadline: float) -> None:
        try:
            self._ask(lambda: self._backend.put(name, pieces, ttl_s=ttl_s, deadline=deadline), deadline)
        except BackendRefused as refused:
            self._write_trouble = refused.trouble
            raise
        self._write_trouble = ""

    def _look(self, name: str, epoch: int, value: Got, deadline: float) -> Found | Missed:
        if value is None:
            return Missed("absent")
        try:
            if isinstance(value, BackendError):
                raise value
            found = unpack(name, epoch, value, max_bytes=self._max_bytes)
            pieces = [found] if isinstance(found, memoryview) else self._parts(name, epoch, found, deadline)
            cost_s = cost_s_of(value)
            if not (expiry_ms := expiry_ms_of(value)):
                return Found(pieces, cost_s=cost_s)
            ttl_s = expiry_ms / 1000 - self._wall_clock()
            return Found(pieces, min(ttl_s, MAX_TTL_S), cost_s) if ttl_s > 0 else Missed("absent")
        except Unusable as wrong:
            if len(self._flawed) >= MAX_FLAWED:
                self._flawed.clear()
            self._flawed.add(name)
            return Missed(wrong.flaw)
        except BackendError as error:
            return Missed("late" if isinstance(error, BackendLate) else "failed")

    def _parts(self, name: str, epoch: int, manifest: Manifest, deadline: float) -> list[memoryview]:
        names = manifest.part_names(name)
        _, values = self._values(names, deadline)
        parts = []
        for number, value in enumerate(values):
            if value is None:  # evicted
                raise Unusable("cut")
            if isinstance(value, BackendError):
                raise value
            parts.append(unpack_part(name, epoch, manifest, number, value))
        return parts

    def _ask(self, call: Callable[[], Result], deadline: float, *, is_urgent: bool = False) -> Result:
        """Make a call if the breaker allows it or it is urgent (an operator's); record its outcome."""
        began = self._clock()
        if began >= deadline:
            raise BackendLate("there was no time left to ask the second level")
        if not is_urgent:
            self.breaker.begin(began)
        try:
            result = call()
        except BackendRefused:
            self.breaker.succeeded(self._clock())
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, BackendError) else type(error).__name__
            self._last_trouble = error.trouble if isinstance(error, BackendError) else "unreached"
            is_unfair = isinstance(error, BackendLate) and deadline - began < FAIR_S
            self.breaker.failed(self._clock(), reason, is_fair=not is_unfair)
            raise
        self.breaker.succeeded(self._clock())
        return result
