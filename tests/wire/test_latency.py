"""Durations fall into their buckets, add up, and tell the quantiles that Prometheus would tell."""

from __future__ import annotations

import random

import pytest

from mmcached.wire.latency import BOUNDS_NS, NUM_BUCKETS, Histogram, Latency, bucket_of


def latency_of(*seconds: float) -> Histogram:
    latency = Latency()
    for each in seconds:
        latency.add(each)
    return latency.histogram()


def test_the_bounds_rise_from_a_microsecond_to_a_hundred_seconds() -> None:
    assert BOUNDS_NS[0] == 1_000
    assert BOUNDS_NS[-1] == 100 * 10**9
    assert list(BOUNDS_NS) == sorted(set(BOUNDS_NS))


def test_each_duration_is_in_one_bucket_and_in_the_sum() -> None:
    rng = random.Random(1)
    durations = [rng.choice([0, 1, *BOUNDS_NS, *(bound + 1 for bound in BOUNDS_NS)]) for _ in range(1000)]
    found = latency_of(*(ns / 1e9 for ns in durations))
    expected = [0] * NUM_BUCKETS
    for ns in durations:
        expected[next((index for index, bound in enumerate(BOUNDS_NS) if ns <= bound), len(BOUNDS_NS))] += 1
    assert (list(found.counts), found.sum_ns, found.num) == (expected, sum(durations), 1000)
    assert [bucket_of(ns) for ns in (0, 10**12)] == [0, NUM_BUCKETS - 1]


def test_two_processes_add_up_and_a_difference_is_what_came_between() -> None:
    one, two = latency_of(1e-6, 0.5), latency_of(0.5, 1000.0)
    assert one + two == latency_of(1e-6, 0.5, 0.5, 1000.0)
    assert (one + two).since(one) == two


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 1.0])
def test_a_quantile_lies_in_the_bucket_of_the_one_that_it_names(share: float) -> None:
    rng = random.Random(2)
    durations = sorted(10 ** rng.uniform(-6, 1.9) for _ in range(500))
    found = latency_of(*durations).quantile(share)
    assert found is not None
    bucket = bucket_of(round(1e9 * durations[max(0, round(share * 500) - 1)]))
    assert (0, *BOUNDS_NS)[bucket] <= round(found * 1e9) <= BOUNDS_NS[bucket]


def test_of_nothing_there_is_no_quantile_and_beyond_the_last_bound_it_is_that_bound() -> None:
    assert Histogram().quantile(0.5) is None
    assert latency_of(5000.0).quantile(0.99) == 100.0
