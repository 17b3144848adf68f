from __future__ import annotations

import gc
import struct
import weakref
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.shm import decode, decode_record_frames, encode
from mmcached.shm.store.codec import Library, Record, adopt_frames
from mmcached.shm.store.record_head import MAX_DEPTH, MAX_ELEMENTS, MAX_HEAD_BYTES, MAX_TENSORS
from mmcached.shm.store.tensor_bytes import ITEMSIZES, NUMPY_ITEMSIZES
from mmcached.wire.errors import InvalidRequest, LocalProtocolError, RemoteProtocolError
from tests.house.drawing import examples


def written(record: Record) -> npt.NDArray[np.uint8]:
    encoded = encode(record)
    buffer = np.full(encoded.nbytes, 0xEE, np.uint8)
    encoded.write_into(buffer)
    buffer.flags.writeable = False
    return buffer


def both_ways(record: Record, tensors: Library = "torch") -> list[Record]:
    frames = [bytes(frame) for frame in encode(record).frames()]
    return [decode(written(record), tensors=tensors), decode_record_frames(frames, tensors=tensors)]


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    dense = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, dense.numpy().tobytes()


RANDOM = torch.randint(0, 256, (2 * 3 * 16,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def tensor_of(dtype: str) -> torch.Tensor:
    """`(2, 3)`, with arbitrary bits: NaNs with payloads, negative zeros."""
    if dtype == "bool":
        return (RANDOM[:6] > 127).reshape(2, 3)
    return RANDOM[: 6 * ITEMSIZES[dtype]].view(getattr(torch, dtype)).reshape(2, 3)


@pytest.mark.parametrize("dtype", sorted(ITEMSIZES))
def test_torch_round_trips_bit_for_bit(dtype: str) -> None:
    full = tensor_of(dtype)
    for tensor in (full, full.T, full[:, ::2], full[1, 2], full[:0], full.reshape(1, 1, 2, 1, 3, 1)):
        for record in both_ways({"before": b"x", "t": tensor, "u": tensor}):
            assert bits(record["t"]) == bits(tensor)
            assert bits(record["u"]) == bits(tensor)
        assert bits(decode(written({"t": tensor}), tensors="torch", copy=True)["t"]) == bits(tensor)


@pytest.mark.parametrize("dtype", sorted(NUMPY_ITEMSIZES))
def test_numpy_round_trips(dtype: str) -> None:
    for array in (np.arange(6).astype(dtype).reshape(2, 3), np.ones((), dtype), np.empty((0, 4), dtype)):
        for variant in (array, array.T, array[::-1] if array.ndim else array):
            for record in both_ways({"a": variant}, "numpy"):
                assert record["a"].dtype == variant.dtype
                assert record["a"].shape == variant.shape
                assert record["a"].tobytes() == variant.tobytes()


def test_each_library_may_read_what_the_other_wrote() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    record = decode(written({"a": array, "t": torch.from_numpy(array)}), tensors="torch")
    assert record["a"].equal(record["t"])
    record = decode(written({"a": array, "t": torch.from_numpy(array)}), tensors="numpy")
    np.testing.assert_array_equal(record["a"], record["t"])
    with pytest.raises(InvalidRequest, match="numpy has no bfloat16"):
        decode(written({"t": tensor_of("bfloat16")}), tensors="numpy")


def test_what_is_special_about_a_tensor_is_resolved() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    conjugate = torch.tensor([1 + 2j]).conj()
    negative = conjugate.imag
    record = decode(written({"w": weight, "c": conjugate, "n": negative}), tensors="torch")
    assert record["w"].tolist() == [1, 1, 1]
    assert not record["w"].requires_grad
    assert record["c"].tolist() == [1 - 2j]
    assert record["n"].tolist() == [-2]
    big_endian = np.array([1, 2], ">i4")
    assert decode(written({"a": big_endian}), tensors="numpy")["a"].tolist() == [1, 2]


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
RECORDS = st.dictionaries(
    st.text(),
    st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)),
    max_size=5,
)


@settings(max_examples=examples(100))
@given(record=RECORDS)
def test_plain_values_round_trip(record: Record) -> None:
    for again in both_ways(record, "numpy"):
        assert repr(again) == repr(record)  # `repr` and not `==`: types count, and a NaN equals itself


def test_size_is_known_before_and_padding_is_zero() -> None:
    record = {"a": np.ones(3, np.uint8), "b": np.ones(5, np.float64), "c": 1}
    encoded = encode(record)
    buffer = np.full(encoded.nbytes + 10, 0xEE, np.uint8)
    encoded.write_into(buffer.data)
    assert buffer[encoded.nbytes :].tolist() == [0xEE] * 10
    assert 0xEE not in buffer[: encoded.nbytes]
    assert decode(buffer[: encoded.nbytes], tensors="numpy")["b"].tolist() == [1] * 5
    with pytest.raises(LocalProtocolError):
        encoded.write_into(np.empty(encoded.nbytes - 1, np.uint8))


def test_tensors_are_aligned_and_not_copied() -> None:
    arrays: list[npt.NDArray[Any]] = [np.ones(3, np.uint8), np.ones(5, np.float64)]
    encoded = encode({"a": arrays[0], "b": arrays[1]})
    for frame, array in zip(encoded.frames()[1:], arrays, strict=True):
        array[:] = 7
        assert bytes(frame) == array.tobytes()
    buffer = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_into(buffer)
    base = buffer.ctypes.data
    for key in "ab":
        view = decode(buffer, tensors="numpy")[key]
        assert (view.ctypes.data - base) % 64 == 0
        assert np.shares_memory(view, buffer)
    assert not np.shares_memory(decode(buffer, tensors="numpy", copy=True)["b"], buffer)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_every_view_keeps_the_one_holder_alive(tensors: Library) -> None:
    """Also when the holder is itself a slice; and nothing else keeps it, so it goes without a garbage collection."""
    gc.disable()
    try:
        whole = np.concatenate([np.zeros(64, np.uint8), written({"a": np.ones(4), "b": [np.ones(4)], "c": 1})])
        holder = whole[64:]
        gone: list[int] = []
        weakref.finalize(holder, gone.append, 1)
        record = decode(holder, tensors=tensors)
        del holder
        part = record["b"][0][1:3].reshape(2, 1)
        del record
        assert gone == []
        del part
        assert gone == [1]
    finally:
        gc.enable()


def test_encoding_keeps_nothing_once_it_is_dropped() -> None:
    gc.disable()
    try:
        array = np.ones(4)
        gone: list[int] = []
        weakref.finalize(array, gone.append, 1)
        encoded = encode({"a": array})
        del array
        assert gone == []
        del encoded
        assert gone == [1]
    finally:
        gc.enable()


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    ("record", "path"),
    [
        ([], "$"),
        ({"a": [1, {"b": object()}]}, "$.a[1].b"),
        ({"a": (1,)}, "$.a"),
        ({"a": np.float32(1)}, "$.a"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": 2**64}, "$.a"),
        ({"a": np.array([object()])}, "$.a"),
        ({"a": np.array(["x"])}, "$.a"),
        ({"a": np.zeros(2, "datetime64[s]")}, "$.a"),
        ({"a": np.ma.masked_array([1])}, "$.a"),
        ({"a": [torch.zeros(2, device="meta")]}, "$.a[0]"),
        ({"a": torch.eye(2).to_sparse()}, "$.a"),
        ({"a": "\ud800"}, "$"),
        ({"a": [0, [None] * MAX_ELEMENTS]}, "$.a[1]"),
        ({"a": {"b": bytes(MAX_HEAD_BYTES)}}, "$"),
        ({"a": [np.empty(0)] * (MAX_TENSORS + 1)}, f"$.a[{MAX_TENSORS}]"),
        ({"not a name": [{"k" * 1000: object()}]}, f"$['not a name'][0]['{'k' * 40}'…]"),
    ],
)
def test_what_is_not_carried_is_named(record: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(record)
    assert caught.value.details["field"] == path


def test_nesting_ends_somewhere_on_both_sides() -> None:
    deepest = {"a": nested(MAX_DEPTH - 1)}
    assert decode(written(deepest), tensors="numpy") == deepest
    endless: Record = {}
    endless["a"] = endless
    for record in ({"a": nested(MAX_DEPTH)}, endless):
        with pytest.raises(InvalidRequest):
            encode(record)
    with pytest.raises(RemoteProtocolError):
        decode(raw([{"a": nested(MAX_DEPTH)}, []]), tensors="numpy")


def raw(header: Any, num_tensors: int | None = None, tail: bytes = b"") -> npt.NDArray[np.uint8]:
    """Bytes of a record that `encode` would never make."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    count = len(header[1]) if num_tensors is None else num_tensors
    return np.frombuffer(struct.pack("<8sII", b"MMREC\0\0\1", len(packed), count) + packed + tail, np.uint8)


def tensor_at(index: int) -> msgpack.ExtType:
    return msgpack.ExtType(1, struct.pack("<I", index))


ONE = [["uint8", [0]]]


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros(0, np.uint8),
        np.zeros(15, np.uint8),
        np.zeros(64, np.uint8),
        raw(b"\xc1", 0),
        raw(b"\xdd\xff\xff\xff\xff", 0),
        raw([{}, []], 1),
        raw([[], []]),
        raw([{}], 0),
        raw([{}, [], 1]),
        raw([{}, []], tail=b"x"),
        raw([{"a": msgpack.ExtType(2, bytes(4))}, []]),
        raw([{"a": msgpack.Timestamp(1)}, []]),
        raw([{1: 2}, []]),
        raw([{b"a": 2}, []]),
        raw([{"a": tensor_at(0)}, [["object", [0]]]]),
        raw([{"a": tensor_at(0)}, [["__name__", [0]]]]),
        raw([{"a": tensor_at(0)}, [[1, [0]]]]),
        raw([{"a": tensor_at(0)}, [["uint8", [-1]]]]),
        raw([{"a": tensor_at(0)}, [["uint8", [True]]]]),
        raw([{"a": tensor_at(0)}, [["uint8", [0, 2**62]]]]),
        raw([{"a": tensor_at(0)}, [["uint8", [1] * 65]]]),
        raw([{"a": tensor_at(0)}, [["uint8", [2**40]]]]),
        raw([{"a": tensor_at(0)}, [["uint8", 3]]]),
        raw([{"a": tensor_at(0)}, ["uint8"]]),
        np.frombuffer(struct.pack("<8sII", b"MMREC\0\0\2", 0, 0), np.uint8),
        np.frombuffer(struct.pack("<8sII", b"MMREC\0\0\1", 2**32 - 1, 0), np.uint8),
    ],
)
def test_what_is_no_record_is_a_remote_error(buffer: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(buffer, tensors="numpy")


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({}, "record.tensors"),
        ({"a": tensor_at(0), "b": tensor_at(0)}, "$.{1}"),
        ({"a": tensor_at(1)}, "$.{0}"),
        ({"a": msgpack.ExtType(1, b"")}, "$.{0}"),
        ({"a": tensor_at(0), "b": [msgpack.ExtType(2, bytes(4))]}, "$.{1}[0]"),
    ],
)
def test_each_tensor_occurs_once(tree: Any, field: str) -> None:
    """The sizes are right, so that nothing else is wrong with these."""
    buffer = np.concatenate([raw([tree, ONE]), np.zeros(128, np.uint8)])
    buffer = buffer[: -(-(buffer.size - 128) // 64) * 64]
    with pytest.raises(RemoteProtocolError) as caught:
        decode(buffer, tensors="numpy")
    assert caught.value.details["field"] == field
    with pytest.raises(RemoteProtocolError) as caught:
        adopt_frames([raw([tree, ONE]).tobytes(), b""])
    assert caught.value.details["field"] == field
    assert decode(written({"a": np.empty(0, np.uint8)}), tensors="numpy")["a"].size == 0


def test_what_a_library_says_of_a_tensor_is_an_invalid_request() -> None:
    class Stubborn(np.ndarray):
        @property
        def nbytes(self) -> int:
            raise RuntimeError("secret")

    with pytest.raises(InvalidRequest) as caught:
        encode({"a": [np.zeros(3).view(Stubborn)]})
    assert caught.value.details["field"] == "$.a[0]"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "tree",
    [
        {"secret" * 1000: msgpack.ExtType(7, b"secret")},
        {"a": {"secret" * 1000: [msgpack.ExtType(7, b"secret")]}},
        {"a": {"secret": {7: "secret"}}},
        {"secret": [[[None] * 70_000]]},
    ],
)
def test_an_error_of_a_receiver_says_nothing_of_what_is_in_the_record(tree: Any) -> None:
    for header in ([tree, []], [{"a": tensor_at(0)}, [["secret" * 1000, []]]]):
        with pytest.raises(RemoteProtocolError) as caught:
            adopt_frames([raw(header).tobytes(), *[b""] * len(header[1])])
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 300


def test_too_large_a_head_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nils = raw([{"a": [None] * (2 * MAX_HEAD_BYTES)}, []]).tobytes()
    many = encode({"a": [np.empty(0)] * 10}).frames()
    lying = bytes(many[0])[:12] + b"\xff" * 4 + bytes(many[0])[16:]
    monkeypatch.setattr(msgpack, "unpackb", lambda *_, **__: pytest.fail("it was read"))
    for frames in ([nils], [nils, b""], [*many, b""], many[:-1], [lying]):
        with pytest.raises(RemoteProtocolError):
            adopt_frames(frames)


def test_adopted_frames_are_written_as_the_record_they_came_from() -> None:
    """Also with a dtype that only torch has: this side never makes a tensor of it."""
    record = {"a": torch.arange(6).to(torch.bfloat16), "b": [torch.zeros((0, 3)), 1, None], "c": np.ones(5, np.uint8)}
    frames = [bytes(frame) for frame in encode(record).frames()]
    adopted = adopt_frames(frames)
    buffer = np.full(adopted.nbytes, 0xEE, np.uint8)
    adopted.write_into(buffer)
    assert buffer.tobytes() == written(record).tobytes()
    assert [bytes(frame) for frame in adopted.frames()] == frames


@pytest.mark.parametrize("record", [{}, {"a": 1}, {"a": np.arange(70.0), "b": [np.ones((2, 2), np.int8), 1.5, b""]}])
def test_a_record_may_come_as_one_frame(record: Record) -> None:
    whole = encode(record).joined()
    assert whole == written(record).tobytes()
    adopted = adopt_frames([whole])
    buffer = np.full(adopted.nbytes + 8, 0xEE, np.uint8)
    adopted.write_into(buffer)
    assert buffer.tobytes() == whole + b"\xee" * 8
    assert (adopted.nbytes, adopted.joined()) == (len(whole), whole)
    assert list(map(bytes, adopted.frames())) == list(map(bytes, encode(record).frames()))
    with pytest.raises(LocalProtocolError, match=f"has {len(whole)} bytes, the buffer"):
        adopted.write_into(buffer[: len(whole) - 1])


def test_one_frame_that_is_not_one_record_is_refused() -> None:
    whole = encode({"a": np.arange(70.0)}).joined()
    twice = encode({"a": np.arange(70.0)}).frames()
    for wrong in ([b""], [whole[:-1]], [whole + b"\0"], [whole[:20]], [b"x" + whole[1:]], [whole, twice[1]]):
        with pytest.raises(RemoteProtocolError):
            adopt_frames(wrong)


SAMPLE = written({"a": np.arange(5.0), "b": [{"c": np.ones((2, 2), np.int8)}, "text", b"bytes", 1.5, None, True]})


@settings(max_examples=examples(300))
@given(
    changes=st.lists(st.tuples(st.integers(0, SAMPLE.size - 1), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.integers(0, SAMPLE.size),
    is_cut=st.booleans(),
)
def test_damaged_bytes_give_a_record_or_a_remote_error(
    changes: list[tuple[int, int]], length: int, is_cut: bool
) -> None:
    damaged = SAMPLE.copy()
    for position, value in changes:
        damaged[position] = value
    try:
        record = decode(damaged[:length] if is_cut else damaged, tensors="numpy")
    except RemoteProtocolError:
        return
    assert isinstance(record, dict)


SAMPLE_FRAMES = [bytes(frame) for frame in encode({"a": np.arange(5.0), "b": [np.ones((2, 2), np.int8), 1.5]}).frames()]


@settings(max_examples=examples(200))
@given(
    changes=st.lists(st.tuples(st.integers(0, len(SAMPLE_FRAMES[0]) - 1), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_what_is_adopted_can_be_read(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(SAMPLE_FRAMES[0])
    for position, value in changes:
        damaged[position] = value
    try:
        adopted = adopt_frames([bytes(damaged), *SAMPLE_FRAMES[1:]])
    except RemoteProtocolError:
        return
    buffer = np.empty(adopted.nbytes, np.uint8)
    adopted.write_into(buffer)
    assert isinstance(decode(buffer, tensors="torch"), dict)
