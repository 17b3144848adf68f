"""What both clients promise of the store's verbs, against a real desk and a real ring in a thread."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.client import AsyncClient, Client, contact
from mmcached.client.store.reader_session import MEASURED_ONE_IN
from mmcached.client.store.session import StoreSession
from mmcached.frontend.store.record_store import PutRefusal
from mmcached.shm import ReaderEntry, RingWriter, sweep
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.self_lease import SelfLease
from mmcached.wire.errors import (
    ClientClosed,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    LocalProtocolError,
    PeerGone,
    SegmentError,
    ServiceUnavailable,
)
from mmcached.wire.messages.frontend import (
    Cancel,
    ClaimRecord,
    DropClaim,
    DropRecord,
    Flush,
    GetRecords,
    HaveRecords,
    PutRecord,
    RegisterReader,
)
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.fork_child import in_child
from tests.client.records import every_dtype, is_equal, numbers
from tests.client.services import StoreService
from tests.clock import boot_clock
from tests.frontend.integrity import check_store
from tests.integration.processes import DEADLINE_S, eventually
from tests.present import present

ME = "0" * 32
Open = Callable[..., Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a service that was not there sooner than users do; nothing here depends on when."""
    monkeypatch.setattr(contact, "RETRY_INTERVAL_S", 0.05)


def no_leases(service: StoreService) -> None:
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


# ---- records


@pytest.mark.parametrize("view", [False, True])
def test_every_dtype_comes_back_bit_for_bit(service: StoreService, client: Any, view: bool) -> None:
    assert client.get("k") is None
    assert client.put("k", every_dtype())
    with client.get("k", view=view) as hit:
        assert is_equal(hit.record, every_dtype())
    del hit
    no_leases(service)


@pytest.mark.parametrize("value", [np.arange(6, dtype=np.int16).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16)])
def test_a_bare_tensor_is_a_record(client: Any, value: Any) -> None:
    assert client.put("k", value)
    library = "numpy" if isinstance(value, np.ndarray) else "torch"
    for view in (False, True):
        assert is_equal(client.get("k", tensors=library, view=view).tensor(), value)
    found = [client.get_or_compute(key, lambda: value, tensors=library) for key in ("k", "new", "new")]
    assert [is_equal(each, value) for each in found] == [True] * 3
    assert is_equal(client.get("new", tensors=library).record, {"__tensor__": value})


def test_no_other_record_has_the_name_of_a_bare_one(service: StoreService, client: Any) -> None:
    for record in ({"__tensor__": np.ones(2)}, {"__tensor__": 1, "x": 2}):
        with pytest.raises(InvalidRequest, match=r"\$\.__tensor__.*reserved: put the tensor itself"):
            client.put("k", record)
        with pytest.raises(InvalidRequest, match="reserved"):
            client.get_or_compute("k", lambda record=record: record)
    for wrong in ([np.ones(2)], 5, None, "text", np.float32(1)):
        with pytest.raises(InvalidRequest, match="a record is a dict, or one tensor or array"):
            client.put("k", wrong)
    assert service.count(PutRecord) == 0
    assert client.put("k", {"x": {"__tensor__": 1}})
    assert client.get_or_compute("k", dict) == {"x": {"__tensor__": 1}}


def test_a_hit_says_whether_it_is_a_view(client: Any) -> None:
    client.put("k", numbers(1))
    assert repr(client.get("k", view=True)) == "Hit(x: uint8 (4096,); 4096 bytes, view)"
    assert repr(client.get("k")) == "Hit(x: uint8 (4096,); 4096 bytes, owned)"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_shows_its_service_and_its_state(service: StoreService, run_dir: Path, kind: Any) -> None:
    async def states() -> list[str]:
        opened = kind(run_dir, name="mine")
        shown = [repr(opened)]
        if kind is AsyncClient:
            async with opened:
                shown.append(repr(opened))
        opened.close() if kind is Client else None
        return [*shown, repr(opened)]

    before = ["in contact"] if kind is Client else ["closed", "in contact"]
    head = f"{kind.__name__}({str(run_dir)!r}, name='mine'"
    assert asyncio.run(states()) == [f"{head}: {state})" for state in [*before, "closed"]]


def test_a_client_without_a_service_shows_that(run_dir: Path) -> None:
    RunDir(run_dir).create()
    with Client(run_dir, connect_timeout_s=0.1) as lonely:
        assert repr(lonely) == f"Client({str(run_dir)!r}, name='client': not in contact)"


def test_the_first_writer_wins(client: Any) -> None:
    assert client.put("k", numbers(1))
    assert client.put("k", numbers(2)), "the key has a record"
    assert is_equal(client.get("k", tensors="numpy").record, numbers(1))


def test_many_keys_take_no_message_and_keep_their_order(service: StoreService, client: Any) -> None:
    for seed in (1, 2, 3):
        client.put(f"k{seed}", numbers(seed))
    hits = client.get_many(["k3", "none", "k1", "k3"], tensors="numpy")
    assert [hit and hit.record["seed"] for hit in hits] == [3, None, 1, 3]
    assert client.get_many([]) == []
    many = [f"k{number % 700}" for number in range(900)]
    assert [hit is not None for hit in client.get_many(many, tensors="numpy")] == client.contains_many(many)
    assert service.count(GetRecords) == service.count(HaveRecords) == 0
    no_leases(service)


def test_a_look_that_is_repeated_is_in_no_figure(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))

    def figures() -> tuple[int, int]:
        found: list[tuple[int, int]] = []

        def look() -> None:
            service.desk.records.poll_hits()
            found.append((service.desk.stats().queries, service.desk.stats().hits))

        service.call(look)
        return found[0]

    for _ in range(5):
        hits = client.get_many(["k", "none"], view=True, local=True, counts=False)
        assert [hit is not None for hit in hits] == [True, False]
    assert figures() == (0, 0)
    assert client.store_counters().queries == 0
    client.get_many(["k", "none"], view=True, local=True)
    assert figures() == (2, 1)


def test_one_look_up_of_many_is_measured_if_it_finds_something(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    client.get("k")  # after which it needs no message
    for _ in range(2 * MEASURED_ONE_IN):
        assert client.get("none") is None
    for _ in range(3 * MEASURED_ONE_IN):
        assert client.get_many(["k", "none", "k"])[0] is not None
    num_measured = 0

    def look() -> None:
        nonlocal num_measured
        service.desk.records.poll_hits()
        num_measured = service.desk.stats().hit_latency.num

    service.call(look)
    assert num_measured in (3, 4), "the first may have been"


@pytest.mark.usefixtures("reader_in_python")
def test_of_many_the_one_that_goes_while_leases_are_taken_is_a_miss(
    service: StoreService, client: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2, 3):
        client.put(f"k{seed}", numbers(seed))
    take = ReaderEntry.take_leases

    def take_late(entry: ReaderEntry, leases: Sequence[SelfLease], look: Lookup) -> list[bool]:
        other.drop("k2")
        return take(entry, leases, look)

    with Client(run_dir) as other:
        monkeypatch.setattr(ReaderEntry, "take_leases", take_late)
        hits = client.get_many(["k3", "k2", "k1", "k2", "none", "k3"], tensors="numpy", view=True)
    assert [hit and hit.record["seed"] for hit in hits] == [3, None, 1, None, None, 3]
    assert service.leases == 3
    hits.clear()
    no_leases(service)


def test_a_put_that_overwrites_replaces_the_record(service: StoreService, client: Any) -> None:
    assert client.put("k", numbers(1), overwrite=True).outcome == "kept"
    with client.get("k", view=True, tensors="numpy") as held:
        view = held.record
        assert client.put("k", numbers(2)).outcome == "exists"
        result = client.put("k", numbers(3), overwrite=True)
        assert (bool(result), result.outcome, result.reason) == (True, "kept", "")
        assert client.get("k").record["seed"] == 3
        assert client.keys() == ["k"]
        refused = client.put("k", {"x": np.zeros(9 << 20, np.uint8)}, overwrite=True)
        assert (bool(refused), refused.outcome) == (False, "refused")
        assert "it is larger than one record may be" in refused.reason
        assert client.get("k").record["seed"] == 3
        assert is_equal(view, numbers(1))
        again = client.open(held.token, tensors="numpy")
        assert again is not None, "the first hit lives"
        assert is_equal(again.record, numbers(1))
    del held, view, again
    no_leases(service)
    assert client.put("k", np.arange(5), overwrite=True)
    assert client.get("k", tensors="numpy").tensor().tolist() == [0, 1, 2, 3, 4]
    num_puts = service.count(PutRecord)
    for wrong in (1, None, "yes"):
        with pytest.raises(InvalidRequest, match="overwrite"):
            client.put("k", numbers(4), overwrite=wrong)
    assert service.count(PutRecord) == num_puts


@pytest.mark.usefixtures("reader_in_python")
def test_a_record_expires_for_every_call(service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    assert client.put("k", numbers(1), ttl_s=60)
    assert client.put("stays", numbers(2))
    assert client.get_or_compute("computed", lambda: numbers(3), ttl_s=60)["seed"] == 3
    clock.now += 59
    assert client.get_or_compute("computed", dict, ttl_s=600)["seed"] == 3
    hit = client.get("k", view=True, tensors="numpy")
    view, token = hit.record, hit.token
    assert client.keys() == ["computed", "stays", "k"]
    clock.now += 1
    assert client.get("k") is None
    assert [hit and hit["seed"] for hit in client.get_many(["k", "stays", "computed"])] == [None, 2, None]
    assert client.contains_many(["k", "stays"]) == [False, True]
    assert (client.exists("k"), client.keys(), client.delete("k")) == (False, ["stays"], 0)
    assert is_equal(view, numbers(1))
    assert is_equal(client.open(token, tensors="numpy").record, numbers(1)), "the first hit lives"
    assert client.put("k", numbers(4)).outcome == "kept"
    assert client.get("k")["seed"] == 4
    assert is_equal(view, numbers(1))
    assert client.get_or_compute("computed", lambda: numbers(5))["seed"] == 5
    del view, hit
    no_leases(service)
    eventually(lambda: service.desk.stats().expired, lambda number: number == 2, "what has expired")


@pytest.mark.usefixtures("reader_in_python")
def test_what_expires_does_so_without_a_service(run_dir: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    with ExitStack() as stack:
        stack.callback(sweep)
        with StoreService(run_dir) as service:
            client = stack.enter_context(make(run_dir))
            client.put("k", numbers(1), ttl_s=1)
            assert client.get("k")["seed"] == 1
            assert isinstance(service.desk.records.ring, RingWriter)
            service.desk.records.ring.outlives_writer = True  # as that of one that dies
        assert client.get("k")["seed"] == 1
        clock.now += 1
        assert client.get("k") is None


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 1e10, "60", True, [60]])
def test_a_time_to_live_that_cannot_be_is_refused(service: StoreService, client: Any, ttl_s: Any) -> None:
    for call, values in (
        (client.put, ("k", numbers(1))),
        (client.get_or_compute, ("k", dict)),
        (partial(client.cached, key="k"), ()),
    ):
        with pytest.raises(InvalidRequest, match="above 0 and at most 1000000000") as caught:
            call(*values, ttl_s=ttl_s)
        assert caught.value.details["field"] == "ttl_s"
    assert (service.count(PutRecord), service.count(ClaimRecord)) == (0, 0)


def test_a_large_record_is_replaced_too(client: Any) -> None:
    for seed in (1, 2, 3):
        assert client.put("k", {"seed": seed, "x": np.full(1 << 20, seed, np.uint8)}, overwrite=True)
        assert client.get("k", tensors="numpy").record["x"][-1] == seed


@pytest.mark.usefixtures("reader_in_python")
@pytest.mark.parametrize("asks", ["looks up", "claims many", "claims"])
def test_a_record_that_is_replaced_while_it_is_found_is_a_hit(
    service: StoreService, client: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    client.put("k", numbers(1))
    take, seeds = ReaderEntry.take_leases, iter([2, 3])

    def take_late(entry: ReaderEntry, leases: Sequence[SelfLease], look: Lookup) -> list[bool]:
        if (seed := next(seeds, None)) is not None:
            other.put("k", numbers(seed), overwrite=True)
        return take(entry, leases, look)

    def find_nothing(session: StoreSession, keys: Sequence[str], *values: Any, **named: Any) -> list[None]:
        return [None] * len(keys)

    with Client(run_dir) as other, monkeypatch.context() as patch:
        patch.setattr(ReaderEntry, "take_leases", take_late)
        if asks == "looks up":
            found = client.get_many(["none", "k"])[1].record
        else:  # the service says where it lies
            patch.setattr(StoreSession, "find", find_nothing)
            if asks == "claims many":
                found = client.claim_many(["k"])[0].record
            else:
                found = client.get_or_compute("k", lambda: pytest.fail("it is there"))
    assert found["seed"] == 3
    del found
    no_leases(service)


def test_whoever_reads_while_a_record_is_replaced_finds_one_or_the_other(client: Any, run_dir: Path) -> None:
    client.put("k", numbers(0))
    seen, is_over = [0], threading.Event()

    def read() -> None:
        with Client(run_dir, fail_open=False) as reader:
            while not is_over.is_set():
                hit = reader.get("k", tensors="numpy")
                assert hit is not None, f"missing after {seen[-1]}"
                assert is_equal(hit.record, numbers(hit["seed"]))
                assert hit["seed"] >= seen[-1]
                seen.append(hit["seed"])

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        eventually(lambda: len(seen), lambda count: count > 1, "a read")
        for seed in range(1, 101):
            assert client.put("k", numbers(seed), overwrite=True)
        eventually(lambda: seen[-1], lambda seed: seed == 100, "the last")
        is_over.set()
        reading.result(DEADLINE_S)


def test_what_is_put_over_a_key_that_is_computed_is_not_replaced_by_that(client: Any, run_dir: Path) -> None:
    with Client(run_dir) as other:

        def compute() -> Any:
            assert other.put("k", numbers(2), overwrite=True)
            return numbers(1)

        assert client.get_or_compute("k", compute)["seed"] == 1
        assert [hit and hit["seed"] for hit in (client.get("k"), other.get("k"))] == [2, 2]


def test_tenants_do_not_see_each_other(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir, tenant="a") as a, make(run_dir, tenant="b") as b:
        a.put("k", numbers(1))
        assert b.get("k") is None
        assert (a.contains_many(["k"]), b.contains_many(["k"])) == ([True], [False])


def test_contains_asks_nobody_once_an_entry_is_taken(service: StoreService, client: Any) -> None:
    client.put("here", numbers(1))
    before = len(service.received)
    assert client.contains_many(["here", "gone", "here"]) == [True, False, True]
    assert client.drop("here")
    assert client.contains_many(["here"]) == [False]
    assert len(service.received) == before + 1, "only the drop"


def test_owned_tensors_are_writable_and_hold_no_lease(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    hit = client.get("k")
    assert service.leases == 0
    hit.record["x"].fill_(7)
    assert is_equal(client.get("k", tensors="numpy").record, numbers(1))


def test_view_holds_its_lease_until_the_last_tensor_of_it_dies(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    with client.get("k", view=True) as hit:
        piece = hit.record["x"][10:20].view(torch.int8)
        assert service.leases == 1
    with pytest.raises(LocalProtocolError, match="closed"):
        _ = hit.record
    assert service.leases == 1, "a slice is still read"
    assert bytes(piece.view(torch.uint8).numpy()) == numbers(1)["x"][10:20].tobytes()
    del piece
    no_leases(service)


def test_view_of_which_nothing_is_kept_gives_back_at_the_end_of_with(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    with client.get("k", view=True, tensors="numpy") as hit:
        assert not hit.record["x"].flags.writeable
    assert service.leases == 0


def test_view_outlives_its_client(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir) as client:
        client.put("k", numbers(1))
        array = client.get("k", view=True, tensors="numpy").record["x"]
    assert service.leases == 1
    assert is_equal(array, numbers(1)["x"])
    del array
    no_leases(service)


def test_views_that_die_in_many_threads_give_back_each_once(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    hits = [client.get("k", view=True, tensors="numpy") for _ in range(200)]
    assert service.leases == 200

    def let_go() -> None:
        while hits:
            hits.pop()

    threads = [threading.Thread(target=let_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    no_leases(service)
    service.call(lambda: check_store(service.desk))


def test_view_in_a_reference_cycle_gives_back_when_it_is_collected(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    cycle: dict[str, Any] = {"hit": client.get("k", view=True)}
    cycle["self"] = cycle
    del cycle
    gc.collect()
    no_leases(service)


def test_a_dtype_that_numpy_lacks_is_bad_input_and_costs_no_lease(service: StoreService, client: Any) -> None:
    client.put("k", {"x": torch.zeros(3, dtype=torch.bfloat16)})
    client.put("other", numbers(1))
    with pytest.raises(InvalidRequest, match="bfloat16"):
        client.get_many(["other", "k", "other"], tensors="numpy", view=True)
    no_leases(service)


def test_a_put_says_what_became_of_the_record(client: Any) -> None:
    kept = client.put("k", numbers(1))
    assert (kept.outcome, kept.key, kept.reason, bool(kept)) == ("kept", "k", "", True)
    assert kept.nbytes > 4096
    there = client.put("k", numbers(2, 100))
    assert (there.outcome, there.reason, bool(there)) == ("exists", "", True)
    assert there.nbytes < kept.nbytes
    client.invalidate()
    stale = client.put("k", numbers(1), store_epoch=1)
    assert (stale.outcome, bool(stale)) == ("refused", False)
    assert "it was computed before the last new epoch" in stale.reason


def test_large_record_does_not_fit_and_that_is_said(
    service: StoreService, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("k", "l", "m"):
        result = client.put(key, {"x": np.zeros(9 << 20, np.uint8)})
        assert not result
        limit = service.desk.records.ring.max_object_bytes  # type: ignore[union-attr]
        assert result.reason.startswith(f"'{key}', {result.nbytes} bytes: ")
        assert f"at most {limit} bytes (store_max_object_mb)" in result.reason
    assert client.get("k") is None
    counters = client.store_counters()
    assert counters.failures == 0
    assert list(counters.causes.values()) == [3], "one cause, whatever the key and the size"
    (cause,) = counters.causes
    assert [record.message for record in caplog.records if cause in record.message] == [
        f"a record was not kept: {result.reason.replace('m', 'k', 1)} (1 times so far; see store_counters())"
    ]


def test_a_refusal_names_the_tenants_quota_or_the_room(run_dir: Path, make: Make) -> None:
    with StoreService(run_dir, store_tenant_quota_gb=1 / 1024) as service, make(run_dir) as client:
        large = client.put("k", {"x": np.zeros(2 << 20, np.uint8)})
        assert f"{1 << 20} bytes (store_tenant_quota_gb)" in large.reason
        data_bytes = service.desk.announcement.data_bytes  # type: ignore[union-attr]
        text = service.desk.records.text_of(PutRefusal.FULL)
        assert text == f"there is no room now: too much of the {data_bytes} bytes is leased or pinned (store_gb)"


def test_a_put_without_a_service_or_a_store_says_so(run_dir: Path, make: Make) -> None:
    RunDir(run_dir).create()
    with make(run_dir, connect_timeout_s=0.1, timeout_s=0.2) as client:
        away = client.put("k", numbers(1))
        assert (away.outcome, bool(away)) == ("refused", False)
        assert "bytes: service_unavailable: " in away.reason
    with StoreService(run_dir, store_gb=0) as service, make(run_dir) as client:
        assert "(store_gb = 0" in client.put("k", numbers(1)).reason
        assert service.desk.records.text_of(PutRefusal.TOO_LARGE) == PutRefusal.NO_STORE


def test_counters(client: Any) -> None:
    client.get("k")
    client.get_or_compute("k", lambda: numbers(1))
    client.get_many(["k", "l"])
    counters = client.store_counters()
    assert (counters.queries, counters.hits, counters.computed) == (4, 1, 1)
    assert (counters.puts, counters.stored, counters.failures) == (1, 1, 0)


# ---- without an entry


@pytest.mark.parametrize("view", [False, True])
def test_without_an_entry_records_come_inline(
    make: Make, run_dir: Path, caplog: pytest.LogCaptureFixture, view: bool
) -> None:
    with StoreService(run_dir, store_max_clients=1, world_size=0) as service, ExitStack() as stack:
        announcement = present(service.desk.announcement)
        stack.enter_context(ReaderEntry.attach(announcement))
        client, other = stack.enter_context(make(run_dir)), stack.enter_context(make(run_dir))
        assert client.put("k", every_dtype())
        assert other.contains_many(["k"]) == [True]
        hit = client.get("k", view=view)
        assert is_equal(hit.record, every_dtype())
        if not view:
            hit.record["shapes"][1].fill_(3.0)
        assert client.contains_many(["k", "l"]) == [True, False]
        assert service.count(HaveRecords) == 2
        client.put("large", numbers(1, 1 << 17))
        large = client.get("large", view=view, tensors="numpy").record
        assert is_equal(large, numbers(1, 1 << 17))
        assert large["x"].flags.writeable is not view
        assert client.store_counters().inline_hits == 2
        assert service.leases == 0
    assert [record.message for record in caplog.records if "slower" in record.message] == [
        "records come through the socket, which is slower: "
        "all 1 entries of the ring are in use; raise store_max_clients, or stop a reader"
    ]


def test_a_service_without_a_store_has_nothing_and_still_computes_once(make: Make, run_dir: Path) -> None:
    with StoreService(run_dir, store_gb=0) as service, make(run_dir, fail_open=False) as client:
        assert not client.put("k", numbers(1))
        assert client.get("k") is None
        assert client.contains_many(["k"]) == [False]
        assert service.count(PutRecord) == 0
        assert is_equal(client.get_or_compute("k", lambda: numbers(2)), numbers(2))


# ---- get_or_compute


def test_computed_once_then_found(service: StoreService, client: Any) -> None:
    calls: list[int] = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return numbers(3)

    first = client.get_or_compute("k", compute)
    second = client.get_or_compute("k", compute, tensors="numpy")
    assert is_equal(first, second)
    assert len(calls) == 1
    no_leases(service)


def test_who_computes_for_another_epoch_finds_and_stores_nothing(service: StoreService, client: Any) -> None:
    client.put("of now", numbers(1))
    client.contains_many(["of now"])  # it knows which epoch is now
    now = service.desk.records.epoch
    for key in ("of now", "new"):
        for epoch in (now - 1, now + 1):
            assert is_equal(client.get_or_compute(key, partial(numbers, 2), store_epoch=epoch), numbers(2))
    assert client.contains_many(["of now", "new"]) == [True, False]
    assert is_equal(client.get_or_compute("of now", partial(numbers, 2), store_epoch=now), numbers(1))
    assert is_equal(client.get_or_compute("new", partial(numbers, 3), store_epoch=now), numbers(3))
    assert client.contains_many(["new"]) == [True]
    no_leases(service)


def test_who_waits_gets_the_others_result(service: StoreService, make: Make, run_dir: Path) -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("somebody else computes it")

    found: list[Any] = []

    def wait() -> None:
        with make(run_dir) as second:
            found.append(second.get_or_compute("k", never, tensors="numpy"))

    def compute() -> dict[str, Any]:
        waiter.start()
        eventually(lambda: service.count(ClaimRecord), lambda count: count == 2, "the second claim")
        return numbers(4)

    waiter = threading.Thread(target=wait)
    with make(run_dir) as first:
        first.get_or_compute("k", compute)
        waiter.join(30)
    assert is_equal(found, [numbers(4)])


def test_what_fn_raises_is_raised_and_the_next_computes(service: StoreService, client: Any) -> None:
    def fail() -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.get_or_compute("k", fail)
    with pytest.raises(InvalidRequest, match="a record is a dict"):
        client.get_or_compute("k", lambda: [1])
    assert is_equal(client.get_or_compute("k", partial(numbers, 5)), numbers(5))
    assert service.count(DropClaim) == 2
    assert client.contains_many(["k"]) == [True]


def test_who_waits_too_long_computes_without_storing(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir) as first, make(run_dir) as second:

        def compute() -> dict[str, Any]:
            mine: list[Any] = []
            ask = partial(second.get_or_compute, "k", partial(numbers, 6), timeout_s=0.05)
            thread = threading.Thread(target=lambda: mine.append(ask()))  # no loop runs there
            thread.start()
            thread.join(30)
            assert is_equal(mine, [numbers(6)])
            return numbers(7)

        first.get_or_compute("k", compute)
        assert is_equal(second.get("k", tensors="numpy").record, numbers(7))
        assert second.store_counters().puts == 0


@pytest.mark.parametrize("fail_open", [True, False])
def test_the_deadline_is_for_the_wait_and_not_for_what_is_computed_here(
    service: StoreService, make: Make, run_dir: Path, fail_open: bool
) -> None:
    goes_on, timeout_s = threading.Event(), 0.3

    def compute() -> dict[str, Any]:
        assert goes_on.wait(DEADLINE_S)
        return numbers(1)

    with make(run_dir) as owner, make(run_dir, fail_open=fail_open) as other:
        other.get("another")  # in contact
        thread = threading.Thread(target=lambda: owner.get_or_compute("k", compute, timeout_s=timeout_s))
        thread.start()
        eventually(lambda: service.desk.stats().computing, lambda count: count == 1, "a claim")
        if fail_open:
            assert is_equal(other.get_or_compute("k", lambda: numbers(2), timeout_s=timeout_s), numbers(2))
        else:
            with pytest.raises(DeadlineExceeded):
                other.get_or_compute("k", pytest.fail, timeout_s=timeout_s)
        assert other.get("k", tensors="numpy") is None, "the owner computes still"
        goes_on.set()
        thread.join(DEADLINE_S)
        hit = other.get("k", tensors="numpy")
        assert hit is not None, "the owner's time was not over when it had computed"
        assert is_equal(hit.record, numbers(1))


@pytest.mark.parametrize("fail_open", [True, False])
def test_the_deadline_is_for_the_put_of_what_was_computed_too(
    service: StoreService, make: Make, run_dir: Path, fail_open: bool
) -> None:
    with make(run_dir, fail_open=fail_open) as client:
        client.get("another")
        service.hold = (PutRecord,)
        if fail_open:
            assert is_equal(client.get_or_compute("k", partial(numbers, 1), timeout_s=0.2), numbers(1))
        else:
            with pytest.raises(DeadlineExceeded):
                client.get_or_compute("k", partial(numbers, 1), timeout_s=0.2)
    service.release()


def test_an_awaited_function_is_not_cut_short(service: StoreService, run_dir: Path) -> None:
    async def compute() -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return numbers(1)

    async def ask() -> None:
        async with AsyncClient(run_dir, fail_open=False) as client:
            assert is_equal(await client.get_or_compute("k", compute, timeout_s=0.1), numbers(1))
            present(await client.get("k", tensors="numpy"))

    asyncio.run(ask())


def test_a_client_of_another_user_is_refused_also_where_it_fails_open(service: StoreService, run_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")

    def become_another() -> list[str]:
        os.setresuid(65_534, 65_534, 65_534)
        with pytest.raises(ConfigError, match="another user, not to uid 65534") as caught:
            Client(run_dir, fail_open=True)
        return [caught.value.code, str(caught.value.retryable)]

    assert in_child(become_another) == ["config_error", "False"]
    assert not service.received


def test_a_claim_that_comes_late_is_dropped(service: StoreService, client: Any) -> None:
    client.drop("another")  # connects it: the short wait is for the answer alone
    service.hold = (ClaimRecord,)
    assert is_equal(client.get_or_compute("k", partial(numbers, 1), timeout_s=0.05), numbers(1))
    service.release()
    assert client.put("other", numbers(2)), "a call after which the late answer has come"
    eventually(lambda: service.count(DropClaim), lambda count: count == 1, "the claim given back")


def test_new_epoch_forgets_and_refuses_what_was_computed_before(service: StoreService, client: Any) -> None:
    client.put("old", numbers(1))

    def compute() -> dict[str, Any]:
        service.call(lambda: service.desk.flush(is_new_epoch=True))
        return numbers(2)

    client.get_or_compute("k", compute)
    assert client.contains_many(["old", "k"]) == [False, False]
    assert client.put("k", numbers(3))
    client.invalidate()
    assert service.received[-1] == Flush(service.received[-1].request_id, True)  # type: ignore[union-attr]
    assert client.put("k", numbers(4)), "computed with the new weights, as far as this client can know"
    assert is_equal(client.get("k", tensors="numpy").record, numbers(4))


def test_a_wait_that_is_given_up_is_cancelled(service: StoreService, client: Any, run_dir: Path) -> None:
    """Else the service might choose the one who has gone on to compute the record, and all others wait for nobody."""

    def compute() -> dict[str, Any]:
        service.hold = (ClaimRecord,)  # it would end the wait itself: whoever is served first decides
        thread.start()
        thread.join(30)
        return numbers(1)

    with Client(run_dir) as second:
        second.drop("another")  # connects it: the short wait is for the answer alone
        ask = partial(second.get_or_compute, "k", partial(numbers, 2), timeout_s=0.05)
        thread = threading.Thread(target=ask)
        client.get_or_compute("k", compute)
        gave_up = [message for message in service.received if isinstance(message, ClaimRecord)][1]
        # The two clients have a socket each: what the second said may be read after what the first said later.
        cancel = Cancel(gave_up.client_id, gave_up.request_id)
        eventually(lambda: service.received, lambda received: cancel in received, "the cancellation")


def test_a_result_that_could_not_be_put_gives_the_claim_back(service: StoreService, client: Any) -> None:
    def compute() -> dict[str, Any]:
        service.hold = (PutRecord,)
        return numbers(1)

    assert is_equal(client.get_or_compute("k", compute, timeout_s=0.2), numbers(1))
    eventually(lambda: service.count(DropClaim), lambda count: count == 1, "the claim given back")
    service.hold = ()


# ---- errors


def test_without_a_service_everything_is_a_miss(make: Make, run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    RunDir(run_dir).create()
    with make(run_dir) as client, caplog.at_level(logging.WARNING):
        assert client.get("k") is None
        assert client.get_many(["k", "l"]) == [None, None]
        assert client.contains_many(["k"]) == [False]
        assert not client.put("k", numbers(1))
        assert not client.drop("k")
        assert is_equal(client.get_or_compute("k", partial(numbers, 2)), numbers(2))
        with pytest.raises(ServiceUnavailable):
            client.invalidate(timeout_s=0.05)
        assert client.store_counters().failures == 7
    assert len([record for record in caplog.records if "without the service" in record.message]) == 1


def test_without_a_service_strict_clients_hear_why(make: Make, run_dir: Path) -> None:
    RunDir(run_dir).create()
    with pytest.raises(ServiceUnavailable), make(run_dir, fail_open=False, connect_timeout_s=0.05):
        pass
    with StoreService(run_dir) as service, make(run_dir, fail_open=False) as client:
        client.put("k", numbers(1))
        service.hold = (PutRecord,)
        with pytest.raises(DeadlineExceeded):
            client.put("l", numbers(1), timeout_s=0.05)


def test_a_strict_client_waits_for_a_service_that_comes_later(make: Make, run_dir: Path) -> None:
    def use() -> bool:
        with make(run_dir, fail_open=False) as client:
            return bool(client.put("k", numbers(1)))

    directory = RunDir(run_dir)
    directory.create()
    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(use)
        eventually(lambda: list(directory.client_lock(ME).parent.iterdir()), bool, "the client")
        with StoreService(run_dir):
            assert used.result(DEADLINE_S)


def test_a_missing_run_directory_is_a_service_that_comes_later(make: Make, run_dir: Path) -> None:
    with make(run_dir / "later") as client:
        assert client.get("k") is None
        with StoreService(run_dir / "later"):
            eventually(lambda: client.put("k", numbers(1)), bool, "the service is found")


def test_a_service_that_answers_nothing_does_not_keep_hits_waiting(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    assert client.get("k", tensors="numpy").record["seed"] == 1
    num_received = len(service.received)
    service.hold = (object,)
    for view in (False, True):
        with client.get("k", tensors="numpy", view=view) as hit:
            assert is_equal(hit.record, numbers(1))
    assert client.get("missing") is None
    assert [hit is not None for hit in client.get_many(["missing", "k"])] == [False, True]
    assert client.contains_many(["missing", "k"]) == [False, True]
    assert client.get_or_compute("k", partial(numbers, 2), tensors="numpy")["seed"] == 1
    assert len(service.received) == num_received
    counters = client.store_counters()
    assert (counters.queries, counters.hits, counters.failures) == (7, 5, 0)
    service.call(service.desk.records.poll_hits)
    stats = service.desk.stats()
    assert (stats.queries, stats.hits) == (7, 5)
    no_leases(service)


def test_what_others_need_room_for_is_copied(run_dir: Path, make: Make) -> None:
    """A client may hold a quarter of the store in views; what it looks at beside is its own."""
    with StoreService(run_dir) as service, make(run_dir) as client:
        for seed in range(3):
            assert client.put(f"k{seed}", {"x": np.full(3 << 20, seed, np.uint8)})
        hits = [client.get(f"k{seed}", view=True, tensors="numpy") for seed in range(3)]
        is_view = [not hit.record["x"].flags.owndata for hit in hits]
        assert [hit.record["x"][-1] for hit in hits] == [0, 1, 2]
        assert is_view == [True, False, False]
        assert service.leases == 1
        del hits
        no_leases(service)


def test_closed_client_raises(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir) as client:
        client.close()
        with pytest.raises(ClientClosed):
            client.put("k", numbers(1))
        client.close()


# ---- restarts


def test_after_a_restart_it_works_by_itself_and_old_views_stay(make: Make, run_dir: Path) -> None:
    with make(run_dir) as client:
        with StoreService(run_dir):
            eventually(lambda: client.put("k", numbers(1)), bool, "stored")
            old = client.get("k", view=True, tensors="numpy").record["x"]
        assert client.contains_many(["k"]) == [False], "a dead writer holds nothing"
        assert client.get("k", timeout_s=5.0) is None
        with StoreService(run_dir) as second:
            eventually(lambda: client.put("l", numbers(2)), bool, "stored in the second")
            assert client.contains_many(["k", "l"]) == [False, True]
            with client.get("l", view=True, tensors="numpy") as hit:
                assert is_equal(hit.record, numbers(2))
                assert second.leases == 1, "through shared memory again"
            assert is_equal(old, numbers(1)["x"])
            del hit, old
            no_leases(second)


def test_death_in_the_middle_of_a_call_is_a_miss_or_typed(make: Make, run_dir: Path) -> None:
    """The connection goes while the call is open; the client does not wait for its deadline."""
    with ExitStack() as stack:
        service = stack.enter_context(StoreService(run_dir))
        client = stack.enter_context(make(run_dir))
        strict = stack.enter_context(make(run_dir, fail_open=False))
        assert client.put("k", numbers(1))
        service.hold = (DropRecord, ClaimRecord)
        results: list[Any] = []

        def ask(which: Any, verb: str, *values: Any) -> None:
            try:
                results.append(getattr(which, verb)(*values))
            except PeerGone as error:
                results.append(type(error))

        calls = [(client, "drop", "k"), (strict, "get_or_compute", "l", partial(numbers, 2))]
        threads = [threading.Thread(target=ask, args=call) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: service.num_held, lambda count: count == 2, "both calls are open")
        service.__exit__(None, None, None)
        for thread in threads:
            thread.join(30)
        assert sorted(map(repr, results)) == sorted([repr(False), repr(PeerGone)])


def test_presence_is_renewed_in_a_new_run_directory(make: Make, run_dir: Path) -> None:
    with make(run_dir) as client:
        with StoreService(run_dir):
            eventually(lambda: client.put("k", numbers(1)), bool, "stored")
        for path in sorted(run_dir.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        with StoreService(run_dir):
            eventually(lambda: client.put("k", numbers(1)), bool, "stored again")
            eventually(lambda: list((run_dir / "clients").iterdir()), bool, "a lock file")


def test_another_connection_keeps_the_entry(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    view = client.get("k", view=True)
    (client_id,) = {message.client_id for message in service.received if isinstance(message, RegisterReader)}
    service.call(lambda: service.listener.disconnect(service.peers[client_id]))
    eventually(
        lambda: (client.put("k", numbers(1)), service.count(RegisterReader))[1], lambda count: count >= 2, "again"
    )
    assert len({message.incarnation for message in service.received if isinstance(message, RegisterReader)}) == 1
    hit = client.get("k", view=True)
    assert service.leases == 2
    del hit, view
    no_leases(service)


def test_the_wrong_directory_is_said_and_counted(run_dir: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with make(run_dir / "wrong") as client:
        for _ in range(3):
            assert client.get("k") is None
            assert not client.put("k", numbers(1))
        assert client.store_counters().causes == {"service_unavailable": 7}
    (warning,) = [record.message for record in caplog.records if record.name == "mmcached.client"]
    assert str(run_dir / "wrong") in warning


def test_clients_of_one_process_each_have_an_entry(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir) as first, Client(run_dir) as second:
        first.put("k", numbers(1))
        hits = [first.get("k", view=True), second.get("k", view=True)]
        assert service.leases == 2
        assert service.count(RegisterReader) == 2
        del hits
    no_leases(service)


# ---- names, deletion, and whether anybody is there


def test_deleting_counts_what_was_there(service: StoreService, client: Any) -> None:
    for key in ("a", "b", "c"):
        client.put(key, numbers(1))
    assert [client.exists("a"), client.exists("none")] == [True, False]
    assert client.delete("a", "none", "b", "a") == 2
    assert client.delete() == 0
    assert client.contains_many(["a", "b", "c"]) == [False, False, True]
    assert client.drop("none"), "what is certain is that there is none"
    assert service.count(HaveRecords) == 0
    with pytest.raises(InvalidRequest, match=r"keys\[1\]"):
        client.delete("c", 5)
    with pytest.raises(InvalidRequest, match="key"):
        client.exists(None)
    assert client.exists("c")


def test_keys_are_those_of_a_tenant_that_match_the_newest_first(service: StoreService, client: Any) -> None:
    for key in ("cat/1", "cat/2", "dog", "ca[t]"):
        client.put(key, numbers(1))
    client.put("cat/3", numbers(1), tenant="other")
    client.delete("cat/1")
    client.put("cat/1", numbers(2))
    assert client.keys() == ["cat/1", "ca[t]", "dog", "cat/2"]
    assert client.keys("cat/*") == ["cat/1", "cat/2"]
    assert client.keys("ca[[]t]") == ["ca[t]"]
    assert client.keys("c?t/3", tenant="other") == ["cat/3"]
    for wrong in (5, None, b"*", "x" * 257):
        with pytest.raises(InvalidRequest, match="match"):
            client.keys(wrong)
    client.flush()
    assert client.keys() == []


def test_keys_are_seen_while_the_service_does_not_answer(service: StoreService, client: Any) -> None:
    client.put("k", numbers(1))
    service.hold = (HaveRecords, DropRecord)
    assert client.keys() == ["k"]
    with pytest.raises(DeadlineExceeded):
        client.ping(timeout_s=0.05)
    assert client.delete("k", "other", timeout_s=0.05) == 0
    assert service.num_held == 2, "a ping, and one deletion"
    service.release()


def test_a_client_that_cannot_see_the_memory_has_no_keys(
    service: StoreService, make: Make, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ring: object) -> ReaderEntry:
        raise OSError("no shared memory")

    monkeypatch.setattr(ReaderEntry, "attach", refuse)
    with make(run_dir, fail_open=False) as strict, make(run_dir) as client:
        client.put("k", numbers(1))
        assert client.exists("k")
        assert client.keys() == []
        with pytest.raises(SegmentError, match="no shared memory"):
            strict.keys()


def test_a_ping_is_answered_or_raises(run_dir: Path, make: Make) -> None:
    RunDir(run_dir).create()
    with make(run_dir, connect_timeout_s=0.1) as client:
        with pytest.raises(ServiceUnavailable):
            client.ping(timeout_s=0.1)
        assert client.keys() == []
        assert client.delete("k") == 0
    with StoreService(run_dir), make(run_dir) as client:
        assert client.ping() is True


def test_a_client_is_a_container_of_its_tenants_keys(service: StoreService, run_dir: Path) -> None:
    with Client(run_dir, tenant="mine") as client, Client(run_dir) as other:
        assert client, "an empty one, too"
        client.put("a", numbers(1))
        other.put("b", numbers(1))
        assert ["a" in client, "b" in client, len(client)] == [True, False, 1]
