"""Inspects a ring from outside, for diagnosis: the record in each slot, and the readers that hold it.

    slot table ── row, bytes of the chunk, row again ──> row unchanged? then the bytes belong to it

Takes no lease, no entry and no lock, sends no message, and maps nothing: everything is read by `pread`, which allocates
no memory for holes of a sparse file. So writer and readers are not affected, and it works on the ring of a dead writer.
Each result describes one moment and may be out of date in the next.

Knows nothing of the content of records, or of readers beyond their pids.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.files import locks
from mmcached.shm.files.own_file import open_own
from mmcached.shm.ring.slot_table import (
    EXPIRY,
    GENERATION,
    IS_SEALED,
    MAX_NOTE_BYTES,
    NBYTES,
    NOTE_BYTES,
    NURSERY_SHIFT,
    OFFSET,
    has_expired,
)
from mmcached.shm.segment.board import incarnation_of
from mmcached.shm.segment.layout import (
    ATTACHED_WORD,
    INCARNATION_WORD,
    MAX_COUNT,
    PAGE_BYTES,
    PID_WORD,
    SLOT_WORDS,
    SegmentHeader,
)
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.nursery_files import nurseries_of
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement

Row = npt.NDArray[np.uint64]
"""The words of one slot, `(SLOT_WORDS,)`, or of several, `(n, SLOT_WORDS)`."""
_MAX_NOTE_BYTES = 1 << 16
"""A larger count is invalid: the row was being written while it was read."""
_WITHOUT_STATE = np.uint64(IS_SEALED - 2)
_PAIR = struct.Struct("<QQ")


class Holder(NamedTuple):
    """A reader that holds leases of one or more slots.

    Attributes:
        pid: Process that took the entry; for diagnosis.
        num_leases: Outstanding leases.
    """

    reader_id: int
    pid: int
    num_leases: int


class NurseryFile(NamedTuple):
    """A nursery (a client's segment for large records), and the bytes of memory that it takes."""

    nursery: int
    nbytes: int


class RingOnlooker(Closeable):
    """Read-only inspection of one ring of this user, with or without a living writer.

    Raises:
        SegmentError: The ring is missing, or belongs to another user.
        LayoutMismatch: It has another version, or is another ring.
    """

    def __init__(self, announcement: RingAnnouncement) -> None:
        self._fds: list[int] = []
        self._announcement = announcement
        try:
            self._ctl = self._open(announcement.ctl_name)
            header = SegmentHeader.parse(os.pread(self._ctl, PAGE_BYTES, 0))
            header.check_announced(announcement)
            self.layout = header.layout
            self._data = self._open(announcement.data_name)
            LayoutMismatch.unless_equal("data_bytes", os.fstat(self._data).st_size, self.layout.data_object_bytes)
        except BaseException:
            self.close()
            raise

    def rows(self) -> Row:
        """Return the words of all slots, `(num_slots, SLOT_WORDS)`."""
        nbytes = 8 * SLOT_WORDS * self.layout.num_slots
        words = np.frombuffer(self._read(self.layout.slots_offset, nbytes), np.uint64)
        return words.reshape(self.layout.num_slots, SLOT_WORDS)

    def notes(self, slots: list[int], rows: Row) -> list[bytes | None]:
        """Return the notes behind the payloads of slots; None where a slot holds another record by now.

        Args:
            rows: All slots, as returned by `rows`.
        """
        asked = rows[slots]
        places = zip(*(asked[:, word].tolist() for word in (OFFSET, NBYTES, NOTE_BYTES)), strict=True)
        found = [
            self._record(note >> NURSERY_SHIFT, offset + nbytes, note & MAX_NOTE_BYTES)
            if note & MAX_NOTE_BYTES <= _MAX_NOTE_BYTES
            else None
            for offset, nbytes, note in places
        ]
        are_same = self._are_same(asked, lambda: self.rows()[slots])
        return [note if is_same else None for note, is_same in zip(found, are_same, strict=True)]

    def read(self, slot: int, row: Row, offset: int, nbytes: int) -> bytes | None:
        """Return up to `nbytes` bytes of a chunk; None if the slot holds another record by now.

        Args:
            offset: From the beginning of the payload.
        """
        note = int(row[NOTE_BYTES])
        end = min(offset + nbytes, int(row[NBYTES]) + (note & MAX_NOTE_BYTES))
        if end < offset:
            return None
        found = self._record(note >> NURSERY_SHIFT, int(row[OFFSET]) + offset, end - offset)
        table = self.layout.slots_offset + 8 * SLOT_WORDS * slot
        (is_same,) = self._are_same(
            row[None], lambda: np.frombuffer(self._read(table, 8 * SLOT_WORDS), np.uint64)[None]
        )
        return found if is_same else None

    def nurseries(self) -> list[NurseryFile]:
        """Return the nurseries that have a file, each with the memory that it takes."""
        found = []
        for nursery in nurseries_of(self._announcement):
            with contextlib.suppress(OSError):  # the file was removed meanwhile
                status = os.stat(SHM_DIR / self._announcement.nursery_name(nursery).lstrip("/"))
                found.append(NurseryFile(nursery, status.st_blocks * 512))
        return found

    def attached(self) -> list[int]:
        """Return the readers that may hold leases: alive, and attached or fenced."""
        words = np.frombuffer(
            self._read(self.layout.board_offset + 8 * ATTACHED_WORD, 8 * self.layout.max_readers), np.uint64
        )
        return [
            reader_id
            for reader_id in np.flatnonzero(words).tolist()
            if not locks.is_free(self._ctl, locks.reader_byte(reader_id))
            and incarnation_of(int(words[reader_id]))[0] == self._entry(reader_id)[0]
        ]

    def holders(self, slot: int, readers: list[int]) -> list[Holder]:
        """Return those of these readers that hold a slot."""
        held = []
        for reader_id in readers:
            pair = os.pread(self._ctl, _PAIR.size, 8 * self.layout.returned_word(reader_id, slot))
            returned, taken = _PAIR.unpack(pair)
            number = taken - returned
            if 0 < number < MAX_COUNT:  # a pair that was read while it changed may be negative
                held.append(Holder(reader_id, self._entry(reader_id)[1], number))
        return held

    def totals(self, readers: list[int]) -> list[Holder]:
        """Return those of these readers that hold any slot, each with its total leases."""
        held, num_slots = [], self.layout.num_slots
        for reader_id in readers:
            pairs = os.pread(self._ctl, _PAIR.size * num_slots, 8 * self.layout.returned_word(reader_id, 0))
            returned, taken = np.frombuffer(pairs, np.uint64).reshape(num_slots, 2).T
            number = taken - returned
            if total := int(number[number < MAX_COUNT].sum()):
                held.append(Holder(reader_id, self._entry(reader_id)[1], total))
        return held

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    @staticmethod
    def _are_same(rows: Row, look: Callable[[], Row]) -> list[bool]:
        """Return which rows, `(n, SLOT_WORDS)`, are unchanged since they were first read."""
        # Against the writer: it changes word 0 before it reuses the bytes. A retired or sealed record is still intact.
        require_word_store().load_fence()
        now = look()
        is_same_generation = (now[:, GENERATION] ^ rows[:, GENERATION]) & _WITHOUT_STATE == 0
        found: list[bool] = (is_same_generation & (now[:, OFFSET:] == rows[:, OFFSET:]).all(axis=1)).tolist()
        return found

    def _entry(self, reader_id: int) -> tuple[int, int]:
        """Return an entry's incarnation and pid."""
        words = np.frombuffer(os.pread(self._ctl, PAGE_BYTES, self.layout.entry_offset(reader_id)), np.uint64)
        return int(words[INCARNATION_WORD]), int(words[PID_WORD])

    def _read(self, offset: int, nbytes: int) -> bytes:
        return os.pread(self._data, nbytes, offset)

    def _record(self, nursery: int, offset: int, nbytes: int) -> bytes | None:
        """Return bytes of a record, or None if its place does not have that many."""
        if not nursery:
            return self._read(offset, nbytes) if offset + nbytes <= self.layout.data_bytes else None
        try:
            fd = open_own(SHM_DIR / self._announcement.nursery_name(nursery).lstrip("/"))
        except OSError:
            return None
        try:
            found = os.pread(fd, nbytes, offset)
        finally:
            os.close(fd)
        return found if len(found) == nbytes else None

    def _open(self, name: str) -> int:
        path = SHM_DIR / name.lstrip("/")
        try:
            fd = open_own(path)
        except OSError as error:
            raise SegmentError(f"{path} cannot be looked at: {error.strerror or error}") from error
        self._fds.append(fd)
        return fd


def state_of(row: Row) -> str:
    """Return the state of a slot: free, valid, expired, retired or sealed."""
    mark = int(row[GENERATION])
    if not mark:
        return "free"
    if mark & 1 and has_expired(int(row[EXPIRY])):
        return "expired"
    return "sealed" if mark & IS_SEALED else "valid" if mark & 1 else "retired"
