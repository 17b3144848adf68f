"""Engines of one host, played step by step: what one has encoded the others load, under leases that end."""

from __future__ import annotations

import pickle  # noqa: TID251 (vLLM's executors send the step so)
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmcached.integrations.vllm.messages import StepReport
from tests.client.services import StoreService
from tests.doubles.device import HeldCopies, HeldDevice
from tests.integration.processes import eventually
from tests.integrations.vllm.steps import PREFIX, ROWS, WIDTH, Output, Request, Steps, embedding, item
from tests.present import present

A, B, C = item(1), item(2), item(3)
NewEngine = Callable[..., Steps]


def at_rest(store: StoreService, *engines: Steps) -> bool:
    """Return whether no lease is out and no claim is open."""
    counts = [engine.leases.num_found + engine.leases.num_in_use for engine in engines]
    claims = [engine.claims.num_held for engine in engines if engine.claims is not None]
    return not any(counts) and not any(claims) and store.leases == 0


def test_what_one_has_encoded_the_other_loads(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    assert one.step(Request("r1", [A, B])) == [A, B]
    one.settle(A, B)
    assert two.step(Request("r2", [A, C, A])) == [C]
    assert at_rest(store, one, two)
    assert (two.scheduler.counts["hits/image"], two.scheduler.counts["exact_hits"]) == (1, 1)
    assert (two.scheduler.counts["loads"], two.scheduler.counts["encodes/image"]) == (1, 1)


def test_a_loaded_tensor_is_the_engines_own(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    two.step(Request("r2", [A]))
    two.caches[0][A].add_(1)  # in shared memory this would end the process
    assert new_engine().step(Request("r3", [A])) == []


def test_a_record_stays_until_the_device_has_read_it(store: StoreService, new_engine: NewEngine) -> None:
    copies = HeldCopies()
    one, two = new_engine(), new_engine(device=lambda: HeldDevice(copies))
    one.step(Request("r1", [A]))
    one.settle(A)
    scheduled = present(two.schedule(Request("r2", [A])))
    two.run(*scheduled)
    assert two.leases.num_in_use == 0, "the step has ended, as far as the host goes"
    assert one.clients[0].drop(PREFIX + A)
    for number in range(100):  # the store is filled more than once
        one.clients[0].put(f"{number}", {"x": torch.zeros(1 << 18, dtype=torch.uint8)})
    assert store.leases == 1
    (copy,) = copies.begun
    copy.end()
    assert torch.equal(two.caches[0][A], embedding(A))
    eventually(lambda: store.leases, lambda leases: leases == 0, "the lease to be back, with no further step")


def test_all_ranks_load_and_the_lease_lasts_until_the_last_has(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine(num_ranks=3)
    one.step(Request("r1", [A]))
    one.settle(A)
    scheduled = present(two.schedule(Request("r2", [A])))
    _, plan = scheduled
    reports = []
    for rank, worker in enumerate(two.workers):
        assert store.leases == 1
        worker.load(plan, two.caches[rank])
        report = present(worker.end_step(plan))
        reports.append(report)
    two.scheduler.reported(reports[0])
    assert store.leases == 1, "one rank's report is not that of all"
    two.scheduler.reported(reports[0].aggregate(reports[1]).aggregate(reports[2]))
    assert store.leases == 0
    assert all(torch.equal(cache[A], embedding(A)) for cache in two.caches)


def test_a_lease_whose_reports_do_not_come_ends_some_steps_later(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine(num_ranks=2)
    one.step(Request("r1", [A]))
    one.settle(A)
    assert two.schedule(Request("r2", [A])) is not None
    for _ in range(7):
        two.plan(Output())
        assert store.leases == 1
    two.plan(Output())
    assert store.leases == 0


def test_a_record_that_is_dropped_between_look_up_and_load_is_loaded(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    scheduled = present(two.schedule(Request("r2", [A])))
    assert one.clients[0].drop(PREFIX + A)
    one.clients[0].flush()
    two.run(*scheduled)
    assert two.encoded == []
    assert torch.equal(two.caches[0][A], embedding(A))


def test_a_load_that_fails_is_an_encode(store: StoreService, new_engine: NewEngine) -> None:
    """The lease ends too early, as with an executor that brings one rank's report, and the record goes."""
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A, B]))
    one.settle(A, B)
    scheduled = present(two.schedule(Request("r2", [C, A, B])))
    two.leases.clear()
    one.clients[0].flush()
    output, plan = pickle.loads(pickle.dumps(scheduled))  # noqa: S301
    two.run(output, plan)
    assert two.encoded == [C, A, B]
    assert two.scheduler.counts["load_failures"] == 2
    two.settle(A, B)
    assert at_rest(store, one, two)


def test_what_nothing_can_replace_fails_its_request_alone(new_engine: NewEngine) -> None:
    """An item without pixels, whose record goes: rows of zeros keep the engine alive."""
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    scheduled = present(two.schedule(Request("r2", [A], data=None)))
    two.leases.clear()
    one.clients[0].flush()
    two.run(*scheduled)
    assert torch.equal(two.caches[0][A], torch.zeros(ROWS, WIDTH))
    assert two.scheduler.take_unavailable() == {"r2"}
    assert two.scheduler.take_unavailable() == set()


def test_an_unknown_item_without_pixels_fails_its_request_alone(new_engine: NewEngine) -> None:
    engine = new_engine()
    assert engine.schedule(Request("r1", [A], data=None)) is None
    assert engine.scheduler.take_unavailable() == {"r1"}
    assert engine.step(Request("r2", [B])) == [B]


def test_a_look_up_whose_item_has_no_room_gives_its_lease_back(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    assert two.is_available(Request("r2", [A]))
    assert two.scheduler.has_item(A)
    assert store.leases == 1
    assert two.plan(Output()).loads == []
    assert store.leases == 0
    assert not two.scheduler.has_item(A)


def test_an_item_that_is_taken_back_in_the_same_pass_is_not_loaded(store: StoreService, new_engine: NewEngine) -> None:
    """Its request is preempted; loaded, it would lie in the runner's cache for ever."""
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    request = Request("r2", [A])
    assert two.is_available(request)
    two.scheduler.allocated(request, 0)
    assert two.plan(Output(free_encoder_mm_hashes=[A])).loads == []
    assert store.leases == 0


def test_other_rows_under_one_name_are_no_hit(store: StoreService, new_engine: NewEngine) -> None:
    one, two = new_engine(has_named=True), new_engine(has_named=True)
    one.clients[0].put(PREFIX + "cat", {"embeds": torch.zeros(ROWS, WIDTH)})
    assert two.is_available(Request("r1", ["cat"], num_rows=ROWS + 1))
    assert not two.scheduler.has_item("cat")
    two.plan(Output())
    assert at_rest(store, one, two)


def nan_in_the_last_place() -> torch.Tensor:
    embeds = torch.zeros(ROWS, WIDTH)
    embeds[-1, -1] = torch.nan
    return embeds


WRONG_RECORDS = [
    {},
    {"embeds": 1},
    {"embeds": []},
    {"embeds": [torch.zeros(ROWS, WIDTH)] * 2},
    {"embeds": torch.zeros(ROWS)},
    {"embeds": torch.zeros(1, ROWS, WIDTH)},
    {"embeds": torch.zeros(ROWS, WIDTH - 1)},
    {"embeds": torch.zeros(ROWS, 2 * WIDTH)},
    {"embeds": torch.zeros(ROWS - 1, WIDTH)},
    {"embeds": torch.zeros(ROWS, WIDTH, dtype=torch.int64)},
    {"embeds": torch.zeros(ROWS, WIDTH, dtype=torch.float16)},
    {"embeds": nan_in_the_last_place()},
    {"embeds": torch.full((ROWS, WIDTH), torch.inf)},
]


@pytest.mark.parametrize("record", WRONG_RECORDS)
def test_a_record_that_the_model_cannot_take_is_no_hit(
    store: StoreService, new_engine: NewEngine, record: dict[str, Any]
) -> None:
    engine = new_engine()
    assert engine.clients[0].put(PREFIX + A, record)
    assert engine.step_when_free(Request("r1", [A, B])) == [A, B]
    assert torch.equal(engine.caches[0][A], embedding(A))
    assert engine.scheduler.counts["unusable"] == 1
    eventually(lambda: at_rest(store, engine), bool, "leases and claims to be back")


@pytest.mark.parametrize("record", WRONG_RECORDS)
def test_such_a_record_under_a_name_without_pixels_fails_its_request_alone(
    store: StoreService, new_engine: NewEngine, record: dict[str, Any]
) -> None:
    engine = new_engine(has_named=True)
    assert engine.clients[0].put(PREFIX + "cat", record)
    assert engine.schedule(Request("r1", ["cat"], data=None)) is None
    assert engine.scheduler.take_unavailable() == {"r1"}
    assert engine.step_when_free(Request("r2", [B])) == [B]
    eventually(lambda: at_rest(store, engine), bool, "leases and claims to be back")


@pytest.mark.parametrize("data", ["pixels", None])
def test_such_a_record_that_comes_between_look_up_and_load_is_not_loaded(new_engine: NewEngine, data: Any) -> None:
    """It takes the place of the right one, on all ranks of the engine."""
    one, two = new_engine(), new_engine(num_ranks=2)
    one.step(Request("r1", [A]))
    one.settle(A)
    scheduled = present(two.schedule(Request("r2", [A], data=data)))
    two.leases.clear()
    one.clients[0].flush()
    assert one.clients[0].put(PREFIX + A, {"embeds": torch.zeros(ROWS, 2 * WIDTH)})
    two.run(*scheduled)
    wanted = torch.zeros(ROWS, WIDTH) if data is None else embedding(A)
    assert all(torch.equal(cache[A], wanted) for cache in two.caches)
    assert two.scheduler.take_unavailable() == ({"r2"} if data is None else set())


def test_float32_is_taken_by_a_model_of_another_dtype(new_engine: NewEngine) -> None:
    """The engine rounds it, as it does with the output of a tower that computes in float32."""
    engine = new_engine(dtype=torch.bfloat16)
    assert engine.clients[0].put(PREFIX + A, {"embeds": embedding(A), "grid": [1, 2, 2]})
    assert engine.step(Request("r1", [A])) == []


def test_each_look_up_is_counted_once_however_long_its_request_waits(
    store: StoreService, new_engine: NewEngine
) -> None:
    one, two, consumer = new_engine(), new_engine(), new_engine(role="ec_consumer")
    encoding = present(one.schedule(Request("r1", [A])))
    for _ in range(20):
        assert two.schedule(Request("r2", [A])) is None, "the first one encodes it"
    one.run(*encoding)
    one.settle(A)
    for _ in range(20):  # there is no room for the request
        assert two.is_available(Request("r2", [A]))
        two.plan(Output())
    assert two.step(Request("r2", [A])) == []
    assert consumer.step(Request("r3", [A, B])) == [B]
    eventually(lambda: counted(store), lambda figures: figures == (4, 2), "four look-ups, two of them hits")
    counts = [each.scheduler.counts for each in (one, two, consumer)]
    figures = [(each["queries/image"], each["hits/image"]) for each in counts]
    assert figures == [(1, 0), (1, 1), (2, 1)]


def test_queries_hits_and_encodes_are_counted_by_modality(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    one.step(Request("r1", [A]))
    one.settle(A)
    mixed = Request("r2", [A, B])
    mixed.mm_features[1].modality = "video"
    assert two.step(mixed) == [B]
    items = {name: count for name, count in two.scheduler.counts.items() if "/" in name and count}
    assert items == {"queries/image": 1, "hits/image": 1, "queries/video": 1, "encodes/video": 1}


def counted(store: StoreService) -> tuple[int, int]:
    """Return look-ups and hits, in the service's figures."""
    found: list[tuple[int, int]] = []
    store.call(lambda: found.append((store.desk.stats().queries, store.desk.stats().hits)))
    return found[0]


def test_an_item_that_clients_name_is_not_shared(new_engine: NewEngine) -> None:
    one, two = new_engine(), new_engine()
    for engine, name in ((one, "00000001"), (two, "00000001")):
        assert engine.step(Request("r", [name])) == [name]
    assert not one.clients[0].contains_many([PREFIX + "00000001"])[0]


def test_only_what_the_next_step_can_reach_is_looked_for(new_engine: NewEngine) -> None:
    engine = new_engine(window=ROWS)
    other = new_engine()
    other.step(Request("r1", [A, B, C]))
    other.settle(A, B, C)
    assert engine.is_available(Request("r2", [A, B, C]), num_computed_tokens=ROWS)
    assert engine.leases.num_found == 1, "the first is computed, the third out of reach"


def test_an_engine_asks_nothing_about_what_it_has(new_engine: NewEngine) -> None:
    engine = new_engine()
    engine.step(Request("r1", [A]))
    lookups = engine.scheduler.counts["queries/image"]
    assert engine.step(Request("r2", [A])) == []
    assert engine.scheduler.counts["queries/image"] == lookups


def test_what_an_engine_has_forgotten_comes_back_from_the_store(new_engine: NewEngine) -> None:
    engine = new_engine()
    engine.step(Request("r1", [A]))
    engine.settle(A)
    engine.forget(A)
    assert engine.step(Request("r2", [A])) == []
    engine.caches[0].clear()  # without a word
    assert engine.step(Request("r3", [A])) == []


def test_new_weights_hide_what_was_there(new_engine: NewEngine) -> None:
    prefixes = [PREFIX]
    engine = new_engine(prefix=lambda modality: prefixes[-1])
    engine.step(Request("r1", [A]))
    engine.settle(A)
    prefixes.append("encoder/later/")
    engine.caches[0].clear()
    assert engine.step(Request("r2", [A])) == [A]


def test_while_the_weights_are_unknown_nothing_is_found_or_saved(new_engine: NewEngine) -> None:
    prefixes = [PREFIX]
    engine, other = new_engine(prefix=lambda modality: prefixes[-1]), new_engine()
    engine.step(Request("r1", [A]))
    engine.settle(A)
    prefixes.append("")
    engine.caches[0].clear()
    assert engine.step(Request("r2", [A, B])) == [A, B]
    prefixes.append(PREFIX)
    engine.caches[0].clear()
    assert engine.step(Request("r3", [A])) == [], "the weights are again those of the record"
    assert other.step(Request("r4", [B])) == [B], "what was encoded meanwhile is not there"


def test_weights_that_a_worker_loads_by_itself_hide_what_is_planned(store: StoreService, new_engine: NewEngine) -> None:
    engine, other = new_engine(), new_engine()
    other.step(Request("r1", [A]))
    other.settle(A)
    engine.is_written = True
    assert engine.step(Request("r2", [A, B])) == [B, A], "B was missing, A was found under the key of former weights"
    assert engine.num_forgotten > 0
    assert other.step_when_free(Request("r3", [B])) == [B], "what it encoded was not saved under that key"
    engine.settle(B)
    engine.is_written = False
    engine.caches[0].clear()
    assert engine.step(Request("r4", [A, B])) == []
    assert at_rest(store, engine, other)


def test_a_consumer_saves_and_claims_nothing(store: StoreService, new_engine: NewEngine) -> None:
    consumer = new_engine(role="ec_consumer")
    assert consumer.step(Request("r1", [A])) == [A]
    assert new_engine().step(Request("r2", [A])) == [A]


def test_what_a_producer_has_encoded_is_there_when_its_step_ends(new_engine: NewEngine) -> None:
    producer, consumer = new_engine(role="ec_producer"), new_engine(role="ec_consumer")
    producer.step(Request("r1", [A]))
    assert consumer.step(Request("r2", [A], data=None)) == []


def test_a_producer_saves_again_what_the_store_has_lost(new_engine: NewEngine) -> None:
    producer = new_engine(role="ec_producer")
    producer.step(Request("r1", [A]))
    producer.clients[0].flush()
    scheduled = present(producer.schedule(Request("r2", [A])))
    producer.workers[0].publish(scheduled[1], producer.caches[0])
    producer.run(*scheduled)
    assert producer.encoded == [A]
    assert producer.clients[0].contains_many([PREFIX + A]) == [True]


def test_reports_of_ranks_add_up() -> None:
    report = StepReport(3, ended=[("k", "saved")], counts={"loads": 2}).aggregate(StepReport(2, lost=["r"]))
    assert report == StepReport(2, 2, [("k", "saved")], ["r"], {"loads": 2})
