"""A file is read where it lies, and as `io.BytesIO` would read it."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from mmap import mmap

import pytest

from mmcached.clips.in_place import InPlace, contents_of

DATA = bytes(range(256)) * 40


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = os.memfd_create("file")
    os.write(made, DATA + b"of a longer one before")
    yield made
    os.close(made)


def plain_outcome(file: io.BytesIO, verb: str, *arguments: int) -> object:
    try:
        return getattr(file, verb)(*arguments)
    except ValueError:  # C libraries, for which the file is, know no exceptions
        return -1


def test_it_reads_as_a_file_of_bytes_does(descriptor: int) -> None:
    source = random.Random(0)
    ours, plain = InPlace(contents_of(descriptor, len(DATA))), io.BytesIO(DATA)
    for _ in range(2000):
        place = source.randint(-300, len(DATA) + 300)
        calls: list[tuple[str, *tuple[int, ...]]] = [
            ("read", source.choice([-1, 0, 1, 100, 4096, 1 << 20])),
            ("seek", place),
            ("seek", place, source.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, 3, 0x10000])),
            ("tell",),
        ]
        call = source.choice(calls)
        verb, *arguments = call
        assert getattr(ours, verb)(*arguments) == plain_outcome(plain, verb, *arguments), call
        assert ours.tell() == plain.tell(), call


@pytest.mark.parametrize("whence", [os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, 3])
@pytest.mark.parametrize("offset", [-(2**63), -1, 2**31, 2**32 - 1, 2**63 - 1])
def test_no_place_is_an_error_that_c_does_not_know(offset: int, whence: int) -> None:
    file = InPlace(DATA)
    file.seek(10)
    place = file.seek(offset, whence)
    assert -1 <= place < 2**63
    assert file.tell() == (10 if place == -1 else place)


def test_readers_of_one_file_have_places_of_their_own(descriptor: int) -> None:
    contents = contents_of(descriptor, len(DATA))
    first, second = InPlace(contents), InPlace(contents)
    assert first.read(10) == second.read(10) == DATA[:10]
    room = bytearray(5)
    assert first.readinto(room) == 5
    assert bytes(room) == second.read(5) == DATA[10:15]


def test_a_file_is_not_copied(descriptor: int) -> None:
    contents = contents_of(descriptor, len(DATA))
    assert isinstance(contents, mmap)
    os.pwrite(descriptor, b"new", 0)
    assert InPlace(contents).read(4) == b"new\x03"


def test_a_file_may_be_empty(descriptor: int) -> None:
    assert InPlace(contents_of(descriptor, 0)).read() == b""
