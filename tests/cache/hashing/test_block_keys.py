"""No two blocks are encoded alike, whatever their parent, tokens and extra keys."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cache.hashing.block_hash import encode_block
from mmcached.cache.hashing.block_keys import EmbedsKey, ExtraKey, LookaheadKey, LoraKey, MultiModalKey, SaltKey
from mmcached.cache.hashing.token_bytes import MAX_TOKEN_ID

PARENT = bytes(range(32))


def decoded(encoding: bytes) -> tuple[bytes, list[int], list[ExtraKey]]:
    """Read an encoding back: that this can be done is why no two blocks share one."""
    rest = memoryview(encoding)

    def take(num_bytes: int) -> bytes:
        nonlocal rest
        assert num_bytes <= len(rest)
        taken, rest = bytes(rest[:num_bytes]), rest[num_bytes:]
        return taken

    def number(form: str) -> int:
        (value,) = struct.unpack(form, take(struct.calcsize(form)))
        return int(value)

    def data() -> bytes:
        return take(number("<I"))

    def text() -> str:
        return data().decode("utf-8", "surrogatepass")

    parent, token_ids, extra_keys = take(32), [number("<I") for _ in range(number("<I"))], list[ExtraKey]()
    while rest:
        match take(1):
            case b"L":
                extra_keys.append(LoraKey(text(), text()))
            case b"M":
                extra_keys.append(MultiModalKey(text(), number("<q")))
            case b"S":
                extra_keys.append(SaltKey(text()))
            case b"E":
                extra_keys.append(EmbedsKey(number("<q"), data()))
            case b"N":
                extra_keys.append(LookaheadKey(tuple(number("<I") for _ in range(number("<I")))))
            case tag:
                pytest.fail(f"no such tag: {tag!r}")
    return parent, token_ids, extra_keys


NAMES = st.text(st.characters(), max_size=6) | st.sampled_from(["M\x01\x00\x00\x00a", "S\x00\x00\x00\x00", "\ud800"])
OFFSETS = st.integers(-(1 << 63), (1 << 63) - 1)
TOKEN_IDS = st.integers(0, MAX_TOKEN_ID)
EXTRA_KEYS: st.SearchStrategy[ExtraKey] = st.one_of(
    st.builds(LoraKey, NAMES, NAMES),
    st.builds(MultiModalKey, NAMES, OFFSETS),
    st.builds(SaltKey, NAMES),
    st.builds(EmbedsKey, OFFSETS, st.binary(max_size=33)),
    st.builds(LookaheadKey, st.lists(TOKEN_IDS, max_size=3).map(tuple)),
)


@given(st.binary(min_size=32, max_size=32), st.lists(TOKEN_IDS), st.lists(EXTRA_KEYS, max_size=4))
def test_an_encoding_can_be_read_back(parent: bytes, token_ids: list[int], extra_keys: list[ExtraKey]) -> None:
    assert decoded(encode_block(parent, token_ids, extra_keys)) == (parent, token_ids, extra_keys)


def test_no_two_extra_keys_run_together() -> None:
    variants: list[tuple[list[int], list[ExtraKey]]] = [
        ([1, 2], []),
        ([1], []),
        ([1, 2], [SaltKey("ab")]),
        ([1, 2], [SaltKey("a"), SaltKey("b")]),
        ([1, 2], [SaltKey("b"), SaltKey("a")]),
        ([1, 2], [LoraKey("a", "b")]),
        ([1, 2], [LoraKey("ab", "")]),
        ([1, 2], [LoraKey("", "ab")]),
        ([1, 2], [MultiModalKey("ab", 0)]),
        ([1, 2], [MultiModalKey("ab", 1)]),
        ([1, 2], [EmbedsKey(0, b"ab")]),
        ([1, 2], [LookaheadKey(())]),
        ([1, 2], [LookaheadKey((3,))]),
        ([1, 2, 3], []),
        ([1], [LookaheadKey((2, 3))]),
        ([1], [SaltKey("a\0\0\0")]),
        ([1, *struct.unpack("<2I", SaltKey("a\0\0").encode())], []),
        ([1], [SaltKey("a\0\0")]),
    ]
    assert len({encode_block(PARENT, *variant) for variant in variants}) == len(variants)
