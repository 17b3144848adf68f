"""The second level, as P0 sees it: what is fetched, who waits, what ends a wait, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.frontend.store import save_queue
from mmcached.frontend.store.level_flush import FLUSH_AGAIN_S, FLUSH_TIMEOUT_S
from mmcached.frontend.store.save_queue import SAVES_WAIT_S
from mmcached.wire.config import GIB, KIB, ServiceConfig
from mmcached.wire.errors import MmcachedError, SecondLevelNotFlushed, error_from_wire
from mmcached.wire.fetch_stats import FetchStats
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import second_level as of_level
from mmcached.wire.stats import StoreStats
from tests.clock import Clock, Sleeper
from tests.frontend.fake_peers import DEADLINE_S, Bench, FakeClient
from tests.frontend.second_levels import FakeSecondLevel
from tests.frontend.store.test_store_service import record_of, value_of

TIMEOUT_S, CLAIM_WAIT_S = 0.05, 2.0
CONFIG = ServiceConfig(
    mm_processor_cache_gb=0,
    store_gb=64 * KIB / GIB,
    store_num_slots=64,
    max_num_requests=4,
    store_l2="redis://nowhere",
    limits=LimitsConfig(max_requests_per_client=3, flush_interval_s=0.0),
)


@pytest.fixture
def level(bench: Bench) -> FakeSecondLevel:
    return FakeSecondLevel(bench)


@pytest.fixture
def ann(bench: Bench, level: FakeSecondLevel) -> FakeClient:
    return bench.connect_client()


def store_stats(bench: Bench) -> StoreStats:
    return bench.frontend.stats().store


def fetches(bench: Bench) -> FetchStats:
    return store_stats(bench).fetches


def ask_for(client: FakeClient, *keys: str, tenant: str = "", is_local: bool = False) -> None:
    """Send what `FakeClient.get` sends, without waiting."""
    message = to_frontend.GetRecords(client.client_id, 1, list(keys), tenant, client.incarnation, is_local)
    client.channel.send(message)


def claim_many(client: FakeClient, *keys: str, number: int = 1) -> None:
    client.channel.send(to_frontend.ClaimRecords(client.client_id, number, list(keys), "", client.incarnation))


def is_answered(bench: Bench, client: FakeClient) -> bool:
    """Whether, after all that was said, something has come for a client."""
    bench.stats(after=object)
    return client.channel.wait(0)


def error_of(failed: to_client.Failed) -> MmcachedError:
    return error_from_wire(failed.error)


# ---- who waits for what


def test_a_get_waits_until_the_record_has_been_fetched(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.put("here", record_of(1))
    ask_for(ann, "here", "there")
    fetch = level.fetch()
    assert (fetch.tenant, fetch.key, fetch.claims, fetch.timeout_ms) == ("", "there", False, 50)
    assert fetch.store_epoch == bench.frontend.store.records.epoch
    assert not is_answered(bench, ann)
    assert fetches(bench).parked == 1
    level.put(fetch, record_of(2))
    answer = ann.answer(to_client.Records)
    assert [value_of(ann, answer, index) for index in (0, 1)] == [1, 2]
    assert fetches(bench) == FetchStats(hits=1)


@pytest.mark.parametrize("outcome", ["miss", "failed", "late"])
def test_a_get_goes_without_what_the_second_level_has_not(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, outcome: Any
) -> None:
    ask_for(ann, "a")
    level.end(level.fetch(), outcome)
    assert ann.answer(to_client.Records).records == [None]
    field = "misses" if outcome == "miss" else outcome
    assert fetches(bench) == FetchStats(**{field: 1})


def test_a_wait_ends_by_its_deadline_and_nobody_waits_until_the_process_says_something(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ask_for(ann, "a")
    orders = level.client.answer(of_level.Orders)
    clock.now += TIMEOUT_S
    assert ann.answer(to_client.Records).records == [None]
    assert ann.get("a").records == [None], "it does not wait: the clock stands still"
    assert fetches(bench) == FetchStats(late=1)
    level.end(orders.fetches[0], "hit")
    level.poll()
    ask_for(ann, "a")
    assert level.fetch().number != orders.fetches[0].number


def test_the_loop_wakes_for_a_deadline(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_for(ann, "a")
    level.orders()
    before = clock.now
    monkeypatch.setattr(bench.frontend, "_poller", Sleeper(clock))
    bench.frontend.poll(10.0)
    assert clock.now == pytest.approx(before + TIMEOUT_S, abs=0.0011)
    assert fetches(bench).late == 1


def test_however_many_want_a_record_it_is_fetched_once(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    bob = bench.connect_client(is_reader=False)
    for client in (ann, bob):
        ask_for(client, "a")
    fetch = level.fetch()
    assert not is_answered(bench, bob)
    level.put(fetch, record_of(3))
    assert [value_of(client, client.answer(to_client.Records)) for client in (ann, bob)] == [3, 3]
    assert fetches(bench).hits == 1


def test_a_put_of_anybody_ends_a_fetch(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a")
    fetch = level.fetch()
    bench.connect_client(is_reader=False).put("a", record_of(4))
    assert value_of(ann, ann.answer(to_client.Records)) == 4
    level.end(fetch, "miss")
    assert fetches(bench) == FetchStats(overtaken=1)


def test_a_record_that_finds_no_room_is_a_miss(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a")
    assert not level.put(level.fetch(), record_of(1, 64 * KIB)).is_stored
    assert ann.answer(to_client.Records).records == [None]


def test_who_asks_of_this_host_only_waits_for_nothing(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a", is_local=True)
    assert ann.answer(to_client.Records).records == [None]


def test_without_the_process_nobody_waits(bench: Bench) -> None:
    ann = bench.connect_client()
    assert ann.get("a").records == [None]
    assert ann.claim("a").claim
    assert ann.hello().has_second_level


def test_the_death_of_the_process_ends_all_waits(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a")
    bob = bench.connect_client()
    bob.ask("b")
    assert not is_answered(bench, bob)
    level.die()
    assert ann.answer(to_client.Records).records == [None]
    assert bob.answer(to_client.Claimed).claim
    assert bench.connect_client().get("c").records == [None]
    assert FakeSecondLevel(bench).client.client_id != level.client.client_id


def test_another_client_is_the_second_level_only_when_the_first_has_gone(bench: Bench, level: FakeSecondLevel) -> None:
    eve = bench.connect_client(is_reader=False)
    eve.channel.send(of_level.TakeOrders(eve.client_id, 7, 60.0))
    assert error_of(eve.answer(to_client.Failed)).code == "service_unavailable"
    before = bench.frontend.store.num_protocol_errors
    eve.channel.send(of_level.FetchesEnded(eve.client_id, []))
    eve.channel.send(of_level.SecondLevelFlushed(eve.client_id, 1))
    eve.channel.send(of_level.AnotherHostFlushed(eve.client_id, "of another one"))
    bench.pump(lambda: bench.frontend.store.num_protocol_errors == before + 3)


def test_a_poll_is_answered_when_its_time_is_over(bench: Bench, level: FakeSecondLevel, clock: Clock) -> None:
    clock.now += 60.0
    orders = level.orders()
    assert (orders.fetches, orders.saves, orders.flush) == ([], [], 0)


# ---- claims


def test_who_would_compute_is_told_to_when_no_host_has_the_record(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    bob = bench.connect_client()
    ann.ask("a")
    fetch = level.fetch()
    assert fetch.claims
    bob.ask("a")
    assert not is_answered(bench, bob)
    level.end(fetch, "miss")
    token = ann.answer(to_client.Claimed).claim
    assert not is_answered(bench, bob)
    ann.put("a", record_of(5), claim=token)
    assert value_of(bob, bob.answer(to_client.Records)) == 5
    stats = store_stats(bench)
    assert (stats.claims, stats.waits) == (1, 1)


def test_what_is_computed_here_is_not_fetched(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.ask("a")
    level.end(level.fetch(), "miss")
    ann.answer(to_client.Claimed)
    assert bench.connect_client().get("a").records == [None]
    assert fetches(bench) == FetchStats(misses=1)


def test_one_that_waits_for_another_host_gets_its_record(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.ask("a")
    fetch = level.fetch()
    level.end(fetch, "elsewhere")
    assert not is_answered(bench, ann)
    bob = bench.connect_client()
    assert bob.get("a").records == [None], "who would not compute does not wait"
    assert bob.claim_many("a").found == [None], "pending"
    bob.ask("a")
    assert not is_answered(bench, bob)
    level.put(fetch, record_of(6))
    assert [value_of(client, client.answer(to_client.Records)) for client in (ann, bob)] == [6, 6]
    assert fetches(bench) == FetchStats(hits=1)


def test_one_that_waits_for_another_host_too_long_computes(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.ask("a")
    level.end(level.fetch(), "elsewhere")
    clock.now += CLAIM_WAIT_S - 0.01
    assert not is_answered(bench, ann)
    clock.now += 0.01
    ann.answer(to_client.Claimed)
    bob = bench.connect_client()
    ask_for(bob, "b")
    assert level.fetch().key == "b", "the process was not silent"


def test_a_scheduler_is_told_that_it_is_pending_elsewhere_and_at_last_to_compute(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    claim_many(ann, "a", "b")
    first, second = level.orders().fetches
    level.end(first, "elsewhere")
    assert not is_answered(bench, ann)
    level.end(second, "miss")
    pending, token = ann.answer(to_client.Claims).found
    assert pending is None
    assert isinstance(token, int)
    assert token
    assert ann.claim_many("a").found == [None]
    clock.now += CLAIM_WAIT_S
    bench.stats(after=object)
    (token,) = ann.claim_many("a").found
    assert isinstance(token, int), "it is not fetched again: this host computes it"


def test_after_a_while_it_is_fetched_again_for_one_who_would_compute(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.ask("a")
    level.end(level.fetch(), "miss")
    token = ann.answer(to_client.Claimed).claim
    ann.channel.send(to_frontend.DropClaim(ann.client_id, token))
    ann.claim("a")  # at once
    ann.close()
    clock.now += CLAIM_WAIT_S
    bench.pump(lambda: not store_stats(bench).computing)
    bob = bench.connect_client()
    bob.ask("a")
    assert level.fetch().key == "a"


def test_one_who_comes_later_and_would_compute_makes_an_unordered_fetch_a_claim(bench: Bench) -> None:
    level = FakeSecondLevel(bench)
    ann, bob = bench.connect_client(), bench.connect_client()
    ask_for(ann, "x")
    level.client.answer(of_level.Orders)  # no poll is held now
    ask_for(ann, "a")
    bob.ask("a")
    bench.pump(lambda: fetches(bench).parked == 3)
    level.poll()
    (fetch,) = level.orders().fetches
    assert (fetch.key, fetch.claims) == ("a", True)


# ---- who does not wait any more


@pytest.mark.parametrize("how", ["cancelled", "gone", "over another connection"])
def test_a_message_of_one_who_does_not_wait_any_more_is_dropped(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, how: str
) -> None:
    number = ann.ask("a")
    fetch = level.fetch()
    if how == "cancelled":
        ann.channel.send(to_frontend.Cancel(ann.client_id, number))
    elif how == "gone":
        ann.channel.send(to_frontend.ClientBye(ann.client_id))
    else:
        ann.connect_anew()
    bench.pump(lambda: not fetches(bench).parked)
    level.end(fetch, "miss")
    assert store_stats(bench).claims == 0
    assert not is_answered(bench, ann)


def test_a_client_that_dies_is_not_waited_for(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ann.ask("a")
    fetch = level.fetch()
    level.end(fetch, "elsewhere")
    ann.close()
    bench.clients.remove(ann)
    bench.frontend.store.check(0.0)
    bench.frontend._clients.check()
    assert fetches(bench).parked == 0


def test_beyond_their_limits_messages_do_not_wait(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    for key in "abc":
        ask_for(ann, key)
    ask_for(ann, "d")
    assert ann.answer(to_client.Records).records == [None], "max_requests_per_client"
    bob = bench.connect_client()
    ask_for(bob, "d")
    ask_for(bob, "e")
    assert bob.answer(to_client.Records).records == [None], "max_num_requests"
    assert fetches(bench).parked == 4


def test_a_service_that_stops_says_so_to_who_waits(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, CONFIG, clock) as bench:
        level, ann = FakeSecondLevel(bench), bench.connect_client()
        ask_for(ann, "a")
        level.fetch()
        bench.frontend.close()
        message, _ = ann.channel.receive(DEADLINE_S)
        assert isinstance(message, to_client.Failed)
        assert error_of(message).code == "request_aborted"


# ---- figures


@pytest.mark.parametrize("outcome", ["hit", "miss"])
@pytest.mark.parametrize("ask", ["get", "claim", "claim_many"])
def test_each_key_is_counted_once(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, ask: str, outcome: str
) -> None:
    if ask == "get":
        ask_for(ann, "a")
    elif ask == "claim":
        ann.ask("a")
    else:
        claim_many(ann, "a")
    fetch = level.fetch()
    level.put(fetch, record_of(1)) if outcome == "hit" else level.end(fetch, "miss")
    bench.pump(lambda: ann.channel.wait(0))
    stats = store_stats(bench)
    assert (stats.queries, stats.hits) == (1, int(outcome == "hit"))


# ---- saves


def test_what_is_put_here_is_saved_and_what_was_fetched_is_not(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ask_for(ann, "fetched")
    level.put(level.fetch(), record_of(1))
    ann.answer(to_client.Records)
    ann.put("a", record_of(2), tenant="t")
    (save,) = level.saves(clock)
    assert (save.tenant, save.key) == ("t", "a")
    assert save.place == bench.frontend.store.records.find("t", "a")


def test_a_record_that_was_there_is_not_saved_again_and_rows_of_one_client_never(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.put("a", record_of(1))
    level.saves(clock)
    ann.put("a", record_of(1))
    ann.put(f"rows/{'0' * 32}/0/0-7", record_of(1))
    ann.put("rows/of mine", record_of(1))
    assert [save.key for save in level.saves(clock)] == ["rows/of mine"]


def test_a_record_that_is_dropped_is_not_saved(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.put("a", record_of(1))
    level.saves(clock)
    ann.put("b", record_of(1))
    ann.put("c", record_of(1))
    ann.channel.send(to_frontend.DropRecord(9, "b", is_local=True))
    ann.answer(to_client.Stored)
    assert [save.key for save in level.saves(clock)] == ["c"]


def test_without_the_process_the_latest_wait_to_be_saved(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_queue, "MAX_WAITING_SAVES", 3)
    ann = bench.connect_client()
    for index in range(5):
        ann.put(f"{index}", record_of(1))
    saves = bench.frontend.store.second_level.saves
    assert (len(saves), saves.num_dropped) == (3, 2)
    clock.now += 20.0
    ann.put("late", record_of(1))
    clock.now += 20.0
    level = FakeSecondLevel(bench)
    assert [save.key for save in level.saves(clock)] == ["late"]
    assert (saves.num_dropped, fetches(bench).saves_dropped) == (5, 5)


# ---- flushes


def flush(bench: Bench, *, new_epoch: bool = False) -> None:
    bench.client.send(to_frontend.Flush(1, new_epoch))


@pytest.mark.parametrize("new_epoch", [False, True])
def test_a_flush_is_answered_when_the_second_level_has_confirmed_it(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, new_epoch: bool, clock: Clock
) -> None:
    ann.put("saved", record_of(1))
    level.saves(clock)
    ann.put("not yet saved", record_of(1))
    ask_for(ann, "a")
    orders = level.orders()
    flush(bench, new_epoch=new_epoch)
    assert ann.answer(to_client.Records).records == [None], "what was being fetched is of no use"
    token = level.orders().flush
    assert token
    if new_epoch:
        assert not level.put(orders.fetches[0], record_of(1)).is_stored
    assert ann.get("a").records == [None], "nothing is fetched until it is confirmed"
    assert not bench.client.wait(0)
    level.flushed(token - 1)
    assert not bench.client.wait(0)
    level.client.channel.send(of_level.SecondLevelFlushed(level.client.client_id, token))
    bench.answer(to_client.Flushed)
    ask_for(ann, "a")
    orders = level.orders()
    assert ([fetch.key for fetch in orders.fetches], orders.saves, orders.flush) == (["a"], [], 0)


def test_what_was_fetched_before_a_flush_is_not_kept(bench: Bench, level: FakeSecondLevel, ann: FakeClient) -> None:
    ask_for(ann, "a")
    fetch = level.fetch()
    flush(bench)
    token = level.orders().flush
    assert not level.put(fetch, record_of(1)).is_stored
    level.client.channel.send(of_level.SecondLevelFlushed(level.client.client_id, token))
    bench.answer(to_client.Flushed)


def test_a_flush_that_the_second_level_refuses_says_so_and_is_ordered_until_it_is_done(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.put("a", record_of(1))
    level.saves(clock)
    flush(bench)
    token = level.orders().flush
    level.client.channel.send(of_level.SecondLevelFlushed(level.client.client_id, token, "no answer"))
    error = error_of(bench.answer(to_client.Failed))
    assert isinstance(error, SecondLevelNotFlushed)
    assert error.details["error"] == "no answer"
    assert ann.get("a").records == [None], "the first level has forgotten, and the second is not asked"
    clock.now += FLUSH_AGAIN_S
    assert level.orders().flush == token
    level.flushed(token)
    ask_for(ann, "a")
    assert level.fetch().key == "a"


def test_a_flush_of_which_no_word_has_come_is_ordered_again(bench: Bench, level: FakeSecondLevel, clock: Clock) -> None:
    flush(bench)
    token = level.orders().flush
    clock.now += FLUSH_AGAIN_S
    assert level.orders().flush == token
    level.client.channel.send(of_level.SecondLevelFlushed(level.client.client_id, token))
    bench.answer(to_client.Flushed)


def test_a_flush_without_the_process_or_without_its_answer_says_so(
    bench: Bench, ann: FakeClient, level: FakeSecondLevel, clock: Clock
) -> None:
    flush(bench)
    level.orders()
    clock.now += FLUSH_TIMEOUT_S
    assert isinstance(error_of(bench.answer(to_client.Failed)), SecondLevelNotFlushed)
    level.die()
    flush(bench)
    bench.stats(after=object)
    assert not bench.client.wait(0), "the next process may come in time"
    clock.now += FLUSH_TIMEOUT_S
    assert "its process has not been there" in str(error_of(bench.answer(to_client.Failed)))
    following = FakeSecondLevel(bench)
    assert following.orders().flush, "the next one is told"


def test_a_flush_waits_for_the_next_process(bench: Bench, level: FakeSecondLevel) -> None:
    level.die()
    flush(bench)
    following = FakeSecondLevel(bench)
    token = following.orders().flush
    following.client.channel.send(of_level.SecondLevelFlushed(following.client.client_id, token))
    bench.answer(to_client.Flushed)


def test_another_hosts_flush_ends_all_use_of_the_second_level_until_an_own_one(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    ann.put("own", record_of(1))
    level.saves(clock)
    ask_for(ann, "fetched", "wanted")
    fetched, wanted = level.orders().fetches
    level.put(fetched, record_of(2))
    ann.put("unsaved", record_of(3))
    level.another_host_flushed()
    ann.answer(to_client.Records)
    assert [place is not None for place in ann.get("own", "fetched", "wanted").records] == [True, False, False]
    ann.put("later", record_of(4))
    clock.now += SAVES_WAIT_S
    flush(bench)
    orders = level.orders()
    assert (orders.saves, orders.fetches, orders.flush > 0) == ([], [], True)
    level.flushed(orders.flush)
    bench.answer(to_client.Flushed)
    ask_for(ann, "wanted")
    assert level.fetch().number != wanted.number


def test_after_a_frontend_any_record_may_have_been_fetched(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, CONFIG, clock) as bench:
        bench.connect_client().put("a", record_of(1))
    with Bench(run_dir, CONFIG, clock) as bench:
        ann, level = bench.connect_client(), FakeSecondLevel(bench)
        level.another_host_flushed()
        assert ann.get("a").records == [None]


# ---- claims among all hosts


def claimed(level: FakeSecondLevel, client: FakeClient, key: str = "a") -> int:
    """Have a client told to compute a record that no host has; return its token."""
    client.ask(key)
    level.end(level.fetch(), "miss")
    return client.answer(to_client.Claimed).claim


def claims_said(level: FakeSecondLevel) -> list[tuple[str, bool]]:
    while not (claims := level.orders().claims):
        pass
    return [(each.name, each.is_held) for each in claims]


NAME = store_key("", "a")


def test_a_claim_is_held_as_long_as_its_client_computes_and_is_over_when_it_gives_up(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    token = claimed(level, ann)
    for _ in range(5):
        clock.now += CLAIM_WAIT_S / 2
        assert claims_said(level) == [(NAME, True)]
    ann.channel.send(to_frontend.DropClaim(ann.client_id, token))
    assert claims_said(level) == [(NAME, False)]
    clock.now += CLAIM_WAIT_S
    assert not is_answered(bench, level.client), "and nothing is said of it any more"


@pytest.mark.parametrize("is_computing", [True, False])
def test_a_claim_that_was_made_after_its_fetch_had_ended_is_held_or_over(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock, is_computing: bool
) -> None:
    ann.ask("a")
    fetch = level.fetch()
    clock.now += TIMEOUT_S
    token = ann.answer(to_client.Claimed).claim
    if not is_computing:
        ann.channel.send(to_frontend.DropClaim(ann.client_id, token))
    level.end(fetch, "miss")
    clock.now += CLAIM_WAIT_S / 2
    assert claims_said(level) == [(NAME, is_computing)]


def test_a_claim_that_passes_to_another_client_of_this_host_is_not_over(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    token, bob = claimed(level, ann), bench.connect_client()
    bob.ask("a")
    bob.hello()  # answered behind the question, which waits from then on
    ann.channel.send(to_frontend.DropClaim(ann.client_id, token))
    bob.answer(to_client.Claimed)
    clock.now += CLAIM_WAIT_S / 2
    assert claims_said(level) == [(NAME, True)]
    bob.close()
    clock.now += CHECK_INTERVAL_S
    assert claims_said(level) == [(NAME, False)]


def test_a_claim_is_over_when_its_record_is_kept_and_will_not_be_saved(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    claimed(level, ann)
    ann.put("a", record_of(1))
    flush(bench)
    orders = level.orders()
    while not orders.claims:
        orders = level.orders()
    assert [(each.name, each.is_held) for each in orders.claims] == [(NAME, False)]


def test_the_save_of_a_record_ends_its_claim(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient, clock: Clock
) -> None:
    claimed(level, ann)
    ann.put("a", record_of(1))
    clock.now += CLAIM_WAIT_S
    orders = level.orders()
    assert ([save.key for save in orders.saves], orders.claims) == (["a"], [])
    clock.now += CLAIM_WAIT_S
    assert not is_answered(bench, level.client)


def test_a_record_that_is_too_large_for_the_second_level_ends_its_claim(run_dir: Path, clock: Clock) -> None:
    limits = msgspec.structs.replace(CONFIG.limits, max_l2_record_mb=0)
    with Bench(run_dir, msgspec.structs.replace(CONFIG, limits=limits), clock) as bench:
        level, ann = FakeSecondLevel(bench), bench.connect_client()
        claimed(level, ann)
        ann.put("a", record_of(1))
        assert claims_said(level) == [(NAME, False)]


def test_a_new_encoder_ends_fetches_and_leaves_the_second_level_to_other_hosts(
    bench: Bench, level: FakeSecondLevel, ann: FakeClient
) -> None:
    ask_for(ann, "a")
    fetch = level.fetch()
    bench.frontend.store.flush(is_new_epoch=True)
    assert ann.answer(to_client.Records).records == [None]
    assert not level.put(fetch, record_of(1)).is_stored
    ask_for(ann, "a")
    orders = level.orders()
    assert (len(orders.fetches), orders.flush) == (1, 0)


def test_a_service_without_a_second_level_has_nobody_take_orders(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, msgspec.structs.replace(CONFIG, store_l2=""), clock) as bench:
        client = bench.connect_client()
        assert not client.hello().has_second_level
        client.channel.send(of_level.TakeOrders(client.client_id, 1, 1.0))
        assert error_of(client.answer(to_client.Failed)).code == "remote_protocol_error"
        client.put("a", record_of(1))
        assert len(bench.frontend.store.second_level.saves) == 0
