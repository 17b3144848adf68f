"""Exactness: the remainder against Python's integers, sums at the bound, weights from nothing but their name."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mmcached.worker.model.arithmetic import MAX_SUM, PRIME, draw, reduce_

MODULI = st.sampled_from([2, 13, 1021, PRIME])


@given(st.lists(st.integers(0, MAX_SUM), min_size=1, max_size=40), MODULI)
def test_remainder_is_exact_up_to_the_bound(values: list[int], modulus: int) -> None:
    found = reduce_(torch.tensor(values, dtype=torch.float64), modulus)
    assert found.tolist() == [value % modulus for value in values]


@given(st.integers(0, MAX_SUM // PRIME - 1), st.integers(-2, 2), MODULI)
def test_remainder_is_exact_beside_multiples(quotient: int, offset: int, modulus: int) -> None:
    value = max(0, quotient * modulus + offset)
    assert reduce_(torch.tensor([float(value)], dtype=torch.float64), modulus).item() == value % modulus


def test_products_at_the_largest_values_are_exact_in_any_blocking() -> None:
    width = 4096
    left = torch.full((3, width), PRIME - 1, dtype=torch.float64)
    right = torch.full((width, 2), PRIME - 1, dtype=torch.float64)
    expected = width * (PRIME - 1) ** 2
    assert (left @ right).eq(expected).all()
    pieces = sum(left[:, i : i + 7] @ right[i : i + 7] for i in range(0, width, 7))
    assert torch.as_tensor(pieces).eq(expected).all()


def test_weights_depend_on_seed_and_name_only() -> None:
    first = draw(7, "a", (5, 3))
    assert first.dtype == torch.float64
    assert torch.equal(first, draw(7, "a", (5, 3)))
    assert torch.equal(first.reshape(-1)[:4], draw(7, "a", (4,)))
    assert not torch.equal(first, draw(8, "a", (5, 3)))
    assert not torch.equal(first, draw(7, "b", (5, 3)))


def test_weights_are_pinned() -> None:
    """Another value would make a worker of another version disagree with this one."""
    assert draw(0, "decoder.tokens", (4,)).tolist() == PINNED


PINNED = [1043.0, 1575.0, 442.0, 1155.0]
