"""Defines the layout of a ring: two POSIX shared-memory objects, what each word means, and who writes it.

Pure arithmetic and byte packing; knows nothing of files, locks or processes. Invariant: every word has one writing
process.

**Format.** All words are little-endian and 8-byte aligned.

    ….ctl     the writer maps all of it,          ….data   mapped read-only by all but the writer
              a reader its own entry
    ┌──────────────────────────┐ 0               ┌──────────────────────────┐ 0
    │ header       (the writer)│                 │ chunk header, 64 bytes   │   magic, generation, slot, nbytes, check
    ├──────────────────────────┤ 4096            │ payload, nbytes          │
    │ entry 0  (its reader):   │                 │ padding to 64            │
    │   +0   incarnation       │                 ├──────────────────────────┤
    │   +8   pid, for people   │                 │ chunk header             │
    │   +64  cell of slot 0    │                 │ …                        │
    │   +72  cell of slot 1 …  │                 ├──────────────────────────┤
    ├──────────────────────────┤ + entry_bytes   │ free                     │
    │ entry 1 …                │                 ├──────────────────────────┤ data_bytes
    └──────────────────────────┘ ctl_bytes       │ key index                │   see `key_index`; most rings have none
                                                 └──────────────────────────┘ + index_words × 8

The header, the writer's alone, written once before the ring is announced:

       0  magic, written last      56  boot id (16 bytes)        104  alignment, chunk header bytes (u32 each)
       8  layout version, header   72  data_bytes                112  index_words
          bytes (u32 each)         80  num_slots, max_readers    120  crc32 of bytes 8…119 (u32)
      16  ring id (16 bytes)           (u32 each)
      32  epoch                    88  offset of entry 0
      40  writer's pid, start      96  entry_bytes
          time in ticks

A chunk header's check is two words of 32 bits: 1 and the crc32 of the payload, or 0 and 0.

A cell counts how many leases of its slot the entry has given back: it only rises, from one incarnation to the next too.
Whoever takes the entry sets a count above `MAX_RETURNED`, which only a stray write leaves, back to zero. An entry takes
whole pages, so that a reader maps its own and no other:

>>> layout = Layout(data_bytes=1 << 20, num_slots=4096, max_readers=8)
>>> layout.entry_offset(0), layout.entry_bytes, layout.entry_offset(1), layout.ctl_bytes
(4096, 36864, 40960, 299008)
>>> [8 * layout.incarnation_word(1), 8 * layout.cell_word(1, 0), 8 * layout.cell_word(1, 1)]
[40960, 41024, 41032]
>>> chunk_bytes(1), chunk_bytes(64), chunk_bytes(65)
(128, 128, 192)
>>> HEADER_BYTES, _CRC_OFFSET
(124, 120)

**Validity.** A control object counts only with the magic, this layout version, a right crc, and sizes that agree with
both the files and the announcement; otherwise `LayoutMismatch`. A chunk header counts only if magic, generation, slot
and size are those of the handle; otherwise `StaleHandle`.

**Writer's algorithm.** Claim: find a window in which nothing is leased, pinned or claimed; zero the magic of every
chunk that is evicted from it; hand out the buffer. Commit: write generation, slot and size, then the magic. Grant:
count the lease in private memory, then send the descriptor. Only when the entry's cell has reached the private count
may the bytes be used again.

**Reader's algorithm.** Take an entry (see `reader_entry`). A descriptor of this incarnation: check
the chunk header, read in place, and when the last view is gone add 1 to the cell of the slot, with a release store
(see `words`). The writer reads that cell before it overwrites: this pair orders the last read before the first write.

**After a crash** nothing is rebuilt or repaired. A dead reader's byte locks are free: its entry's leases are void. A
dead writer's byte is free: the next writer makes a new epoch with new objects, `sweep` unlinks the old ones, and
readers that still map them keep reading what they hold.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from mmcached.wire.errors import InvalidRequest, LayoutMismatch
from mmcached.wire.handle import RingAnnouncement

LAYOUT_VERSION = 4
MAGIC = int.from_bytes(b"MMCRING\0", "little")
PAGE_BYTES = 4096
ALIGNMENT = 64
CHUNK_HEADER_BYTES = 64
CHUNK_MAGIC = int.from_bytes(b"MMCHUNK\0", "little")
CHUNK_HEADER = struct.Struct("<QQQQII")
"""Magic, generation, slot, nbytes, kind of checksum, checksum; the rest of the 64 bytes is not used."""
HAS_CRC32 = 1
"""The kind of checksum that there is; 0 = none."""
MAX_RETURNED = 1 << 62
"""The largest count that a cell can hold: no reader lives long enough to reach it."""

INCARNATION_WORD, PID_WORD, FIRST_CELL_WORD = 0, 1, 8
"""Words of an entry."""
_VERSION = struct.Struct("<II")
_BODY = struct.Struct("<II16sQQQ16sQIIQQIIQ")
_CRC = struct.Struct("<I")
_CRC_OFFSET = 8 + _BODY.size
HEADER_BYTES = _CRC_OFFSET + _CRC.size

_MIN_DATA_BYTES = ALIGNMENT + CHUNK_HEADER_BYTES
_LIMITS = (
    ("data_bytes", _MIN_DATA_BYTES, 1 << 46),
    ("num_slots", 1, 1 << 20),
    ("max_readers", 1, 512),
    ("index_words", 0, 1 << 22),
)


def round_up(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple


def chunk_bytes(nbytes: int) -> int:
    """Return what a payload of `nbytes` takes in the data object: header, payload, padding."""
    return CHUNK_HEADER_BYTES + round_up(nbytes, ALIGNMENT)


def data_object_bytes(data_bytes: int, index_words: int) -> int:
    return data_bytes + 8 * index_words


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers from which every offset follows; construction raises InvalidRequest for an impossible one.

    Attributes:
        index_words: of the key index, a power of two; 0 = there is none.
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

    @property
    def entry_bytes(self) -> int:
        return round_up(8 * (FIRST_CELL_WORD + self.num_slots), PAGE_BYTES)

    @property
    def ctl_bytes(self) -> int:
        return self.entry_offset(self.max_readers)

    @property
    def data_object_bytes(self) -> int:
        return data_object_bytes(self.data_bytes, self.index_words)

    @property
    def total_bytes(self) -> int:
        """Of both objects."""
        return self.ctl_bytes + self.data_object_bytes

    def entry_offset(self, reader_id: int) -> int:
        return PAGE_BYTES + reader_id * self.entry_bytes

    def incarnation_word(self, reader_id: int) -> int:
        """Return the index, in words of 8 bytes, of the entry's incarnation; 0 = never taken."""
        return self.entry_offset(reader_id) // 8 + INCARNATION_WORD

    def cell_word(self, reader_id: int, slot: int) -> int:
        """Return the index of the count of leases of `slot` that the entry has given back."""
        return self.entry_offset(reader_id) // 8 + FIRST_CELL_WORD + slot


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The control object's first bytes, as values. The writer's pid, start time and boot id name it for people."""

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
            CHUNK_HEADER_BYTES,
            self.layout.index_words,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def parse(cls, page: bytes) -> SegmentHeader:
        """Read the header; the version is judged before anything whose place a later version may have changed.

        Raises:
            LayoutMismatch: not a header, not this version, damaged, or with impossible sizes.
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
            ("entries_offset", "entry_bytes", "alignment", "chunk_header_bytes"),
            derived,
            (layout.entry_offset(0), layout.entry_bytes, ALIGNMENT, CHUNK_HEADER_BYTES),
            strict=True,
        ):
            LayoutMismatch.unless_equal(field, value, expected)
        return cls(ring_id.hex(), epoch, pid, ticks, boot_id, layout)

    def check_announced(self, announcement: RingAnnouncement) -> None:
        """Raise LayoutMismatch if the writer has announced something else."""
        LayoutMismatch.unless_equal("ring_id", self.ring_id, announcement.ring_id)
        LayoutMismatch.unless_equal("epoch", self.epoch, announcement.epoch)
        LayoutMismatch.unless_equal("data_bytes", self.layout.data_bytes, announcement.data_bytes)
        LayoutMismatch.unless_equal("num_slots", self.layout.num_slots, announcement.num_slots)
        LayoutMismatch.unless_equal("max_readers", self.layout.max_readers, announcement.max_readers)
        LayoutMismatch.unless_equal("index_words", self.layout.index_words, announcement.index_words)
