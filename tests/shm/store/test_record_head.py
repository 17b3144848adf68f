"""The head of a record; what is in it: `test_codec`."""

from __future__ import annotations

import pytest

from mmcached.shm.store.record_head import TensorRef, pack_head, place, read_head, read_preamble, reference
from mmcached.wire.errors import RemoteProtocolError


def test_a_head_says_where_every_tensor_lies() -> None:
    packed = pack_head({"a": [reference(1)], "b": reference(0), "c": 3}, [("uint8", (100,)), ("float32", (2, 3))])
    assert read_preamble(memoryview(packed)) == (len(packed), 2)
    head = read_head(packed)
    assert head.tree == {"a": [TensorRef(1)], "b": TensorRef(0), "c": 3}
    assert [(kind.dtype, kind.shape, kind.nbytes) for kind, _ in head.tensors] == [
        ("uint8", (100,), 100),
        ("float32", (2, 3), 24),
    ]
    first, second = (offset for _, offset in head.tensors)
    assert first % 64 == second % 64 == 0
    assert second >= first + 100
    assert head.nbytes == second + 24


def test_equal_heads_are_judged_once_and_long_ones_are_not_kept() -> None:
    short, long = ({"text": "x" * size} for size in (10, 5000))
    assert read_head(pack_head(short, [])) is read_head(pack_head(short, []))
    assert read_head(pack_head(long, [])) is not read_head(pack_head(long, []))


def test_what_was_refused_is_refused_again() -> None:
    wrong = pack_head({"a": reference(0)}, [("float31", (1,))])
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            read_head(wrong)


def test_a_head_is_exactly_as_long_as_it_says() -> None:
    packed = pack_head({}, [])
    for wrong in (packed + b"\0", packed[:-1], packed[:10], b""):
        with pytest.raises(RemoteProtocolError):
            read_head(wrong)


def test_more_tensors_than_are_prepared() -> None:
    packed = pack_head(
        {"all": [reference(index) for index in range(200)]}, [("uint8", (index,)) for index in range(200)]
    )
    assert read_head(packed).tree["all"] == [TensorRef(index) for index in range(200)]


@pytest.mark.parametrize(("sizes", "offsets"), [([], ()), ([1, 64, 65], (64, 128, 192)), ([0, 0], (64, 64))])
def test_tensors_begin_at_multiples_of_64(sizes: list[int], offsets: tuple[int, ...]) -> None:
    assert place(10, sizes) == ((offsets[-1] + sizes[-1]) if sizes else 10, offsets)
