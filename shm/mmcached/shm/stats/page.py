"""The stats page: one file of the run directory in which each role writes its figures, and which all roles read.

No process waits for another: a role that hangs, or was killed, leaves its last figures here.

**Created atomically.** A page is created at each start of a service, under another name, and renamed.

**One writer per word.** A role that attaches to a slot locks the slot's byte of the file (see `locks`) for its life: a
second writer is refused, and a free byte says that the role is dead.

**Counters never decrease.** A role that attaches takes the counters that it finds as its base and starts gauges at 0; a
counter that falls, because a part of the role restarted, continues from its last value. One value is one aligned store,
so `kill -9` at any instant leaves each field as it was before or after that store. There is no lock and no sequence
word: a snapshot of *several* fields may mix two neighbouring instants (a hit whose query comes with the next look). It
is meant for monitoring, not for decisions.

The page lies on the run directory's file system. On a disk, its writeback may delay a store: use a tmpfs.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from mmcached.shm.files import locks
from mmcached.shm.stats.layout import (
    ALL_ROLES,
    ATTACHED,
    FIELDS,
    FIRST_FIELD,
    HEARTBEAT,
    NUM_ATTACHED,
    PAGE_BYTES,
    PID,
    SLOT_BYTES,
    SLOT_WORDS,
    TABLES,
    check_header,
    first_word,
    pack_header,
    slot_of,
)
from mmcached.shm.stats.table import TableWriter, read_table
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import SegmentError
from mmcached.wire.figures import StatsRecord
from mmcached.wire.stats import RoleName

Clock = Callable[[], int]
"""Returns nanoseconds of CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class RoleSnapshot:
    """Content of one role's slot.

    Attributes:
        is_attached: Its writer lives, according to the kernel; False also after an orderly `close`.
        heartbeat_age_s: Time since its last heartbeat.
        num_attached: Processes that have had this role since the page was created.
        stats: The record of the role's kind; an engine's comes without its workers.
    """

    pid: int
    is_attached: bool
    heartbeat_age_s: float
    attached_s: float
    num_attached: int
    stats: StatsRecord


class StatsPage(Closeable):
    """The page in its owner, the supervisor: created at start, removed by `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create an empty page in place of a former one, which its readers keep; raise SegmentError on failure."""
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            fd = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                # Sparse pages of a full file system would cause a SIGBUS in some role, at some later store.
                os.posix_fallocate(fd, 0, PAGE_BYTES)
                os.pwrite(fd, pack_header(), 0)
            finally:
                os.close(fd)
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise SegmentError(
                f"{path} needs {PAGE_BYTES} bytes and cannot be made: {error.strerror}; choose another --run-dir"
            ) from error
        return cls(path)

    def close(self) -> None:
        """Remove the file; a process that has it mapped keeps it."""
        self.path.unlink(missing_ok=True)


class _MappedPage(Closeable):
    """The page, opened and mapped by one process, as words of 64 bits."""

    def __init__(self, path: Path, flags: int, prot: int) -> None:
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            raise SegmentError(f"{path} cannot be opened: {error.strerror}; is a service running there?") from error
        try:
            check_header(os.pread(self._fd, SLOT_BYTES, 0), os.fstat(self._fd).st_size)
            self._mapping = mmap.mmap(self._fd, PAGE_BYTES, prot=prot)
        except BaseException:
            os.close(self._fd)
            raise
        self._words = memoryview(self._mapping).cast("q")

    def close(self) -> None:
        """Unmap the page; its figures stay. A second call does nothing."""
        if self._fd >= 0:
            self._words.release()
            self._mapping.close()  # holds a duplicate of the descriptor, and so of its locks
            os.close(self._fd)
            self._fd = -1


class StatsPageWriter(_MappedPage):
    """One role's slot, held for the life of this object. Cheap enough for every turn of a loop; never blocks.

    Raises:
        SegmentError: There is no page, or another living process writes this slot.
        LayoutMismatch: The page was created by another version.
        InvalidRequest: The page has no slot for this role.
    """

    def __init__(self, path: Path, role: RoleName, *, clock: Clock = time.monotonic_ns) -> None:
        self.role = role
        self._fields = FIELDS[role.kind]
        self._tables: list[TableWriter] = []
        self._clock = clock
        slot = slot_of(role)
        super().__init__(path, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE)
        if not locks.try_exclusive(self._fd, slot):
            self.close()
            raise SegmentError(f"{path}: another living process writes the figures of {role}; stop it first")
        first = first_word(slot)
        with self._words as page:
            self._words = page[first : first + SLOT_WORDS]
            self._tables = [
                TableWriter(page[table.first : table.first + table.num_words], table) for table in TABLES.get(role, ())
            ]
        self._base = [0] * len(self._fields.names)
        self._last = (0,) * len(self._fields.names)
        self._attach()

    def publish(self, stats: StatsRecord) -> None:
        """Store the changes since the last call, counted from the start of this process, and the heartbeat."""
        values = self._fields.values(stats)
        if values != self._last:
            for index, (value, last) in enumerate(zip(values, self._last, strict=True)):
                if value != last:
                    self._store(index, value, last)
            self._last = values
        for table in self._tables:
            table.publish(stats)
        self._words[HEARTBEAT] = self._clock()

    def beat(self) -> None:
        """Store the heartbeat, without new figures."""
        self._words[HEARTBEAT] = self._clock()

    def close(self) -> None:
        for table in self._tables:
            table.close()
        super().close()

    def _attach(self) -> None:
        for index, is_gauge in enumerate(self._fields.is_gauge):
            if is_gauge:
                self._words[FIRST_FIELD + index] = 0
            else:
                self._base[index] = self._words[FIRST_FIELD + index]
        now = self._clock()
        self._words[NUM_ATTACHED] += 1
        self._words[ATTACHED] = now
        self._words[HEARTBEAT] = now
        self._words[PID] = os.getpid()

    def _store(self, index: int, value: int, last: int) -> None:
        if value < last and not self._fields.is_gauge[index]:
            self._base[index] += last
        self._words[FIRST_FIELD + index] = self._base[index] + value


class StatsPageReader(_MappedPage):
    """The page, mapped read-only; takes no lock. Raises as `StatsPageWriter` does."""

    def __init__(self, path: Path, *, clock: Clock = time.monotonic_ns) -> None:
        self._clock = clock
        super().__init__(path, os.O_RDONLY, mmap.PROT_READ)

    def read(self) -> dict[RoleName, RoleSnapshot]:
        """Return the snapshot of each slot that was ever attached to, the supervisor first."""
        found = {}
        for slot, role in enumerate(ALL_ROLES):
            first = first_word(slot)
            if self._words[first + PID]:
                with self._words[first : first + SLOT_WORDS] as words:
                    found[role] = self._snapshot(role, slot, words)
        return found

    def _snapshot(self, role: RoleName, slot: int, words: memoryview[int]) -> RoleSnapshot:
        fields = FIELDS[role.kind]
        stats = fields.build(words[FIRST_FIELD : FIRST_FIELD + len(fields.names)].tolist())
        for table in TABLES.get(role, ()):
            with self._words[table.first : table.first + table.num_words] as own:
                stats = msgspec.structs.replace(stats, **{table.field: read_table(own, table)})
        now = self._clock()
        return RoleSnapshot(
            pid=words[PID],
            is_attached=not locks.is_free(self._fd, slot),
            heartbeat_age_s=max(0, now - words[HEARTBEAT]) / 1e9,
            attached_s=max(0, now - words[ATTACHED]) / 1e9,
            num_attached=words[NUM_ATTACHED],
            stats=stats,
        )
