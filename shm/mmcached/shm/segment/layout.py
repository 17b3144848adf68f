"""Defines the layout of a ring: two POSIX shared-memory objects, the meaning of each word, and its writer.

Pure arithmetic and byte packing; knows nothing of files, locks or processes. Invariant: every word has one writing
process; one object holds the writer's words, the other those of the readers.

**Format.** All words are little-endian and 8-byte aligned.

    ….data    the writer's: mapped read-only      ….ctl    the readers': each maps its own entry;
              by all others                                the bytes carry the locks of all
    ┌──────────────────────────┐ 0                ┌──────────────────────────┐ 0
    │ chunk: payload, note,    │                  │ header, written once by  │
    │        padding to 64     │                  │ the creator              │
    │ chunk …                  │                  ├──────────────────────────┤ 4096
    ├──────────────────────────┤ data_bytes       │ entry 0  (its reader):   │
    │ board                    │                  │     +0  incarnation      │
    │ slot table, 64 bytes each│                  │     +8  pid, for people  │
    │ key index                │                  │    +16  figures          │
    └──────────────────────────┘                  │    +64  slot 0: returned │
                                                  │    +72  slot 0: taken    │
                                                  │    +80  slot 1 …         │
                                                  │    touch log             │
                                                  │    latency of hits       │
                                                  └──────────────────────────┘ + entry_bytes

The header:

       0  magic, written last      56  boot id (16 bytes)        104  alignment (u32), 0 (u32)
       8  layout version, header   72  data_bytes                112  index_words
          bytes (u32 each)         80  num_slots, max_readers    120  crc32 of bytes 8…119 (u32)
      16  ring id (16 bytes)           (u32 each)
      32  epoch                    88  offset of entry 0
      40  writer's pid, start      96  entry_bytes
          time in ticks

and at 128 the home: its length in bytes (u64), and the path of the run directory that has a note of the ring, if there
is one (`ring_notes`). Magic, layout version and home keep their places in every version: a process of another version
must find out to which service a ring belongs before it removes it.

The board has the writer's present state: `board`. The records in the slots: `slot_table`. The counts of an entry never
decrease, not even from one incarnation to the next: how many leases of each slot its reader has taken, and how many it
has given back. A reader that takes an entry first gives back the former incarnation's leases. A slot's leases are

    outstanding = taken - returned

An entry takes whole pages, and has memory only from the moment that a reader takes it:

>>> layout = Layout(data_bytes=1 << 20, num_slots=4096, max_readers=8)
>>> layout.entry_offset(0), layout.entry_bytes, layout.entry_offset(1), layout.ctl_bytes
(4096, 69632, 73728, 561152)
>>> [8 * layout.incarnation_word(1), 8 * layout.returned_word(1, 0), 8 * layout.taken_word(1, 0)]
[73728, 73792, 73800]
>>> layout.board_offset, layout.slots_offset, layout.index_offset, layout.data_object_bytes
(1048576, 1052672, 1314816, 1314816)
>>> chunk_bytes(1), chunk_bytes(64), chunk_bytes(65)
(64, 64, 128)
>>> HEADER_BYTES, _CRC_OFFSET
(124, 120)

**Validity.** A control object counts only with the magic, this layout version, a correct crc, and sizes that agree
with both the files and the announcement; otherwise `LayoutMismatch`. A handle counts only if its slot holds its
generation, offset and size; otherwise `StaleHandle`.

**How a lease begins.** A reader that has found a record counts a lease of its slot as taken, fences, and checks whether
the slot still holds that record. The writer, before it uses a chunk again, marks its slots as retired, fences, and
reads the outstanding counts. Each side stores, fences and loads; so at least one sees the other's store (`self_lease`,
`leases`).

**After a crash** a dead reader's byte lock is free: its counts are void. A dead writer's byte is free: the next writer
adopts the two objects, or creates new ones in a new epoch, and `sweep` unlinks the old ones; readers that still map
them keep reading the records that they hold.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from mmcached.wire.errors import InvalidRequest, LayoutMismatch
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.latency import NUM_WORDS

LAYOUT_VERSION = 9
MAGIC = int.from_bytes(b"MMCRING\0", "little")
PAGE_BYTES = 4096
ALIGNMENT = 64
MAX_BYTES = 1 << 46
"""Largest size of a data object, and of a nursery, in bytes."""
MAX_COUNT = 1 << 62
"""The largest count that an entry can hold: no reader lives long enough to reach it."""

INCARNATION_WORD, PID_WORD = 0, 1
TAKEN_BYTES_WORD, RETURNED_BYTES_WORD, HITS_WORD, MISSES_WORD, TOUCHES_WORD = 2, 3, 4, 5, 6
FIRST_COUNT_WORD = 8
"""Words of an entry."""
TOUCH_LOG_WORDS = 256
ATTACHED_WORD = 8
"""The first word of the board that holds an incarnation; see `board`."""
SLOT_WORDS = 8
SLOT_BITS = 20
"""Bits of a slot number."""
HOME_OFFSET = 128
_LENGTH = struct.Struct("<Q")
_VERSION = struct.Struct("<II")
_BODY = struct.Struct("<II16sQQQ16sQIIQQIIQ")
_CRC = struct.Struct("<I")
_CRC_OFFSET = 8 + _BODY.size
HEADER_BYTES = _CRC_OFFSET + _CRC.size

MAX_READERS = 512
_LIMITS = (
    ("data_bytes", ALIGNMENT, MAX_BYTES),
    ("num_slots", 1, 1 << SLOT_BITS),
    ("max_readers", 1, MAX_READERS),
    ("index_words", 0, 1 << 22),
)


def round_up(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple


def chunk_bytes(nbytes: int) -> int:
    """Return the bytes that a payload and note of `nbytes` together take in the data object."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes from which every offset follows; construction raises InvalidRequest for an impossible size.

    Attributes:
        index_words: Words of the key index, a power of two; 0: no index.
    """

    data_bytes: int
    num_slots: int
    max_readers: int
    index_words: int = 0

    def __post_init__(self) -> None:
        for field, low, high in _LIMITS:
            if not low <= getattr(self, field) <= high:
                raise InvalidRequest(field, getattr(self, field), f"must be between {low} and {high}")
        if self.data_bytes % ALIGNMENT:
            raise InvalidRequest("data_bytes", self.data_bytes, f"must be a multiple of {ALIGNMENT}")
        if self.index_words & (self.index_words - 1):
            raise InvalidRequest("index_words", self.index_words, "must be a power of two, or 0")

    # ---- the control object

    @property
    def entry_bytes(self) -> int:
        return round_up(8 * (self.first_latency_word + NUM_WORDS), PAGE_BYTES)

    @property
    def first_touch_word(self) -> int:
        """The first word of an entry's touch log."""
        return FIRST_COUNT_WORD + 2 * self.num_slots

    @property
    def first_latency_word(self) -> int:
        """The first word of an entry's latency histogram; see `mmcached.wire.latency`."""
        return self.first_touch_word + TOUCH_LOG_WORDS

    @property
    def ctl_bytes(self) -> int:
        return self.entry_offset(self.max_readers)

    def entry_offset(self, reader_id: int) -> int:
        return PAGE_BYTES + reader_id * self.entry_bytes

    def incarnation_word(self, reader_id: int) -> int:
        """Return the index, in words of 8 bytes, of the entry's incarnation; 0 = never taken."""
        return self.entry_offset(reader_id) // 8 + INCARNATION_WORD

    def returned_word(self, reader_id: int, slot: int) -> int:
        """Return the index of the entry's count of returned leases of `slot`."""
        return self.entry_offset(reader_id) // 8 + FIRST_COUNT_WORD + 2 * slot

    def taken_word(self, reader_id: int, slot: int) -> int:
        """Return the index of the entry's count of taken leases of `slot`."""
        return self.returned_word(reader_id, slot) + 1

    # ---- the data object

    @property
    def board_offset(self) -> int:
        return round_up(self.data_bytes, PAGE_BYTES)

    @property
    def slots_offset(self) -> int:
        return self.board_offset + round_up(8 * (ATTACHED_WORD + self.max_readers), PAGE_BYTES)

    @property
    def index_offset(self) -> int:
        return self.slots_offset + 8 * SLOT_WORDS * self.num_slots

    @property
    def data_object_bytes(self) -> int:
        return round_up(self.index_offset + 8 * self.index_words, PAGE_BYTES)

    # ---- both

    @property
    def created_bytes(self) -> int:
        """Bytes allocated at creation: everything except the readers' entries."""
        return PAGE_BYTES + self.data_object_bytes


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Header of the control object, as values. The writer's pid, start time and boot id identify it for diagnosis."""

    ring_id: str
    epoch: int
    writer_pid: int
    writer_start_ticks: int
    boot_id: bytes
    layout: Layout

    def pack(self) -> bytes:
        """Return bytes 8…123; the writer stores the magic separately, last."""
        body = _BODY.pack(
            LAYOUT_VERSION,
            HEADER_BYTES,
            bytes.fromhex(self.ring_id),
            self.epoch,
            self.writer_pid,
            self.writer_start_ticks,
            self.boot_id,
            self.layout.data_bytes,
            self.layout.num_slots,
            self.layout.max_readers,
            self.layout.entry_offset(0),
            self.layout.entry_bytes,
            ALIGNMENT,
            0,
            self.layout.index_words,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def parse(cls, page: bytes) -> SegmentHeader:
        """Parse the header; the version is checked before any field whose place a later version may have changed.

        Raises:
            LayoutMismatch: It is not a header, has another version, is damaged, or has impossible sizes.
        """
        if len(page) < HEADER_BYTES:
            raise LayoutMismatch("size", len(page), f"at least {HEADER_BYTES}")
        LayoutMismatch.unless_equal("magic", int.from_bytes(page[:8], "little"), MAGIC)
        version, header_bytes = _VERSION.unpack_from(page, 8)
        LayoutMismatch.unless_equal("layout_version", version, LAYOUT_VERSION)
        LayoutMismatch.unless_equal("header_bytes", header_bytes, HEADER_BYTES)
        LayoutMismatch.unless_equal("crc32", zlib.crc32(page[8:_CRC_OFFSET]), _CRC.unpack_from(page, _CRC_OFFSET)[0])
        _, _, ring_id, epoch, pid, ticks, boot_id, data_bytes, num_slots, max_readers, *derived, index_words = (
            _BODY.unpack_from(page, 8)
        )
        try:
            layout = Layout(data_bytes, num_slots, max_readers, index_words)
        except InvalidRequest as error:
            raise LayoutMismatch(str(error.details["field"]), error.details["value"], error.details["limit"]) from error
        for field, value, expected in zip(
            ("entries_offset", "entry_bytes", "alignment", "reserved"),
            derived,
            (layout.entry_offset(0), layout.entry_bytes, ALIGNMENT, 0),
            strict=True,
        ):
            LayoutMismatch.unless_equal(field, value, expected)
        return cls(ring_id.hex(), epoch, pid, ticks, boot_id, layout)

    @staticmethod
    def pack_home(home: bytes) -> bytes:
        """Return the bytes from `HOME_OFFSET` on; raise InvalidRequest if the path is too long."""
        if len(home) > (longest := PAGE_BYTES - HOME_OFFSET - _LENGTH.size):
            raise InvalidRequest("home", len(home), f"must have at most {longest} bytes")
        return _LENGTH.pack(len(home)) + home

    @staticmethod
    def home_of(page: bytes) -> bytes:
        """Return the run directory's path from a header page of any version; b"" if it has none."""
        first = HOME_OFFSET + _LENGTH.size
        if len(page) < first or int.from_bytes(page[:8], "little") != MAGIC:
            return b""
        return page[first : first + _LENGTH.unpack_from(page, HOME_OFFSET)[0]]

    def check_announced(self, announcement: RingAnnouncement) -> None:
        """Raise LayoutMismatch if the header differs from the writer's announcement."""
        LayoutMismatch.unless_equal("ring_id", self.ring_id, announcement.ring_id)
        LayoutMismatch.unless_equal("epoch", self.epoch, announcement.epoch)
        LayoutMismatch.unless_equal("data_bytes", self.layout.data_bytes, announcement.data_bytes)
        LayoutMismatch.unless_equal("num_slots", self.layout.num_slots, announcement.num_slots)
        LayoutMismatch.unless_equal("max_readers", self.layout.max_readers, announcement.max_readers)
        LayoutMismatch.unless_equal("index_words", self.layout.index_words, announcement.index_words)
