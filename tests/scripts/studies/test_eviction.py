from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from mmcached.cli.traces.simulated_store import StoreCache
from scripts.studies import policies, traces
from scripts.studies.eviction import STORES, mean_rates, sessions
from scripts.studies.eviction import replay as replay_trace
from scripts.studies.eviction_clips import SLICE_BYTES, hit_rate
from scripts.studies.policies import Fifo, Lru, Policy, S3Fifo, Sieve


def replay(policy: Policy, keys: str) -> str:
    """Return the keys that hit, all of size 1, and a dot for each miss."""
    return "".join(key if policy.request(key, 1) else "." for key in keys)


def test_doctests() -> None:
    assert doctest.testmod(policies).failed == 0


@pytest.mark.parametrize("policy", [Lru, Fifo, Sieve, S3Fifo, *STORES.values()])
def test_what_fits_is_held_and_no_more(policy: Callable[[int], Policy]) -> None:
    cache = policy(64 * traces.MIB)
    fits = dict.fromkeys("abcdefghij", 4 * traces.MIB)
    too_much = fits | dict.fromkeys("klmnopqr", 4 * traces.MIB)
    for _ in range(2):
        hits = [cache.request(key, size) for key, size in fits.items()]
    assert all(hits)
    for _ in range(50):
        hits = [cache.request(key, size) for key, size in too_much.items()]
        assert not all(hits)


@pytest.mark.parametrize("share", [0.5, 1])
def test_sessions_that_do_not_all_fit_are_found_nearly_as_often_as_by_lru(share: float) -> None:
    whole = sessions(1, share)
    trace = [replace(whole, keys=whole.keys[: len(whole.keys) // 2])]
    ring, lru = (mean_rates(trace, partial(replay_trace, policy))[0] for policy in (StoreCache, Lru))
    assert ring > 0.8 * lru


# What the records in use take is 90 % of the store. With nurseries the main ring is 75 %, so it holds five sixths of
# their bytes at most, and clips go through the rest: 58 to 90 % of the objects are found, by the order of their sizes.
@pytest.mark.parametrize(("store", "least"), [("1 writer", 50), ("no nurseries", 85)])
@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize("num_slices", SLICE_BYTES)
def test_clips_that_nobody_asks_for_again_leave_what_is_used(
    num_slices: int, is_asked: bool, store: str, least: float
) -> None:
    slices = 5 * num_slices, SLICE_BYTES[num_slices]  # of a store that one clip nearly fills
    ours, lru = (hit_rate(policy, 512 * traces.MIB, slices, is_asked, seed=0) for policy in (STORES[store], Lru))
    assert ours > max(least, lru + 18)
    assert lru < 70
