from __future__ import annotations

import contextlib
import ctypes

import pytest

from mmcached.shm.segment import words
from mmcached.shm.segment.words import LibatomicStore, PlainStore, WordStore
from mmcached.wire.errors import SegmentError


def stores() -> list[WordStore]:
    found: list[WordStore] = [PlainStore()]
    with contextlib.suppress(OSError):
        found.append(LibatomicStore())
    return found


@pytest.mark.parametrize("store", stores(), ids=lambda store: store.name)
def test_stores_one_word_and_no_other(store: WordStore) -> None:
    memory = bytearray(b"\xaa" * 24)
    view = memoryview(memory).cast("Q")
    store.store_release(view, 1, 2**64 - 1)
    store.load_fence()
    store.full_fence()
    assert list(view) == [0xAAAAAAAAAAAAAAAA, 2**64 - 1, 0xAAAAAAAAAAAAAAAA]
    with pytest.raises(IndexError):
        store.store_release(view, 3, 0)
    view.release()
    memory.extend(b"x")  # nothing of the store holds the memory


def test_x86_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", _missing)
    assert isinstance(words.choose("x86_64"), PlainStore)
    assert words.choose("aarch64") is None


def test_without_a_release_store_attaching_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_CHOSEN", None)
    with pytest.raises(SegmentError, match="libatomic"):
        words.require_word_store()


def _missing(name: str) -> None:
    raise OSError(name)
