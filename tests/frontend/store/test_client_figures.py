"""Hits, misses and puts by the names of clients: of readers that come, go and die, and of a restarted frontend."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mmcached.frontend.server import CHECK_INTERVAL_S
from mmcached.frontend.store import client_figures
from mmcached.frontend.store.client_figures import ClientFigures
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import Inline
from mmcached.wire.stats import ClientStats
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient

CONFIG = ServiceConfig(
    mm_processor_cache_gb=0,
    store_gb=(1 << 20) / GIB,
    store_num_slots=64,
    store_max_clients=2,
)
Figures = dict[str, tuple[int, int, int]]


@pytest.fixture(autouse=True)
def two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_figures, "MAX_NAMES", 2)


def figures(bench: Bench, clock: Clock) -> Figures:
    """Let the frontend look at its readers; return hits, misses and puts by name, which are all that it has counted."""
    clock.now += CHECK_INTERVAL_S
    bench.frontend.poll(0)
    stats = bench.frontend.stats()
    found = {name: (each.hits, each.misses, each.puts) for name, each in stats.by_client.items()}
    hits, misses, puts = (sum(column) for column in zip(*found.values(), strict=True))
    assert (hits, hits + misses, puts) == (stats.store.hits, stats.store.queries, stats.store.puts)
    return found


def look(client: FakeClient, num_misses: int) -> None:
    """Let a client count misses in its entry, without a word to anybody."""
    assert client.entry is not None
    client.entry.report_lookups([], num_misses)


def leave(bench: Bench, client: FakeClient, *, is_polite: bool) -> None:
    if is_polite:
        client.channel.send(to_frontend.ClientBye(client.client_id))
        bench.pump(lambda: client.client_id not in bench.frontend.store.clients())
    bench.clients.remove(client)
    client.close()


def test_what_is_asked_and_what_is_found_alone_is_its_names(bench: Bench, clock: Clock) -> None:
    vllm, sglang = bench.connect_client(name="vllm"), bench.connect_client(name="sglang", is_reader=False)
    sglang.hello()
    assert vllm.put("a", {"x": 1}).is_stored
    answer = sglang.get("a", "b")
    sglang.claim("c")
    claims = sglang.claim_many("a", "c", "d").found
    assert [type(each) for each in claims] == [Inline, type(None), int], "what is pending counts when it is decided"
    assert vllm.entry is not None
    (found,) = vllm.get("a").records
    assert isinstance(found, Handle)
    vllm.entry.report_lookups([found], 2)
    vllm.entry.give_back(found)
    assert answer.records[1] is None
    assert figures(bench, clock) == {"vllm": (2, 2, 1), "sglang": (2, 3, 0)}
    assert figures(bench, clock) == {"vllm": (2, 2, 1), "sglang": (2, 3, 0)}


@pytest.mark.parametrize("is_polite", [True, False])
@pytest.mark.parametrize("is_seen", [True, False])
def test_what_the_dead_have_counted_stays_their_names_and_counts_once(
    bench: Bench, clock: Clock, is_polite: bool, is_seen: bool
) -> None:
    """Also if another kind of client takes the entry before anybody has looked into it."""
    first = bench.connect_client(name="vllm")
    look(first, 1)
    assert figures(bench, clock) == {"vllm": (0, 1, 0)}
    look(first, 2)
    leave(bench, first, is_polite=is_polite)
    if is_seen:
        assert figures(bench, clock) == {"vllm": (0, 3, 0)}
    second = bench.connect_client(name="sglang")
    assert second.entry is not None
    assert second.entry.reader_id == 0
    look(second, 10)
    assert figures(bench, clock) == {"vllm": (0, 3, 0), "sglang": (0, 10, 0)}


def test_a_name_too_many_counts_as_other(bench: Bench, clock: Clock) -> None:
    for name in ("a", "b", "c", "other", "d", "a"):
        client = bench.connect_client(name=name, is_reader=False)
        client.hello()
        client.get("missing")
        leave(bench, client, is_polite=True)
    assert figures(bench, clock) == {"a": (0, 2, 0), "b": (0, 1, 0), "other": (0, 3, 0)}


def test_what_is_counted_before_a_restarted_frontend_is_greeted_is_its_names(run_dir: Path, clock: Clock) -> None:
    with Bench(run_dir, msgspec.structs.replace(CONFIG, keep_cache=True), clock) as before:
        clients = [before.connect_client(name=name) for name in ("vllm", "sglang")]
        before.clients.clear()
    with Bench(run_dir, CONFIG, clock) as bench:
        bench.clients += clients
        for client in clients:
            look(client, 1)
        clock.now += CHECK_INTERVAL_S
        bench.frontend.poll(0)
        assert bench.frontend.stats().by_client == {}, "nobody knows yet"
        vllm, sglang = clients
        vllm.move(bench)
        assert vllm.register()
        assert bench.frontend.stats().by_client.keys() == {"vllm"}
        leave(bench, sglang, is_polite=False)
        assert figures(bench, clock) == {"vllm": (0, 1, 0), "other": (0, 1, 0)}


def test_nothing_is_kept_of_clients_that_are_gone() -> None:
    names = ClientFigures()
    for incarnation in range(1, 100):
        names.greet("ann", "vllm")
        names.attach("ann", incarnation)
        names.found(incarnation, 1, 0)
        names.leave("ann")
        names.found(-incarnation, 0, 1)
        for each in (incarnation, -incarnation):
            names.ended(each)
    assert not names.clients()
    assert names.stats() == {"vllm": ClientStats(hits=99), "other": ClientStats(misses=99)}
