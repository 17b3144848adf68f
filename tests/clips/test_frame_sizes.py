"""Frames keep their form and have whole squares, no more than a checkpoint lets them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.clips.frame_sizes import EdgeSizes, FrameSizes
from mmcached.wire.errors import ClipTooLarge


def sizes(*, lifts: bool = False) -> FrameSizes:
    return FrameSizes(side=28, min_pixels=784, max_pixels=28 * 28 * 20, lifts=lifts)


@given(st.integers(1, 4000), st.integers(1, 4000), st.booleans())
def test_frames_have_whole_squares_and_no_more_of_them_than_the_largest(width: int, height: int, lifts: bool) -> None:
    try:
        wide, high = sizes(lifts=lifts).of(width, height)
    except ClipTooLarge:
        assert max(width, height) > 20 * min(width, height)
        return
    assert max(width, height) <= 200 * min(width, height)
    assert wide % 28 == high % 28 == 0
    assert 1 <= (wide // 28) * (high // 28) <= 20


@pytest.mark.parametrize(("width", "height"), [(4000, 1), (1, 4000), (40, 4000)])
def test_a_form_that_does_not_fit_is_named(width: int, height: int) -> None:
    with pytest.raises(ClipTooLarge, match=f"{width} x {height} pixels"):
        sizes().of(width, height)


def test_small_frames_are_lifted_before_they_are_rounded() -> None:
    assert sizes().of(100, 20) == (112, 28)
    assert sizes(lifts=True).of(100, 20) == (140, 28)


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_the_shorter_side_is_the_edge(width: int, height: int) -> None:
    rule = EdgeSizes(edge=40)
    try:
        wide, high = rule.of(width, height)
    except ClipTooLarge:
        assert max(width, height) > 16 * min(width, height)
        return
    assert min(wide, high) == 40
    assert wide * high <= rule.max_pixels
    assert (wide >= high) == (width >= height) or wide == high
