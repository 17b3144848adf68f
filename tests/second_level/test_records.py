"""What comes back from a server is the record that was saved, or is said not to be it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.second_level.backend import Value
from mmcached.second_level.records import HEAD_BYTES, VERSION, Manifest, Unusable, is_head, pack, unpack, unpack_part
from mmcached.shm.store.codec import encode

NAME, OTHER = "ab" * 32, "cd" * 32
EPOCH = 7
PART = 64
"""Bytes of a part here."""


def value_of(pieces: Sequence[Value]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def framed(record: bytes, *, name: str = NAME, epoch: int = EPOCH) -> dict[str, bytes]:
    return {key: value_of(pieces) for key, pieces in pack(name, epoch, [record], part_bytes=PART)}


def read(stored: dict[str, bytes], *, name: str = NAME, epoch: int = EPOCH, max_bytes: int = 1 << 20) -> bytes:
    """Return a record out of what lies under its names."""
    found = unpack(name, epoch, stored[name], max_bytes=max_bytes, part_bytes=PART)
    if isinstance(found, Manifest):
        parts = enumerate(found.part_names(name))
        return b"".join(unpack_part(name, epoch, found, at, stored[key], part_bytes=PART) for at, key in parts)
    return bytes(found)


@given(st.binary(max_size=5 * PART), st.lists(st.integers(0, 5 * PART), max_size=4))
def test_a_record_comes_back_however_it_lay_in_pieces(record: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(record)) for cut in cuts), len(record)]
    pieces = [memoryview(record)[begin:end] for begin, end in itertools.pairwise(bounds)]
    stored = {key: value_of(value) for key, value in pack(NAME, EPOCH, pieces, part_bytes=PART)}
    assert stored == framed(record)
    assert read(stored) == record
    assert len(stored) == (1 if len(record) <= PART else 1 + -(-len(record) // PART))
    assert list(stored)[-1] == NAME  # whoever finds the manifest finds the parts


def test_pieces_are_not_copied() -> None:
    tensor = np.arange(1000)
    ((_, pieces),) = pack(NAME, EPOCH, [tensor.data])
    assert np.shares_memory(np.frombuffer(pieces[1], tensor.dtype), tensor)


@pytest.mark.parametrize("nbytes", [0, 1, PART, PART + 1, 3 * PART])
def test_no_bit_changes_unseen(nbytes: int) -> None:
    stored = framed(bytes(range(nbytes % 256)) + bytes(nbytes - nbytes % 256))
    for key, value in stored.items():
        for bit in range(8 * len(value)):
            changed = bytearray(value)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Unusable):
                read({**stored, key: bytes(changed)})


@pytest.mark.parametrize("nbytes", [0, PART, 2 * PART])
def test_no_byte_is_missing_or_added_unseen(nbytes: int) -> None:
    stored = framed(bytes(nbytes))
    for key, value in stored.items():
        for changed in (*(value[:end] for end in range(len(value))), value + b"\0", value + value):
            with pytest.raises(Unusable):
                read({**stored, key: changed})


@given(st.binary(max_size=3 * HEAD_BYTES))
def test_whatever_comes_is_no_record(value: bytes) -> None:
    with pytest.raises(Unusable):
        read({NAME: value})
    with pytest.raises(Unusable):
        unpack_part(NAME, EPOCH, Manifest(PART, 1, (bytes(16),)), 0, value)


def flaw_of(stored: dict[str, bytes], **how: Any) -> str:
    with pytest.raises(Unusable) as unusable:
        read(stored, **how)
    return unusable.value.flaw


def test_each_flaw_has_its_name() -> None:
    stored, large = framed(b"x" * 10), framed(b"x" * 100)
    value = stored[NAME]
    later_version = value[:8] + bytes([VERSION + 1]) + value[9:]
    assert flaw_of({NAME: b"no record at all" * 10}) == "foreign"
    assert flaw_of({NAME: b"x"}) == "foreign"
    assert flaw_of({NAME: later_version}) == "version"
    assert flaw_of(stored, epoch=EPOCH + 1) == "epoch"
    assert flaw_of(stored, epoch=EPOCH - 1) == "epoch"
    assert flaw_of(framed(b"x", epoch=0), epoch=0) == "epoch"
    assert flaw_of({NAME: framed(b"x", name=OTHER)[OTHER]}) == "other"
    assert flaw_of({NAME: next(iter(large.values()))}) == "other"
    assert flaw_of({NAME: value[:-1]}) == "cut"
    assert flaw_of({NAME: value[:20]}) == "cut"
    assert flaw_of({NAME: value[:-1] + b"y"}) == "corrupt"
    assert flaw_of(stored, max_bytes=9) == "large"
    assert flaw_of(large, max_bytes=99) == "large"


def test_parts_of_two_records_are_not_mixed() -> None:
    one, two = framed(b"a" * 200), framed(b"a" * 100 + b"b" * 100)
    first, second, *_ = one
    assert flaw_of({**one, first: one[second]}) == "other"
    assert flaw_of({**one, **dict(zip(one, two.values(), strict=True)), NAME: one[NAME]}) == "other"
    assert set(one) & set(two) == {NAME}


def test_a_head_says_what_follows() -> None:
    stored = framed(b"x" * 100)
    assert is_head(NAME, EPOCH, stored[NAME][:HEAD_BYTES])
    assert is_head(NAME, EPOCH, framed(b"x")[NAME][:HEAD_BYTES])
    assert not is_head(NAME, EPOCH + 1, stored[NAME][:HEAD_BYTES])
    assert not is_head(OTHER, EPOCH, stored[NAME][:HEAD_BYTES])
    assert not is_head(NAME, EPOCH, next(iter(stored.values()))[:HEAD_BYTES])
    assert not is_head(NAME, EPOCH, b"")


def test_the_version_rises_with_the_form_of_a_record() -> None:
    encoded = encode({"x": np.arange(3, dtype=np.int32), "n": [1, None, "a", True, 0.5]})
    buffer = bytearray(encoded.nbytes)
    encoded.write_into(buffer)
    ((_, pieces),) = pack(NAME, EPOCH, [buffer])
    assert bytes(pieces[0])[-16:].hex() == "55456ad4d22b6062b6122438bfcfb39b", (
        "raise records.VERSION, then put the new seal here"
    )
