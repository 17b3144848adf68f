from __future__ import annotations

import struct
import zlib

import pytest

from mmcached.shm.segment.layout import (
    ATTACHED_WORD,
    HEADER_BYTES,
    HOME_OFFSET,
    LAYOUT_VERSION,
    MAGIC,
    PAGE_BYTES,
    PID_WORD,
    SLOT_WORDS,
    Layout,
    SegmentHeader,
)
from mmcached.wire.errors import InvalidRequest, LayoutMismatch
from mmcached.wire.handle import RingAnnouncement

LAYOUT = Layout(1 << 20, 100, 3, 256)
HEADER = SegmentHeader("ab" * 16, 77, 4711, 99, bytes(range(16)), LAYOUT)
PAGE = (struct.pack("<Q", MAGIC) + HEADER.pack()).ljust(PAGE_BYTES, b"\0")
ANNOUNCED = RingAnnouncement(0, "ab" * 16, 77, 1 << 20, 100, 3, 256)


def test_header_round_trips() -> None:
    assert SegmentHeader.parse(PAGE) == HEADER
    HEADER.check_announced(ANNOUNCED)


def test_words_of_all_entries_are_apart_and_inside() -> None:
    words = [LAYOUT.incarnation_word(reader_id) for reader_id in range(3)] + [
        LAYOUT.incarnation_word(reader_id) + PID_WORD for reader_id in range(3)
    ]
    for word_of in (LAYOUT.returned_word, LAYOUT.taken_word):
        words += [word_of(reader_id, slot) for reader_id in range(3) for slot in range(100)]
    words += [LAYOUT.entry_offset(reader_id) // 8 + LAYOUT.first_touch_word for reader_id in range(3)]
    assert len(set(words)) == len(words)
    assert min(words) * 8 >= PAGE_BYTES
    assert max(words) * 8 + 8 <= LAYOUT.ctl_bytes
    assert {LAYOUT.entry_offset(reader_id) % PAGE_BYTES for reader_id in range(3)} == {0}


def test_any_flipped_byte_is_a_mismatch() -> None:
    for position in range(HEADER_BYTES):
        page = bytearray(PAGE)
        page[position] ^= 0x41
        with pytest.raises(LayoutMismatch):
            SegmentHeader.parse(bytes(page))


def test_a_future_version_is_named_before_anything_else_is_judged() -> None:
    page = bytearray(PAGE)
    page[8:12] = struct.pack("<I", LAYOUT_VERSION + 1)
    page[100:120] = bytes(20)
    with pytest.raises(LayoutMismatch) as caught:
        SegmentHeader.parse(bytes(page))
    assert caught.value.details["field"] == "layout_version"
    assert caught.value.details["value"] == LAYOUT_VERSION + 1


@pytest.mark.parametrize("version", [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1])
def test_whose_a_ring_is_can_be_read_in_any_version(version: int) -> None:
    """Magic at 0, version at 8, home at 128: never move them; whoever sweeps may be of any version."""
    home = b"/run/somewhere"
    page = struct.pack("<QI", MAGIC, version).ljust(128, b"\xff") + struct.pack("<Q", len(home)) + home
    page = page.ljust(PAGE_BYTES, b"\xff")
    with pytest.raises(LayoutMismatch):
        SegmentHeader.parse(page)
    assert SegmentHeader.home_of(page) == home
    assert SegmentHeader.home_of(page[8:]) == SegmentHeader.home_of(page[:100]) == b"", "no header"
    named = SegmentHeader.pack_home(home)
    assert (HOME_OFFSET, PAGE[:HOME_OFFSET] + named) == (128, PAGE[:128] + struct.pack("<Q", len(home)) + home)


def test_impossible_sizes_under_a_right_crc_are_a_mismatch() -> None:
    page = bytearray(PAGE)
    page[80:84] = struct.pack("<I", 0)
    page[120:124] = struct.pack("<I", zlib.crc32(page[8:120]))
    with pytest.raises(LayoutMismatch) as caught:
        SegmentHeader.parse(bytes(page))
    assert caught.value.details["field"] == "num_slots"


@pytest.mark.parametrize("page", [b"", b"\0" * PAGE_BYTES, PAGE[: HEADER_BYTES - 1]])
def test_what_is_no_header_is_a_mismatch(page: bytes) -> None:
    with pytest.raises(LayoutMismatch):
        SegmentHeader.parse(page)


@pytest.mark.parametrize("index", range(1, 7))
def test_another_announcement_is_a_mismatch(index: int) -> None:
    values: list[object] = [0, "ab" * 16, 77, 1 << 20, 100, 3, 256]
    values[index] = "cd" * 16 if index == 1 else 64
    with pytest.raises(LayoutMismatch):
        HEADER.check_announced(RingAnnouncement(*values))  # type: ignore[arg-type]


def test_the_writers_words_lie_behind_the_chunks_where_readers_cannot_write() -> None:
    assert LAYOUT.ctl_bytes == LAYOUT.entry_offset(3)
    offsets = [LAYOUT.board_offset, LAYOUT.slots_offset, LAYOUT.index_offset, LAYOUT.data_object_bytes]
    assert offsets[0] == 1 << 20
    sizes = [8 * (ATTACHED_WORD + 3), 8 * SLOT_WORDS * 100, 8 * 256]
    assert all(end - begin >= size for begin, end, size in zip(offsets[:-1], offsets[1:], sizes, strict=True))
    assert LAYOUT.data_object_bytes % PAGE_BYTES == 0


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 1, 1),
        (100, 1, 1),
        (1 << 20, 0, 1),
        (1 << 20, 1, 0),
        (1 << 20, 1, 513),
        (1 << 20, 1, 1, 3),
        (1 << 20, 1, 1, -1),
    ],
)
def test_impossible_layouts_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest):
        Layout(*sizes)
