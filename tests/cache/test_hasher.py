"""Content keys: what must make a difference, what must not, what is refused."""

from __future__ import annotations

import enum
import hashlib
import struct
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmcached.cache.hasher import MAX_CALLER_ID_BYTES, MAX_DEPTH, MultiModalHasher
from mmcached.wire.errors import ConfigError, InvalidRequest
from tests.gateway.pictures import encode

HASHER = MultiModalHasher()


def key(value: Any) -> str:
    return HASHER.hash_kwargs(value=value)


class Colour(enum.IntEnum):
    RED = 1


DIFFERENT = {
    "zeros of every type": [0, 0.0, False, None, b"\0" * 8, "\0" * 8, "", b"", [], {}, np.int64(0), np.float64(0), [0]],
    "text and bytes": ["a", b"a", ["a"], [b"a"]],
    "keys of a mapping": [{1: 0}, {"1": 0}, {True: 1}, {1.0: 1}, {b"1": 0}, {None: 0}],
    "framing": [["ab", "c"], ["a", "bc"], ["abc"], [["ab"], "c"], ["ab", ["c"]], "abc"],
    "nesting": [{"a": {"b": 1}}, {"a": {}, "b": 1}, {"a": ["b", 1]}, ["a", ["b", 1]]],
    "big integers": [2**64, 2**64 + 1, -(2**64), 2**70, 2**63, -1, 255, -256, 128, -128, 127],
    "0-d and 1-d": [np.array(5), np.array([5]), np.array([[5]]), 5],
    "dtypes": [np.zeros(2, dtype) for dtype in ("i1", "u1", "i2", "i4", "i8", "f4", "f8", "c8", "?")],
    "shapes": [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6), np.zeros((6, 1)), np.zeros((0, 2)), np.zeros((2, 0))],
    "tensor shapes": [torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3, 2, dtype=torch.bfloat16)],
    "tensor dtypes": [torch.zeros(4, dtype=d) for d in (torch.bfloat16, torch.float16, torch.int16, torch.float32)],
    "eight bytes": [0, 0.0, b"\0" * 8, np.zeros(8, np.uint8), np.zeros(1), np.zeros(1, np.int64), np.array(0.0)],
    "more than 64 bits": [2**64, 2**64 + 2**128, 2**128, -(2**128), 2**1000, 2**1000 + 1, str(2**64), float(2**64)],
    "numbers as keys": [{1: "x"}, {"1": "x"}, {b"1": "x"}, {1.5: "x"}, {"1.5": "x"}, {-1: "x"}],
    "keys and values": [{"a": "b"}, {"b": "a"}, {"ab": ""}, {"": "ab"}, ["a", "b"], {"a": "b", "": ""}],
    "scalars and arrays of one": [np.float32(1), np.float64(1), np.ones(1), np.ones((1, 1)), 1.0, 1, True],
    "pictures": [
        {"mode": mode, "size": size, "data": bytes(6), "palette": palette}
        for mode, size, palette in (
            ("L", (2, 3), None),
            ("L", (3, 2), None),
            ("P", (2, 3), None),
            ("P", (2, 3), b"\0\0\0"),
            ("P", (2, 3), b"\0\0\1"),
            ("P", (2, 3), b""),
            ("RGB", (2, 1), None),
            ("RGB", (1, 2), None),
        )
    ],
    "signed zero and nan": [0.0, -0.0, float("nan"), float("inf")],
}

EQUAL = {
    "order of a mapping": ({"a": 1, "b": {"x": 2, "y": 3}}, {"b": {"y": 3, "x": 2}, "a": 1}),
    "list and tuple": ([1, (2, 3)], (1, [2, 3])),
    "bytes and views": (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a_b_c_")[::2]),
    "big integers": (2**70, 2**70 + 1 - 1, int(str(2**70))),
    "views of more dimensions": (b"abcdef", memoryview(b"abcdef").cast("B", (2, 3)), memoryview(b"abcdef").cast("H")),
    "empty views": (b"", bytearray(), memoryview(b""), memoryview(b"abc")[3:]),
    "scalars and 0-d": (np.float32(2), np.array(2, np.float32), torch.tensor(2, dtype=torch.float32)),
    "what is not contiguous": (
        np.arange(24).reshape(2, 3, 4)[:, ::2].swapaxes(0, 2),
        np.arange(24).reshape(2, 3, 4)[:, ::2].swapaxes(0, 2).copy(),
        torch.arange(24).reshape(2, 3, 4)[:, ::2].transpose(0, 2),
    ),
    "kinds of mapping": ({"a": 1}, MappingProxyType({"a": 1}), OrderedDict(a=1)),
    "large pieces": ([bytes(10_000), "x", bytes(5)], [bytearray(10_000), "x", memoryview(bytes(5))]),
    "strides": (np.arange(12).reshape(3, 4).T, np.ascontiguousarray(np.arange(12).reshape(3, 4).T)),
    "slices": (np.arange(12)[::3], np.array([0, 3, 6, 9])),
    "byte order": (np.arange(4, dtype=">i4"), np.arange(4, dtype="<i4")),
    "libraries": (np.arange(6, dtype=np.float32).reshape(2, 3), torch.arange(6, dtype=torch.float32).reshape(2, 3)),
    "tensor strides": (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
    "parameters": (torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    "conjugate view": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
}
REFUSED = [
    object(),
    {1, 2},
    Colour.RED,
    2 + 3j,
    len,
    np.array([object()]),
    np.array(["text"]),
    np.ma.masked_array([1, 2], mask=[True, False]),
    np.zeros(2, dtype=[("a", "i4")]),
    torch.zeros(2).to_sparse(),
    torch.zeros(2, device="meta"),
]


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT)
def test_different(values: list[Any]) -> None:
    assert len({key(value) for value in values}) == len(values)


@pytest.mark.parametrize("values", EQUAL.values(), ids=EQUAL)
def test_equal(values: tuple[Any, ...]) -> None:
    assert len({key(value) for value in values}) == 1


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_has_no_encoding_is_refused_with_its_path(value: object) -> None:
    """No pickle, no hash of an address: the same value would have another key in the next process."""
    with pytest.raises(InvalidRequest) as caught:
        HASHER.hash_kwargs(a=1, b=[0, {"deep": value}])
    assert caught.value.details["field"] == "$.b[1].deep"


def test_a_key_without_encoding_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"value \(key\)"):
        key({(1, 2): 3})


def test_endless_nesting_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidRequest, match=str(MAX_DEPTH)):
        key(endless)


def test_the_digest_is_that_of_the_documented_bytes() -> None:
    """The layout in the module's docstring, written out: changing it changes every key in a store that outlives us."""
    u64 = struct.Struct("<Q").pack
    stream = b"mmcached kwargs 1{" + u64(2)
    stream += b"s" + u64(1) + b"n" + b"i" + u64(1) + b"\x05"
    stream += b"s" + u64(1) + b"x" + b"[" + u64(2) + b"N"
    stream += b"a" + u64(5) + b"int16" + u64(1) + u64(2) + b"e" + u64(4) + b"\x01\0\x02\0"
    expected = hashlib.sha256(stream).hexdigest()
    assert MultiModalHasher("sha256").hash_kwargs(x=[None, np.array([1, 2], np.int16)], n=5) == expected


def test_unknown_algorithm() -> None:
    with pytest.raises(ConfigError, match="md5"):
        MultiModalHasher("md5")  # type: ignore[arg-type]


def test_item_key_is_the_digest_of_the_documented_bytes() -> None:
    """The parts around the content are made once for many items; the digest is that of the whole all the same."""
    u64 = struct.Struct("<Q").pack
    content, tenant = "9" * 64, "acme \x09\0\0"
    parts = [(b"tenant", b"s", tenant.encode()), (b"content", b"b", content.encode()), (b"modality", b"s", b"image")]
    stream = b"mmcached item 2{" + u64(4)
    for name, tag, value in [*parts, (b"fingerprint", b"s", b"p1")]:
        stream += b"s" + u64(len(name)) + name + tag + u64(len(value)) + value
    wanted = hashlib.sha256(stream).hexdigest()
    assert MultiModalHasher("sha256").item_key(content, modality="image", fingerprint="p1", tenant=tenant) == wanted


def test_files_of_like_pictures_have_keys_of_their_own() -> None:
    """Same pixels in another mode, size, palette or format are another file, and so another item."""
    first, second = (Image.new("P", (2, 3)) for _ in range(2))
    first.putpalette([1, 2, 3])
    second.putpalette([3, 2, 1])
    images = [Image.new(mode, size) for mode in ("1", "L", "P", "RGB", "RGBA") for size in ((2, 3), (3, 2))]
    files = [encode(image) for image in (*images, first, second)] + [encode(images[2], "BMP")]
    assert len(set(map(HASHER.content_digest, files))) == len(files)


def test_ids_of_callers_meet_no_content_and_no_other_tenants_ids() -> None:
    parts = {"modality": "image", "fingerprint": "p1", "tenant": "a"}
    content_key = HASHER.item_key("photo", **parts)
    keys = [content_key, HASHER.caller_key("photo", **parts), HASHER.caller_key(content_key, **parts)]
    keys += [HASHER.caller_key("photo", **(parts | {name: "changed"})) for name in parts]
    keys += [HASHER.hash_kwargs(id="photo", **parts)]
    assert len(set(keys)) == len(keys)
    assert HASHER.caller_key("photo", **parts) == keys[1]


@pytest.mark.parametrize("caller_id", ["", "x" * (MAX_CALLER_ID_BYTES + 1), "ü" * (MAX_CALLER_ID_BYTES // 2 + 1)])
def test_ids_of_callers_are_bounded(caller_id: str) -> None:
    parts = {"modality": "image", "fingerprint": "p1", "tenant": ""}
    HASHER.caller_key("ü" * (MAX_CALLER_ID_BYTES // 2), **parts)
    with pytest.raises(InvalidRequest, match=str(MAX_CALLER_ID_BYTES)):
        HASHER.caller_key(caller_id, **parts)


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=2), children, max_size=3),
    max_leaves=8,
)


def spelled(value: Any) -> Any:
    """A form in which two values are equal exactly if they are equal in type, too."""
    if isinstance(value, dict):
        return ("{", tuple(sorted((name, spelled(child)) for name, child in value.items())).__repr__())
    if isinstance(value, list):
        return ("[", tuple(map(spelled, value)).__repr__())
    return (type(value).__name__, repr(value))


@given(VALUES, VALUES)
def test_keys_are_equal_exactly_if_values_are(a: Any, b: Any) -> None:
    assert (key(a) == key(b)) == (spelled(a) == spelled(b))
