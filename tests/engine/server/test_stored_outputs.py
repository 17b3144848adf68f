"""Leases of encoder outputs in an EngineServer between a fake frontend, fake workers and a fake store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmcached.cache.store_keys import output_key
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, CorruptImage
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.parts import Feature, Inline, StoredOutput, Tensor
from tests.clock import Clock
from tests.engine.fake_peers import Bench, FakeStore
from tests.engine.integrity import check_scheduler

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, step_timeout_s=10.0)
HASH = "m" * 64
KEY = output_key("", HASH)


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, Clock()) as bench:
        bench.store.outputs[KEY] = "token"
        bench.connect()
        yield bench
        check_scheduler(bench.engine._scheduler)


@pytest.fixture
def store(bench: Bench) -> FakeStore:
    return bench.store


def add(bench: Bench, request_id: int, **options: Any) -> None:
    feature = Feature(HASH, "image", 2, 2, 2, 0, None, has_output=True)
    fields = {"max_tokens": 1, "rows": None, "tenant": "t", "store_epoch": 9} | options
    bench.send(to_engine.AddRequest(request_id, "generate", [*b"ab", 258, 258, *b"cd"], [feature], **fields))


def loads(plan: to_worker.StepPlan) -> list[str]:
    return [item.payload.token for item in plan.encode if isinstance(item.payload, StoredOutput)]


def test_every_rank_loads_under_the_engines_lease_which_ends_with_the_request(bench: Bench, store: FakeStore) -> None:
    add(bench, 1)
    plans = bench.plans()
    assert [loads(plan) for plan in plans] == [["token"]] * 2
    assert plans[0].encode[0].store_epoch == 0, "what was loaded is not saved"
    assert store.num_leased == bench.engine.stats().leases_held == 1
    bench.answer(plans)
    bench.expect(from_engine.RequestGenerated)
    assert store.num_leased == 0


def test_what_is_in_the_books_is_not_loaded(bench: Bench) -> None:
    for request_id in (1, 2):
        add(bench, request_id)
        plans = bench.plans()
        assert loads(plans[0]) == (["token"] if request_id == 1 else [])
        bench.answer(plans)
        bench.expect(from_engine.RequestGenerated)


@pytest.mark.parametrize("has_copy", [False, True])
def test_an_output_that_cannot_be_leased_is_missed(bench: Bench, store: FakeStore, has_copy: bool) -> None:
    store.outputs = {KEY: None} if has_copy else {}
    add(bench, 1)
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(1, [])
    assert store.num_leased == 0
    bench.serve(2)


def test_after_one_output_that_cannot_be_leased_none_is_asked_for(bench: Bench, store: FakeStore) -> None:
    """What cannot be leased is copied: of a clip's outputs that would be much."""
    hashes = [letter * 64 for letter in "nop"]
    store.outputs = {KEY: "token"} | {output_key("", each): None for each in hashes}
    features = [
        Feature(each, "image", index, 1, 1, 0, None, has_output=True) for index, each in enumerate([HASH, *hashes])
    ]
    bench.send(to_engine.AddRequest(1, "encode", [258] * 4, features, 0, None, tenant="t", store_epoch=9))
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(1, [])
    assert len(store.leases) == 2
    assert store.num_leased == 0


def test_the_lease_outlives_a_request_that_is_aborted_in_its_step(bench: Bench, store: FakeStore) -> None:
    add(bench, 1)
    plans = bench.plans()
    bench.send(to_engine.AbortRequest(1))
    bench.turns()
    assert store.num_leased == 1, "a rank may still open it"
    bench.answer(plans)
    bench.pump(lambda: bench.engine.stats().steps == 1 and bench.engine.stats().requests_running == 0)
    assert store.num_leased == 0


def test_an_output_that_a_worker_cannot_load_is_dropped_and_its_request_sent_again(
    bench: Bench, store: FakeStore
) -> None:
    add(bench, 1)
    bench.add(2)  # in the same step
    bench.run_step(error=CacheMiss([HASH]))
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(1, [])
    assert store.dropped == [KEY]
    bench.run_step()
    assert bench.expect(from_engine.RequestGenerated).request_id == 2
    assert store.num_leased == 0


def test_new_weights_load_nothing_of_before(bench: Bench, store: FakeStore) -> None:
    """The second request is in no step yet when the weights change; the first has loaded what it needs, and goes on."""
    add(bench, 1, max_tokens=2)
    plans = bench.plans()
    add(bench, 2)
    bench.send(to_engine.FlushEngine(7))
    bench.expect(from_engine.EngineFlushed)
    bench.answer(plans)
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(2, [])
    bench.run_step()
    assert bench.expect(from_engine.RequestGenerated).request_id == 1
    assert store.num_leased == 0


def test_a_request_that_is_half_answered_is_not_begun_anew(bench: Bench) -> None:
    """After a failed step and new weights it would need its output again, which is of the former ones."""
    add(bench, 1, max_tokens=3, is_streamed=True)
    bench.run_step()
    bench.expect(from_engine.TokensCommitted)
    plans = bench.plans()
    bench.send(to_engine.FlushEngine(7))
    bench.expect(from_engine.EngineFlushed)
    bench.replace(0)
    bench.attach(bench.workers[0])
    bench.workers[1].channel.send(bench.workers[1].output(plans[1]))
    failed = bench.expect(from_engine.RequestFailed)
    assert (failed.request_id, failed.error.code, failed.error.retryable) == (1, "request_aborted", True)


def test_ranks_that_share_outputs_and_differ_fail_their_step_and_not_the_engine(bench: Bench) -> None:
    """Whoever may put records may have put another one in the place of what a rank has encoded."""
    item = Feature("n" * 64, "image", 2, 2, 2, 9, Inline(0, 1))
    tokens = [*b"ab", 258, 258, *b"cd"]
    bench.send(to_engine.AddRequest(1, "generate", tokens, [item], 1, None, store_epoch=9), [b"frame"])
    plans = bench.plans()
    for rank, (worker, plan) in enumerate(zip(bench.workers, plans, strict=True)):
        worker.channel.send(worker.output(plan, digest=bytes([rank])))
    failed = bench.expect(from_engine.RequestFailed)
    assert (failed.error.code, failed.error.retryable) == ("computation_failed", True)
    bench.serve(2)


def test_an_answer_names_what_rank_0_saves(bench: Bench) -> None:
    items = [Feature(name * 64, "image", index, 1, 1, 9, Inline(0, 1)) for index, name in enumerate("no")]
    items[1] = msgspec.structs.replace(items[1], mm_hash=items[1].mm_hash + ":1")  # it has its name of its client
    add = to_engine.AddRequest(1, "encode", [258, 258], items, 0, None, "t", store_epoch=9, takes_keys=True)
    bench.send(add, [b"frame"])
    plans = bench.plans()
    first, second = plans[0].emit
    assert (first.mm_hash, first.tenant, first.store_epoch) == ("n" * 64, "t", 9)
    assert second.store_epoch == 0
    tensor = Tensor(0, "int32", (1,))
    for worker, plan in zip(bench.workers, plans, strict=True):
        embeddings, saved, frames = [], [], []
        if not worker.rank:
            saved, frames = [to_engine.ItemSaved(1, 0, "a key")], [b"four"]
            embeddings = [to_engine.ItemEmbedding(1, 1, "embeddings", tensor)]
        output = msgspec.structs.replace(worker.output(plan), embeddings=embeddings, saved=saved)
        worker.channel.send(output, frames)
    assert bench.expect(from_engine.RequestEncoded).outputs == ["a key", {"embeddings": tensor}]


def test_who_takes_no_keys_gets_what_it_asks_for_inline(bench: Bench) -> None:
    item = Feature("n" * 64, "image", 0, 1, 1, 9, Inline(0, 1))
    bench.send(to_engine.AddRequest(1, "encode", [258], [item], 0, None, store_epoch=9), [b"frame"])
    plans = bench.plans()
    assert [emit.store_epoch for emit in plans[0].emit] == [0]


def test_a_failed_step_is_computed_again_from_the_same_lease(bench: Bench, store: FakeStore) -> None:
    bench.add(3)
    first = bench.plans()
    add(bench, 1)
    bench.add(2)
    bench.pump(lambda: bench.engine.stats().requests_waiting == 2)
    bench.answer(first)
    assert bench.expect(from_engine.RequestGenerated).request_id == 3
    bench.run_step(error=CorruptImage("images[0]", "x", "no image"))
    for _ in range(2):  # both are suspects, computed one by one
        bench.run_step()
    answered = {bench.expect(from_engine.RequestGenerated).request_id for _ in range(2)}
    assert answered == {1, 2}
    assert store.num_leased == 0


def test_another_frontend_ends_the_leases(bench: Bench, store: FakeStore) -> None:
    add(bench, 1, max_tokens=50)
    bench.run_step()
    plans = bench.plans()
    bench.send(to_engine.Greeted(2))
    bench.expect(from_engine.EngineReady)
    bench.answer(plans)
    bench.pump(lambda: store.num_leased == 0)
