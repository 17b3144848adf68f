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


def outcome(file: io.BufferedIOBase, verb: str, *arguments: int) -> object:
    try:
        return getattr(file, verb)(*arguments)
    except ValueError:
        return ValueError


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
        assert outcome(ours, *call) == outcome(plain, *call), call
        assert ours.tell() == plain.tell(), call


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
