"""RowPieces: rows grow without a gap, nothing twice, and leave as they came."""

from __future__ import annotations

import struct

import pytest

from mmcached.wire.errors import MissingRows, RemoteProtocolError
from mmcached.wire.messages.parts import Rows, Tensor
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.frames import Frame


def put(pieces: RowPieces, first: int, *values: int) -> None:
    """Put rows of width 2, `(value, -value)` each."""
    data = b"".join(struct.pack("<2i", value, -value) for value in values)
    pieces.put(Rows("k", first, Tensor(1, "int32", (len(values), 2))), [b"other", data])


def values_of(pieces: RowPieces) -> list[int]:
    rows, data = pieces.rows(3), pieces.data()
    assert (rows.key, rows.first) == ("k", pieces.first)
    assert rows.tensor.frame == 3
    assert rows.tensor.shape[0] == len(pieces) == pieces.end - pieces.first
    assert len(data) == pieces.num_bytes == 8 * len(pieces)
    numbers = struct.unpack(f"<{2 * len(pieces)}i", data)
    assert numbers[1::2] == tuple(-value for value in numbers[::2])
    return list(numbers[::2])


def test_rows_grow_and_leave_in_one_piece() -> None:
    pieces = RowPieces("k", 5)
    put(pieces, 5, 1, 2)
    put(pieces, 7, 3)
    assert values_of(pieces) == [1, 2, 3]
    pieces.hand_on()
    assert (pieces.first, pieces.end, pieces.num_bytes) == (8, 8, 0)
    assert pieces.rows(0) == Rows("k", 8, Tensor(0, "int32", (0, 2)))
    assert pieces.data() == b""
    put(pieces, 8, 4)
    assert values_of(pieces) == [4]


def test_what_was_here_before_is_left_out() -> None:
    pieces = RowPieces("k", 5)
    put(pieces, 3, 98, 99, 1)  # the first is 5
    put(pieces, 5, 1, 2)
    put(pieces, 5, 1)
    pieces.hand_on()
    put(pieces, 6, 2, 3)
    assert values_of(pieces) == [3]


def test_a_gap_names_what_is_missing_and_changes_nothing() -> None:
    pieces = RowPieces("k", 5)
    put(pieces, 5, 1)
    with pytest.raises(MissingRows) as caught:
        put(pieces, 8, 4)
    assert caught.value.details == {"key": "k", "first": 6, "end": 8}
    put(pieces, 6, 2)
    assert values_of(pieces) == [1, 2]


@pytest.mark.parametrize(
    ("tensor", "payload"),
    [
        (Tensor(1, "int32", (1, 2)), [b"8 bytes."]),
        (Tensor(0, "int32", (3, 2)), [b"8 bytes."]),
        (Tensor(0, "int32", (2, 2)), [b"8 bytes."]),
        (Tensor(0, "int32", (0, 2)), [b"8 bytes."]),
        (Tensor(0, "int32", ()), [b"8 bytes."]),
        (Tensor(0, "int16", (1, 2)), [b"8 bytes."]),
        (Tensor(0, "int32", (1, 3)), [b"8 bytes."]),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(tensor: Tensor, payload: list[Frame]) -> None:
    pieces = RowPieces("k", 0)
    put(pieces, 0, 7)
    with pytest.raises(RemoteProtocolError):
        pieces.put(Rows("k", 1, tensor), payload)
    assert values_of(pieces) == [7]


def test_no_rows_are_no_gap() -> None:
    pieces = RowPieces("k", 4)
    put(pieces, 4)
    assert len(pieces) == 0
    put(pieces, 4, 1)
    assert values_of(pieces) == [1]
