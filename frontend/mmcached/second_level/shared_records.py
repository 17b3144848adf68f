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
finds. A flush with a version begins no epoch: its host finds records of its version alone, see `versions`. Of a name
that was dropped only records that were saved after that are found, see `drops`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Literal

from mmcached.second_level.backend import Backend, BackendError, BackendLate, Got, HostApart, Value, next_epoch
from mmcached.second_level.drops import LOG_NAME, Dropped, KnownDrops, entry_of, id_in, mark_name, mark_of
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.guarded import GuardedBackend, Read
from mmcached.second_level.records import (
    HEAD_BYTES,
    MAX_FLAWED,
    PART_BYTES,
    SUM_BYTES,
    Found,
    Manifest,
    Missed,
    Unusable,
    cost_s_of,
    expiry_ms_of,
    is_head,
    pack,
    part_names_in,
    unpack,
    unpack_part,
)
from mmcached.second_level.versions import VERSION_NAME, Scope, value_of, version_in, warn_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ItemTooLarge
from mmcached.wire.messages.frontend import MAX_TTL_S
from mmcached.wire.stats import Trouble

log = logging.getLogger("mmcached.second_level")


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
        drops: The drops of records of which this host knows.
        on_apart: Called when another host was found to be flushed; it must not block.
        on_drops: The same if other hosts have dropped records.
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
        self._epochs = threading.Lock()
        self._server = GuardedBackend(backend, clock)
        self.breaker = self._server.breaker
        self.drops = KnownDrops()
        self.on_drops: Callable[[], object] = lambda: None
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._flawed: set[str] = set()

    def get_many(self, names: Sequence[str], *, deadline: float) -> list[Found | Missed]:
        epoch, found = self._find(names, partial(self._server.values, deadline=deadline), deadline)
        return [self._look(name, epoch, value, deadline) for name, value in found]

    def scope_of(self, name: str) -> Scope:
        """Return the scope of a record; its name on the server is `scope_of(name).name(name)`."""
        return self.scope._replace(drop_id=self.drops.id_of(name))

    def probe(self, *, deadline: float) -> None:
        """Read the server's epoch and version, to notice an outage, another host's flush or drop without traffic."""
        found, (value, log_head) = self._server.heads([VERSION_NAME, LOG_NAME], HEAD_BYTES, deadline=deadline)
        if isinstance(value, BackendError):
            raise value
        self._see(found, deadline)
        if self.drops.is_news(log_head):
            self.on_drops()
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
        read = partial(self._server.heads, num_bytes=HEAD_BYTES, deadline=deadline)
        epoch, ((server_name, head),) = self._find([name], read, deadline)
        if isinstance(head, BackendError):
            raise head
        if as_of is not None and as_of != self.scope_of(name)._replace(epoch=epoch):
            return "outdated"
        name = server_name
        expiry_ms = round(1000 * (self._wall_clock() + ttl_s)) if ttl_s else 0
        if head is not None and is_head(name, epoch, head):
            cost_s = cost_s_of(head)
        framed = pack(name, epoch, pieces, expiry_ms=expiry_ms, cost_s=cost_s)
        if head is not None and bytes(head) == framed[-1][1][0] and name not in self._flawed:
            return "there"
        for part_name, value in framed:
            self._server.put(part_name, value, ttl_s=min(self._ttl_s, ttl_s or self._ttl_s), deadline=deadline)
        self._flawed.discard(name)
        return "kept"

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        """Claim the computing of a record for `ttl_s`; return False if another host computes it."""
        self._check_epoch()
        return self._server.claim(self.scope_of(name).name(name), ttl_s=ttl_s, deadline=deadline)

    def drop_claim(self, name: str, *, deadline: float) -> None:
        self._server.drop_claim(self.scope_of(name).name(name), deadline=deadline)

    def drop(self, name: str, *, deadline: float) -> None:
        """Drop a record: no host finds an earlier record of its name; `drops.begin` comes first.

        First the mark, so that no host finds the record or saves it again; then the record and its parts are removed,
        and other hosts are told to drop their copies. A drop that has failed is repeated as a whole.
        """
        dropped = Dropped(name, self.drops.begin(name))
        _, (mark,) = self._server.heads([mark_name(name)], HEAD_BYTES, deadline=deadline)
        former_ids = {"", id_in(mark)} - {dropped.drop_id}
        formers = [self.scope._replace(drop_id=each).name(name) for each in former_ids]
        manifest_bytes = HEAD_BYTES + SUM_BYTES * -(-self._max_bytes // PART_BYTES)
        epoch, values = self._server.heads(formers, manifest_bytes, deadline=deadline)
        parts = (part_names_in(former, epoch, value) for former, value in zip(formers, values, strict=True))
        self._server.put(mark_name(name), [mark_of(dropped.drop_id)], ttl_s=self._ttl_s, deadline=deadline)
        self._server.remove([*formers, *chain.from_iterable(parts)], deadline=deadline)
        self._server.log_drop(LOG_NAME, entry_of(dropped), ttl_s=self._ttl_s, deadline=deadline)
        self.drops.done(dropped)

    def take_drops(self, *, deadline: float) -> tuple[list[str], bool]:
        """Return the names of records that other hosts have dropped since the last call, as `KnownDrops.read_log`."""
        _, (log_value,) = self._server.values([LOG_NAME], deadline=deadline)
        return self.drops.read_log(log_value)

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
        found, _ = self._server.heads([], HEAD_BYTES, deadline=deadline, is_urgent=True)
        former = max(found, self._newest)
        joined = former
        if version:
            joined = former or next_epoch(0)
            if found < joined:
                joined = max(joined, self._server.raise_epoch(joined, over=found, deadline=deadline, is_urgent=True))
            self._tell_version(version, deadline)
            return self._join(Scope(joined, version))
        if not 0 < self.epoch < former:
            joined = next_epoch(former)
        elif found == former:
            return self._join(self.scope._replace(epoch=former))
        found = self._server.raise_epoch(joined, over=former, deadline=deadline, is_urgent=True)
        return self._join(self.scope._replace(epoch=joined if found <= former else found))

    @property
    def trouble(self) -> Trouble:
        """Why the server is not called, or why it refuses writes; "" if no trouble is known."""
        return self._server.trouble

    def close(self) -> None:
        self._server.close()

    def _find(
        self, names: Sequence[str], read: Callable[..., Read], deadline: float
    ) -> tuple[int, list[tuple[str, Got]]]:
        """Return this host's epoch, and for each record its name on the server and its value.

        The marks of drops are read along, and first, because they are small. A record of a drop that was unknown before
        is read once more, under its name since then.

        Raises:
            HostApart: Another host was flushed since.
        """
        asked = [self.scope_of(name).name(name) for name in names]
        epoch, found = self._of_own_epoch(
            lambda: read([*map(mark_name, names), *asked], num_small=len(names)), deadline
        )
        marks, values = found[: len(names)], list(found[len(names) :])
        for name, mark in zip(names, marks, strict=True):
            self.drops.see(name, mark)
            if lost_id := self.drops.lost_id(name, mark):
                with suppress(BackendError):  # the next call tries again
                    self._server.put(mark_name(name), [mark_of(lost_id)], ttl_s=self._ttl_s, deadline=deadline)
        known = [self.scope_of(name).name(name) for name in names]  # on the server
        if moved := [at for at, name in enumerate(known) if name != asked[at]]:
            epoch, again = self._of_own_epoch(lambda: read([known[at] for at in moved]), deadline)
            for at, value in zip(moved, again, strict=True):
                values[at] = value
        unread = {at: mark for at, mark in enumerate(marks) if isinstance(mark, BackendError)}
        return epoch, [
            (name, unread.get(at, value)) for at, (name, value) in enumerate(zip(known, values, strict=True))
        ]

    def _of_own_epoch(self, read: Callable[[], Read], deadline: float) -> Read:
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
            former = self._server.raise_epoch(wanted, over=newest, deadline=deadline)
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
        self._server.put(VERSION_NAME, [value_of(version)], ttl_s=self._ttl_s, deadline=deadline)
        self.fleet_version = version

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
        _, values = self._server.values(names, deadline=deadline)
        parts = []
        for number, value in enumerate(values):
            if value is None:  # evicted
                raise Unusable("cut")
            if isinstance(value, BackendError):
                raise value
            parts.append(unpack_part(name, epoch, manifest, number, value))
        return parts
