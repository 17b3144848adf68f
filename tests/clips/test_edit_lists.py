"""Which parts of a video an edit list shows; a list that is cut off or lies is none."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.clips.edit_lists import ShownPart, parts_of
from tests.clips.boxes import with_edits
from tests.clips.files import video

PLAIN = video(5, codec="MJPG", suffix=".mp4")
SECOND = ShownPart(512, Fraction(1, 4), 0)


@pytest.mark.parametrize(
    ("edits", "parts"),
    [
        ([], []),
        ([(250, 512)], [SECOND]),
        ([(1000, -1), (250, -1), (250, 512)], [SECOND]),
        ([(250, 512), (500, 0), (7, 7)], [SECOND, ShownPart(0, Fraction(1, 2), 0)]),
        ([(250, 512), (500, -1)], [SECOND, ShownPart(-1, Fraction(1, 2), 0)]),
        ([(1000, -1)], []),
    ],
)
def test_parts_are_those_of_the_list_without_the_delay(edits: list[tuple[int, int]], parts: list[ShownPart]) -> None:
    assert parts_of(with_edits(PLAIN, edits)) == parts


def test_a_list_may_have_large_numbers() -> None:
    data = with_edits(PLAIN, [(0, 0)] * 2)  # has the room of one large entry, and 4 bytes
    table = data.index(b"elst") + 4
    large = struct.pack(">IIQqI", 1 << 24, 1, 2**33, 2**34, 1 << 16)
    data = data[:table] + large + data[table + len(large) :]
    assert parts_of(data) == [ShownPart(2**34, Fraction(2**33, 1000), 0)]


def test_times_of_a_part_are_rounded_as_ffmpeg_does() -> None:
    assert ShownPart(100, Fraction(1, 4), 0).times(1000) == range(100, 350)
    assert ShownPart(0, Fraction(1, 3), 0).times(100) == range(33)
    assert ShownPart(0, Fraction(1, 200), 0).times(100) == range(1), "half a unit counts"


def test_a_file_in_fragments_shows_everything() -> None:
    data = with_edits(PLAIN, [(250, 512)])
    place = data.index(b"stts") + 8
    assert parts_of(data[:place] + bytes(4) + data[place + 4 :]) == []


@given(st.data())
def test_no_file_is_too_odd(drawn: st.DataObject) -> None:
    data = bytearray(with_edits(PLAIN, [(250, 512), (500, 0)]))
    tables = data.index(b"moov")
    for _ in range(drawn.draw(st.integers(0, 3))):
        place = drawn.draw(st.integers(tables - 4, len(data) - 1))
        data[place] = drawn.draw(st.sampled_from([0, 1, 8, 127, 255]))
    assert len(parts_of(bytes(data[: drawn.draw(st.integers(tables, len(data)))]))) <= 2
