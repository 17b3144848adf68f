"""Nested tensors, told apart without importing the libraries they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmcached.compat.multimodal.nested import is_array, leaves, nested_equal

ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)


@pytest.mark.parametrize("value", [ARRAY, np.float32(1), torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)])
def test_arrays_of_both_libraries(value: object) -> None:
    assert is_array(value)


@pytest.mark.parametrize("value", [1, 1.0, "a", b"a", None, [ARRAY], {"a": ARRAY}, memoryview(b"a")])
def test_what_is_no_array(value: object) -> None:
    assert not is_array(value)


def test_leaves_in_order() -> None:
    assert list(leaves({"a": [1, (2, {"b": "x"})], "c": None})) == [1, 2, "x", None]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (ARRAY, ARRAY.copy()),
        ([1, (2.0, "x")], (1, [2.0, "x"])),
        ({"a": ARRAY, "b": None}, {"b": None, "a": ARRAY.copy()}),
        (torch.ones(2, 3), torch.ones(2, 3)),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (b"x", b"x"),
    ],
)
def test_equal(a: object, b: object) -> None:
    assert nested_equal(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (ARRAY, ARRAY + 1),
        (ARRAY, ARRAY.astype(np.int32)),
        (ARRAY, ARRAY.reshape(3, 2)),
        (ARRAY, ARRAY.tolist()),
        (torch.ones(2), np.ones(2, np.float32)),
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, [1]),
        (None, 0),
    ],
)
def test_different(a: object, b: object) -> None:
    assert not nested_equal(a, b)
    assert not nested_equal(b, a)
