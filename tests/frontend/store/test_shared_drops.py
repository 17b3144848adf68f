"""Drops on all hosts, as P0 sees them: what is ordered, who waits how long, and what is neither fetched nor kept."""

from __future__ import annotations

from itertools import count

import pytest

from mmcached.cache.store_keys import store_key
from mmcached.frontend.store import shared_drops
from mmcached.frontend.store.shared_drops import AGAIN_S, WAIT_S
from mmcached.wire.fetch_stats import FetchStats, PrefetchStats
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import second_level as of_level
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient
from tests.frontend.second_levels import FakeSecondLevel
from tests.frontend.store.test_prefetches import prefetch, prefetches
from tests.frontend.store.test_second_level import CONFIG, ask_for, error_of, fetches, is_answered, store_stats
from tests.frontend.store.test_store_service import record_of, value_of

__all__ = ["CONFIG"]
NUMBERS = count(100)


@pytest.fixture
def level(bench: Bench) -> FakeSecondLevel:
    return FakeSecondLevel(bench)


@pytest.fixture
def ann(bench: Bench, level: FakeSecondLevel) -> FakeClient:
    return bench.connect_client()


def ask_to_drop(client: FakeClient, key: str, *, is_local: bool = False) -> int:
    number = next(NUMBERS)
    client.channel.send(to_frontend.DropRecord(number, key, "", is_local))
    return number


def is_here(client: FakeClient, key: str) -> bool:
    ask_for(client, key, is_local=True)
    return client.answer(to_client.Records).records != [None]


def ordered(level: FakeSecondLevel) -> of_level.Drop:
    while not (drops := level.orders().drops):
        pass
    (drop,) = drops
    return drop


def end(level: FakeSecondLevel, drop: of_level.Drop, error: str = "") -> None:
    level.client.channel.send(of_level.DropEnded(level.client.client_id, drop.number, error))
    level._is_heard()


def test_a_drop_is_answered_when_the_second_level_has_confirmed_it(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    ann.put("a", record_of(1))
    for key, reason in (("a", to_client.DROPPED), ("nobody's", "it had none")):
        number = ask_to_drop(ann, key)
        drop = ordered(level)
        assert drop.name == store_key("", key)
        assert not is_answered(bench, ann)
        assert fetches(bench).waiting_drops == 1
        end(level, drop)
        answer = ann.answer(to_client.Stored)
        assert (answer.request_id, answer.is_stored, answer.reason) == (number, False, reason)
    assert store_stats(bench).fetches.waiting_drops == 0


def test_a_drop_of_this_host_alone_asks_nobody(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.put("a", record_of(1))
    ask_to_drop(ann, "a", is_local=True)
    assert ann.answer(to_client.Stored).reason == to_client.DROPPED
    assert fetches(bench).waiting_drops == 0
    ask_for(ann, "a")
    assert level.fetch().key == "a", "the second level may have it"


def test_until_it_is_confirmed_the_record_is_not_fetched_and_none_of_before_is_kept(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    bob, eve = bench.connect_client(), bench.connect_client()
    ask_for(bob, "a")
    fetch = level.fetch()
    assert prefetch(eve, "b") == 1
    ahead = level.fetch()
    for key in ("a", "b"):
        ask_to_drop(ann, key)
    assert bob.answer(to_client.Records).records == [None], "its fetch has ended"
    drops: list[of_level.Drop] = []
    while len(drops) < 2:
        drops += level.orders().drops
    assert prefetches(bench) == PrefetchStats(failed=1)
    assert not level.put(fetch, record_of(1)).is_stored
    assert not level.put(ahead, record_of(1)).is_stored
    assert bob.get("a").records == [None]
    assert prefetch(eve, "a", "b") == 0
    assert bob.claim("a").claim, "it is computed anew"
    for drop in drops:
        end(level, drop)
        assert ann.answer(to_client.Stored).reason == "it had none"
    ask_for(eve, "b")
    assert level.fetch().key == "b"


def test_a_record_that_is_put_meanwhile_is_a_new_one(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.put("a", record_of(1))
    ask_to_drop(ann, "a")
    drop = ordered(level)
    bob = bench.connect_client()
    assert bob.put("a", record_of(2)).is_stored
    end(level, drop)
    ann.answer(to_client.Stored)
    assert value_of(bob, bob.get("a")) == 2


def test_a_save_of_before_is_not_ordered_any_more(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.put("a", record_of(1))
    ask_to_drop(ann, "a")
    end(level, ordered(level))
    ann.answer(to_client.Stored)
    ann.put("b", record_of(2))
    assert [save.key for save in level.saves(clock)] == ["b"]


def test_a_client_is_told_the_error_and_the_drop_is_ordered_again(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ask_to_drop(ann, "a")
    first = ordered(level)
    end(level, first, "the server is full")
    error = error_of(ann.answer(to_client.Failed))
    assert (error.code, error.retryable) == ("service_unavailable", True)
    assert "the server is full" in str(error)
    assert fetches(bench).waiting_drops == 1
    clock.now += AGAIN_S
    bench.stats(after=object)
    assert ordered(level) == first
    end(level, first)
    assert fetches(bench) == FetchStats()
    assert not is_answered(bench, ann)


def test_nobody_waits_for_long_and_a_later_drop_of_the_name_is_ordered_too(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ask_to_drop(ann, "a")
    first = ordered(level)
    clock.now += WAIT_S
    assert "its process has not answered" in str(error_of(ann.answer(to_client.Failed)))
    ask_to_drop(ann, "a")
    second = ordered(level)
    assert second.number != first.number
    end(level, first)
    assert not is_answered(bench, ann), "it is not the one that was waited for"
    end(level, second)
    assert ann.answer(to_client.Stored).reason == "it had none"


def test_the_next_process_is_told_what_the_last_one_has_not_confirmed(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    ask_to_drop(ann, "a")
    ordered(level)
    level.die()
    following = FakeSecondLevel(bench)
    end(following, ordered(following))
    assert ann.answer(to_client.Stored).reason == "it had none"


def test_without_the_process_a_drop_is_kept_for_it(bench: Bench, clock: Clock) -> None:
    ann = bench.connect_client()
    ann.put("a", record_of(1))
    ask_to_drop(ann, "a")
    bench.pump(lambda: fetches(bench).waiting_drops == 1)
    clock.now += WAIT_S
    assert error_of(ann.answer(to_client.Failed)).code == "service_unavailable"
    assert ann.get("a").records == [None]
    assert ordered(FakeSecondLevel(bench)).name == store_key("", "a")


def test_too_many_drops_are_refused_and_drop_nothing(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_drops, "MAX_DROPS", 1)
    ann.put("b", record_of(2))
    ask_to_drop(ann, "a")
    ask_to_drop(ann, "b")
    assert error_of(ann.answer(to_client.Failed)).code == "service_unavailable"
    assert value_of(ann, ann.get("b")) == 2
    first = ordered(level)
    ask_to_drop(ann, "a")
    assert value_of(ann, ann.get("b")) == 2  # so the second request to drop "a" has come
    end(level, first)
    assert not is_answered(bench, ann)
    end(level, ordered(level))
    assert [ann.answer(to_client.Stored).reason for _ in range(2)] == ["it had none"] * 2


def test_what_other_hosts_have_dropped_is_dropped_here(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    for number, key in enumerate("abc"):
        ann.put(key, record_of(number))
    ask_for(bench.connect_client(), "d")
    level.fetch()
    names = [store_key("", key) for key in "abd"]
    level.client.channel.send(of_level.RecordsDropped(level.client.client_id, names))
    level._is_heard()
    assert [is_here(ann, key) for key in "abc"] == [False, False, True]
    assert (fetches(bench).dropped, fetches(bench).parked) == (2, 0)
    assert [save.key for save in level.saves(clock)] == ["c"]
    level.client.channel.send(of_level.RecordsDropped(level.client.client_id, [], are_all=True))
    level._is_heard()
    assert not is_here(ann, "c")


def test_only_the_second_level_says_so(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    before = bench.frontend.store.num_protocol_errors
    ann.put("a", record_of(1))
    ann.channel.send(of_level.RecordsDropped(ann.client_id, [store_key("", "a")]))
    ann.channel.send(of_level.DropEnded(ann.client_id, 1))
    bench.pump(lambda: bench.frontend.store.num_protocol_errors == before + 2)
    assert value_of(ann, ann.get("a")) == 1
