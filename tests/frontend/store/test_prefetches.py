"""What is fetched ahead of need: after all that is waited for, no more than a client may have, and nobody waits."""

from __future__ import annotations

import pytest

from mmcached.frontend.store.prefetch_table import MAX_UNDER_WAY, PREFETCH_S
from mmcached.wire.fetch_stats import FetchStats, PrefetchStats
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.second_level import Orders
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient
from tests.frontend.second_levels import FakeSecondLevel
from tests.frontend.store.test_second_level import CONFIG, ask_for, fetches, flush, is_answered, store_stats
from tests.frontend.store.test_store_service import record_of, value_of

__all__ = ["CONFIG"]
MAX_PER_CLIENT = CONFIG.limits.max_prefetches_per_client


@pytest.fixture
def level(bench: Bench) -> FakeSecondLevel:
    return FakeSecondLevel(bench)


@pytest.fixture
def ann(bench: Bench, level: FakeSecondLevel) -> FakeClient:
    return bench.connect_client()


def prefetch(client: FakeClient, *keys: str, tenant: str = "") -> int:
    client.channel.send(to_frontend.PrefetchRecords(client.client_id, 7, list(keys), tenant))
    answer = client.answer(to_client.Prefetching)
    assert answer.request_id == 7
    return answer.num_begun


def prefetches(bench: Bench) -> PrefetchStats:
    return store_stats(bench).prefetches


def test_what_has_been_prefetched_is_a_record_like_any_other(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    ann.put("here", record_of(1))
    assert prefetch(ann, "here", "there", "nowhere", tenant="") == 2
    one, two = level.orders().fetches
    assert [(each.key, each.is_ahead, each.claims) for each in (one, two)] == [
        ("there", True, False),
        ("nowhere", True, False),
    ]
    assert level.put(one, record_of(2)).is_stored
    level.end(one, "hit")
    level.end(two, "miss")
    assert value_of(ann, ann.get("there")) == 2
    assert prefetches(bench) == PrefetchStats(hits=1, misses=1)
    assert fetches(bench) == FetchStats()
    level.poll()
    assert not store_stats(bench).fetches.saves_dropped


def test_what_is_wanted_at_once_is_fetched_at_once(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    prefetch(ann, "a")
    ahead = level.fetch()
    ask_for(ann, "a")
    fetch = level.fetch()
    assert (fetch.key, fetch.is_ahead) == ("a", False)
    level.end(ahead, "miss")
    assert not is_answered(bench, ann), "it waits for the second one"
    level.put(fetch, record_of(3))
    assert value_of(ann, ann.answer(to_client.Records)) == 3
    assert prefetches(bench) == PrefetchStats(overtaken=1)
    assert fetches(bench) == FetchStats(hits=1)


def test_what_is_waited_for_is_ordered_first(bench: Bench, ann: FakeClient, level: FakeSecondLevel) -> None:
    ask_for(ann, "x")
    level.client.answer(Orders)  # no poll is held now
    bob = bench.connect_client()
    assert prefetch(bob, "a", "b") == 2
    ask_for(bob, "c")
    bench.pump(lambda: fetches(bench).parked == 2)
    level.poll()
    assert [each.key for each in level.orders().fetches] == ["c", "a", "b"]


def test_a_wait_is_not_withdrawn_by_a_prefetch(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a")
    fetch = level.fetch()
    assert prefetch(bench.connect_client(), "a") == 0, "it is being fetched"
    level.put(fetch, record_of(4))
    assert value_of(ann, ann.answer(to_client.Records)) == 4


def test_few_are_under_way_at_a_time(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    assert prefetch(ann, *(f"k{number}" for number in range(MAX_UNDER_WAY + 2))) == MAX_UNDER_WAY + 2
    first, *others = level.orders().fetches
    assert len(others) == MAX_UNDER_WAY - 1
    level.end(first, "miss")
    assert [each.key for each in level.orders().fetches] == [f"k{MAX_UNDER_WAY}"]
    assert prefetches(bench) == PrefetchStats(open=MAX_UNDER_WAY + 1, misses=1)


def test_beyond_its_limit_no_more_is_fetched_for_a_client_and_that_is_counted(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    keys = [f"k{number}" for number in range(to_frontend.MAX_KEYS)]
    assert prefetch(ann, *keys) == MAX_PER_CLIENT == len(keys)
    assert prefetch(ann, *keys) == 0, "the same are not fetched twice"
    assert prefetch(ann, "one", "more") == 0
    assert prefetch(bench.connect_client(), "one") == 1, "of another client"
    assert prefetches(bench) == PrefetchStats(open=MAX_PER_CLIENT + 1, refused=2)
    level.end(level.orders().fetches[0], "miss")
    assert prefetch(ann, "one", "more") == 1


def test_what_the_second_level_does_not_answer_is_given_up(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    prefetch(ann, "a")
    fetch = level.fetch()
    assert fetch.timeout_ms == 1000 * PREFETCH_S
    clock.now += PREFETCH_S
    bench.stats(after=object)
    assert prefetches(bench) == PrefetchStats(failed=1)
    ask_for(ann, "b")
    assert level.fetch().key == "b", "the process does not count as silent"
    level.end(fetch, "hit")
    assert prefetches(bench) == PrefetchStats(failed=1)


@pytest.mark.parametrize("how", ["death", "flush"])
def test_a_death_and_a_flush_end_them(bench: Bench, level: FakeSecondLevel, ann: FakeClient, how: str) -> None:
    prefetch(ann, "a", "b")
    if how == "death":
        level.die()
    else:
        flush(bench)
        bench.pump(lambda: not prefetches(bench).open)
    assert prefetches(bench) == PrefetchStats(failed=2)


def test_without_a_second_level_none_is_begun(bench: Bench) -> None:
    assert prefetch(bench.connect_client(), "a") == 0
    assert prefetches(bench) == PrefetchStats()


def test_a_put_of_a_client_ends_it(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    prefetch(ann, "a")
    ahead = level.fetch()
    ann.put("a", record_of(5))
    level.put(ahead, record_of(6))
    level.end(ahead, "hit")
    assert value_of(ann, ann.get("a")) == 5
    assert prefetches(bench) == PrefetchStats(overtaken=1)
