"""EngineServer between a fake frontend and fake workers: attaching, leases at every end of a request, failing steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mmcached.cache.hashing.block_hash import BlockHasher
from mmcached.engine import Request, Scheduler
from mmcached.engine.scheduling.caches import Caches
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.probes import MAX_OPEN
from mmcached.engine.server.server import POLL_INTERVAL_S
from mmcached.shm.stats.page import StatsPage, StatsPageReader
from mmcached.shm.stats.service import stats_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EngineStats
from mmcached.wire.errors import CacheMiss, ConfigError, CorruptImage, InvariantError, PeerGone, error_to_wire
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.parts import Feature, Inline, StoredItem
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import REST_S, TurnShare
from mmcached.wire.stats import RoleName
from tests.clock import Clock, Sleeper
from tests.engine.fake_peers import DEADLINE_S, Bench

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, step_timeout_s=10.0, slow_log_ms=3000.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fresh(run_dir: Path, clock: Clock) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, clock) as bench:
        yield bench


@pytest.fixture
def bench(fresh: Bench) -> Bench:
    fresh.connect()
    return fresh


def test_engine_is_ready_only_when_it_is_greeted_and_all_workers_are_attached(fresh: Bench, clock: Clock) -> None:
    fresh.expect(from_engine.EngineHello)
    clock.now += 1
    fresh.greet()  # a hello is repeated until it is answered
    fresh.attach(fresh.add_worker(0))
    fresh.turns()
    assert fresh.frontend.try_receive() is None, "one rank is missing"


def test_lease_goes_back_after_the_answer_and_not_before(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    plans = bench.plans()
    assert bench.leases == 1
    bench.answer(plans)
    answer = bench.expect(from_engine.RequestGenerated)
    assert (answer.token_ids, answer.finish_reason) == ([65], "length")
    assert bench.leases == 0


@pytest.mark.parametrize("error", [None, CorruptImage("images[0]", "m", "bad")])
def test_whoever_has_an_answer_finds_it_counted_on_the_page(
    run_dir: Path, clock: Clock, error: CorruptImage | None
) -> None:
    """Time stands still: nothing is published because it is due."""
    page = RunDir(run_dir).stats_page
    with StatsPage.create(page), StatsPageReader(page) as figures, Bench(run_dir, CONFIG, clock) as bench:
        bench.connect()
        bench.add(1, bench.put_item("a"))
        bench.run_step(error=error)
        bench.expect(from_engine.RequestGenerated if error is None else from_engine.RequestFailed)
        found = stats_of(figures.read(), RoleName("engine"), EngineStats)
        assert (found.requests_running, found.leases_held) == (0, 0)
        assert (found.requests_finished, found.steps_failed) == ((1, 0) if error is None else (0, 1))
        bench.send(to_engine.FlushEngine(1))
        bench.expect(from_engine.EngineFlushed)
        assert stats_of(figures.read(), RoleName("engine"), EngineStats).kv.blocks_cached == 0


def test_waiting_and_steps_are_measured(bench: Bench, clock: Clock) -> None:
    """Of two requests: one waits while the other's step is computed, and then both are computed at once."""

    def latencies() -> list[tuple[int, int]]:
        stats = bench.engine.stats()
        return [(found.num, found.sum_ns // 10**9) for found in (stats.queue_latency, stats.step_latency)]

    bench.add(1, bench.put_item("a"), max_tokens=2)
    plans = bench.plans()
    bench.add(2, bench.put_item("b"))
    bench.turns()
    assert latencies() == [(1, 0), (0, 0)], "the other one waits"
    clock.now += 4
    for worker, plan in zip(bench.workers, plans, strict=True):
        worker.channel.send(worker.output(plan))
    plans = bench.plans()
    assert latencies() == [(2, 4), (1, 4)]
    clock.now += 2
    for worker, plan in zip(bench.workers, plans, strict=True):
        worker.channel.send(worker.output(plan))
    bench.expect(from_engine.RequestGenerated)
    assert latencies() == [(2, 4), (2, 6)]
    assert [(call.what, call.number) for call in bench.engine.stats().slow_log.last] == [("step", plans[0].step - 1)]


def test_abort_in_mid_step_keeps_the_lease_until_every_rank_has_read(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    plans = bench.plans()
    bench.send(to_engine.AbortRequest(1))
    first, second = bench.workers
    first.channel.send(first.output(plans[0]))
    bench.turns()
    assert bench.leases == 1, "rank 1 may still read the bytes"
    second.channel.send(second.output(plans[1]))
    bench.pump(lambda: bench.leases == 0)
    assert bench.engine.stats().requests_running == 0
    assert from_engine.RequestGenerated not in bench.kinds()


def test_what_the_frontend_has_hashed_of_a_prompt_is_not_hashed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_size, made = bench.config.block_size, list[int]()
    prompt, hashed = [65] * (3 * block_size + 1), [bytes([number]) * 32 for number in range(3)]
    extend = BlockHasher.extend_block_hashes

    def noted(hasher: BlockHasher, request: Request, *sizes: int) -> None:
        num_given = len(request.block_hashes)
        extend(hasher, request, *sizes)
        made.append(len(request.block_hashes) - num_given)

    monkeypatch.setattr(BlockHasher, "extend_block_hashes", noted)
    for number, given in ((1, []), (2, hashed), (3, hashed[:2])):
        bench.send(to_engine.AddRequest(number, "generate", prompt, [], 1, None, block_hashes=given))
        bench.run_step()
        assert bench.expect(from_engine.RequestGenerated).request_id == number
    assert [number for number in made if number] == [3, 1]


def test_an_item_that_has_gone_is_missed_and_nothing_is_held(bench: Bench) -> None:
    kept, gone = bench.put_item("a"), StoredItem("gone")
    features = [Feature("m" * 64, "image", 0, 1, 1, 16, kept), Feature("n" * 64, "image", 1, 1, 1, 16, gone)]
    bench.send(to_engine.AddRequest(1, "generate", [258, 258, 65], features, 1, None))
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(1, [])
    assert bench.leases == bench.engine.stats().leases_held == 0
    bench.serve(2, kept)


def test_an_item_that_a_worker_does_not_find_has_its_request_sent_again(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    bench.run_step(error=CacheMiss(["m" * 64]))
    assert bench.expect(from_engine.RequestMissed) == from_engine.RequestMissed(1, [])
    assert bench.leases == 0
    assert bench.store.dropped == [], "that is the frontend's to do"
    bench.serve(2)


def test_a_flush_leaves_the_items_of_open_requests_as_they_are(bench: Bench) -> None:
    bench.add(1)
    plans = bench.plans()
    bench.add(2, bench.put_item("a"))
    bench.send(to_engine.FlushEngine(9))
    bench.expect(from_engine.EngineFlushed)
    assert bench.leases == 1
    bench.answer(plans)
    bench.expect(from_engine.RequestGenerated)
    plans = bench.plans()
    assert plans[0].encode[0].payload == StoredItem("a")
    bench.answer(plans)
    bench.expect(from_engine.RequestGenerated)
    assert bench.leases == 0


def test_failed_step_fails_its_requests_with_the_reason_and_the_engine_goes_on(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    for rank, worker in enumerate(bench.workers):
        plan = bench.plan(rank)
        error = error_to_wire(CorruptImage("images[0]", "x", "no image"))
        worker.channel.send(worker.failure(plan, error) if rank else worker.output(plan))
    failed = bench.expect(from_engine.RequestFailed)
    assert (failed.request_id, failed.error.code) == (1, "corrupt_image")
    assert failed.error.details["field"] == "images[0]"
    assert bench.leases == 0
    bench.serve(2)


def test_ranks_that_compute_different_things_end_the_engine(bench: Bench) -> None:
    bench.add(1)
    for worker, plan in zip(bench.workers, bench.plans(), strict=True):
        worker.channel.send(worker.output(plan, digest=b"%d" % worker.rank))
    with pytest.raises(InvariantError, match=r"ranks \[1\]"):
        bench.expect(from_engine.EngineFlushed)


def test_step_past_its_deadline_ends_the_engine(bench: Bench, clock: Clock) -> None:
    bench.add(1)
    bench.plan(0)
    clock.now += CONFIG.step_timeout_s + 1
    with pytest.raises(PeerGone, match=r"\[0, 1\]"):
        bench.expect(from_engine.EngineFlushed)


def test_request_that_can_never_be_served_is_refused_and_its_lease_returned(bench: Bench) -> None:
    outside = Feature("m" * 64, "image", 50, 2, 2, 16, bench.put_item("a"))
    bench.send(to_engine.AddRequest(1, "generate", [65], [outside], 1, None))
    assert bench.expect(from_engine.RequestFailed).error.code == "invalid_request"
    missing = Feature("m" * 64, "image", 0, 1, 1, 3, Inline(0, 3))
    bench.send(to_engine.AddRequest(2, "generate", [258], [missing], 1, None), [b"one"])
    assert bench.expect(from_engine.RequestFailed).error.code == "remote_protocol_error"
    assert bench.leases == 0


def test_noise_stale_plans_and_other_configurations_are_ignored(bench: Bench) -> None:
    bench.workers[0].channel.socket.send_multipart([b"noise"])
    bench.frontend.send_frames(bench.peer, b"mmc\x01", b"\xc1")
    bench.add(1)
    plan = bench.plan(0)
    worker = bench.workers[0]
    late = worker.output(plan)
    for field, value in (("engine_incarnation", 5), ("worker_epoch", 5), ("step", plan.step + 7)):
        worker.channel.send(msgspec.structs.replace(late, **{field: value}))
    worker.channel.send(late)
    bench.workers[1].channel.send(bench.workers[1].output(bench.plan(1)))
    assert bench.expect(from_engine.RequestGenerated).token_ids == [65]


def test_replaced_worker_voids_the_step_and_requests_start_over_at_token_0(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    first = bench.plans()
    bench.workers[0].channel.send(bench.workers[0].output(first[0]))
    successor = bench.replace(1)
    attach = bench.from_engine(successor, to_worker.Attach)
    for worker in bench.workers:
        bench.from_engine(worker, to_worker.ClearCaches)
    successor.attached(attach)
    second = bench.plans()
    assert second[0].step != first[0].step
    assert [chunk.num_computed_tokens for chunk in second[0].chunks] == [0]
    assert len(second[0].encode) == 1, "the encoder's output is gone too"
    bench.workers[0].channel.send(bench.workers[0].output(first[0]))  # late, and void
    bench.answer(second)
    assert bench.expect(from_engine.RequestGenerated).token_ids == [65]
    assert bench.leases == 0


def test_another_session_ends_the_requests_of_the_former_and_caches_stay(bench: Bench) -> None:
    bench.add(1, bench.put_item("a"))
    plans = bench.plans()
    bench.send(to_engine.Greeted(2))
    bench.expect(from_engine.EngineReady)
    bench.answer(plans)
    bench.pump(lambda: bench.leases == 0)
    assert from_engine.RequestGenerated not in bench.kinds()
    assert bench.engine.stats().leases_held == 0
    bench.serve(2, bench.put_item("b"))


def test_a_greeting_repeated_in_the_same_session_changes_nothing(bench: Bench) -> None:
    bench.add(1)
    plans = bench.plans()
    bench.send(to_engine.Greeted(1))
    bench.expect(from_engine.EngineReady)
    bench.answer(plans)
    assert bench.expect(from_engine.RequestGenerated).request_id == 1


def test_a_hello_is_not_repeated_once_it_is_answered(bench: Bench, clock: Clock) -> None:
    for token in (1, 2):
        clock.now += 1
        bench.turns()
        bench.send(to_engine.FlushEngine(token))
        bench.pump(lambda: from_engine.EngineFlushed in bench.kinds())
        assert from_engine.EngineHello not in bench.kinds()
        bench.expect(from_engine.EngineFlushed)


def test_probe_reaches_every_worker_and_its_lease_returns_with_the_last_answer(bench: Bench) -> None:
    handle = bench.put_item("probe")
    bench.send(to_engine.ProbeEngine(4, handle))
    for index, worker in enumerate(bench.workers):
        probe = bench.from_engine(worker, to_worker.ProbeWorker)
        assert bench.leases == 1
        worker.channel.send(to_engine.WorkerProbed(probe.engine_incarnation, worker.epoch, probe.token, f"sum {index}"))
    assert bench.expect(from_engine.EngineProbed) == from_engine.EngineProbed(4, ["sum 0", "sum 1"])
    assert bench.leases == 0


def test_an_answered_probe_is_no_lease_on_the_page(run_dir: Path, clock: Clock) -> None:
    """`status` sends a probe, and then reads the page: nothing may be left there of the probe itself."""
    page = RunDir(run_dir).stats_page

    def leases_shown() -> int:
        return stats_of(figures.read(), RoleName("engine"), EngineStats).leases_held

    with StatsPage.create(page), StatsPageReader(page) as figures, Bench(run_dir, CONFIG, clock) as bench:
        bench.connect()
        handle = bench.put_item("probe")
        bench.send(to_engine.ProbeEngine(4, handle))
        probes = [bench.from_engine(worker, to_worker.ProbeWorker) for worker in bench.workers]
        clock.now += 1
        bench.turns()
        assert leases_shown() == 1, "in the middle of it"
        for worker, probe in zip(bench.workers, probes, strict=True):
            worker.channel.send(to_engine.WorkerProbed(probe.engine_incarnation, worker.epoch, probe.token, "sum"))
        bench.expect(from_engine.EngineProbed)
        assert leases_shown() == 0


def test_a_probe_that_a_worker_dies_of_or_lacks_is_answered_at_once(bench: Bench) -> None:
    bench.send(to_engine.ProbeEngine(4, Inline(0, 0)))
    bench.from_engine(bench.workers[0], to_worker.ProbeWorker)
    successor = bench.replace(0)
    assert bench.expect(from_engine.EngineProbed) == from_engine.EngineProbed(4, [])
    bench.send(to_engine.ProbeEngine(5, Inline(0, 0)))
    assert bench.expect(from_engine.EngineProbed) == from_engine.EngineProbed(5, [])
    bench.attach(successor)
    bench.send(to_engine.ProbeEngine(6, Inline(0, 0)))
    bench.from_engine(successor, to_worker.ClearCaches)
    assert bench.from_engine(successor, to_worker.ProbeWorker).token == 6


def test_a_flush_begins_within_a_step_and_clears_nothing_that_is_in_use(bench: Bench) -> None:
    bench.add(1, max_tokens=2)
    plans = bench.plans()
    bench.send(to_engine.FlushEngine(9))
    assert bench.expect(from_engine.EngineFlushed).token == 9
    bench.answer(plans)
    for rank in range(2):
        plan = bench.plan(rank)
        assert (plan.row_epoch, plan.chunks[0].num_computed_tokens) == (1, 5), "it goes on where it was"
    assert bench.engine.stats().kv.blocks_cached == 0


def test_a_probe_whose_item_has_gone_is_answered_at_once(bench: Bench) -> None:
    bench.send(to_engine.ProbeEngine(4, StoredItem("gone")))
    assert bench.expect(from_engine.EngineProbed) == from_engine.EngineProbed(4, [])


def test_refused_engine_ends_with_the_reason(fresh: Bench) -> None:
    fresh.expect(from_engine.EngineHello)
    fresh.send(to_engine.Refused(error_to_wire(ConfigError("config digest", "a", "b: restart"))))
    with pytest.raises(ConfigError, match="restart"):
        fresh.expect(from_engine.EngineReady)


# ---- floods, and errors that are not ours


def test_a_flood_gets_its_share_of_a_turn_and_hides_no_deadline(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(1)
    bench.plan(0)
    share = TurnShare().num_messages
    for token in range(4 * share):
        bench.send(to_engine.FlushEngine(token))
    num_served = [0]  # in each turn

    def counted(caches: Caches) -> None:
        num_served[-1] += 1

    monkeypatch.setattr(Caches, "new_epoch", counted)
    give_up = time.monotonic() + DEADLINE_S
    while sum(num_served) < 3 * share:
        assert time.monotonic() < give_up
        num_served.append(0)
        bench.engine.poll(0.0)
    assert max(num_served) <= share
    clock.now += CONFIG.step_timeout_s + 1
    with pytest.raises(PeerGone):
        bench.engine.poll(0.0)


def test_an_error_in_one_request_fails_that_request_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Scheduler.add_request

    def add_request(scheduler: Scheduler, request: Request) -> None:
        add(scheduler, request)
        if request.request_id == 1:
            raise KeyError("a bug")

    monkeypatch.setattr(Scheduler, "add_request", add_request)
    for request_id in (1, 2):
        bench.add(request_id, bench.put_item(str(request_id)))
    failed = bench.expect(from_engine.RequestFailed)
    assert (failed.request_id, failed.error.code) == (1, "invariant_error")
    assert "a bug" not in failed.error.message
    bench.run_step()
    assert bench.expect(from_engine.RequestGenerated).request_id == 2
    assert bench.leases == 0
    assert bench.engine.stats().faults == 1


def test_an_error_in_a_plan_fails_the_request_that_it_is_about(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    frames_of = ItemFrames.frames_of

    def broken_frames_of(items: ItemFrames, request_id: int, index: int) -> object:
        if request_id == 2:
            raise KeyError(request_id)
        return frames_of(items, request_id, index)

    monkeypatch.setattr(ItemFrames, "frames_of", broken_frames_of)
    for request_id in (1, 2):
        item = Feature(str(request_id) * 64, "image", 1, 2, 2, 3, Inline(0, 1))
        add = to_engine.AddRequest(request_id, "generate", [65, 258, 258], [item], 1, None)
        bench.send(add, [b"one"])
    bench.run_step()
    assert bench.expect(from_engine.RequestGenerated).request_id == 1
    failed = bench.expect(from_engine.RequestFailed)
    assert (failed.request_id, failed.error.code) == (2, "invariant_error")


def test_a_question_that_fails_is_nobody_elses_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Caches, "new_epoch", lambda caches: 1 / 0)
        bench.send(to_engine.FlushEngine(1))
        bench.pump(lambda: bench.engine.stats().faults == 1)
    bench.send(to_engine.FlushEngine(2))
    assert bench.expect(from_engine.EngineFlushed).token == 2


def test_probes_that_no_worker_answers_leave_nothing(bench: Bench) -> None:
    for token in range(1, 200):
        bench.send(to_engine.ProbeEngine(token, Inline(0, 0)))
        bench.from_engine(bench.workers[0], to_worker.ProbeWorker)
    bench.attach(bench.replace(0))  # a rank has come anew: the probes that are still known are answered
    bench.send(to_engine.FlushEngine(1))
    bench.pump(lambda: any(isinstance(message, from_engine.EngineFlushed) for message, _ in bench.received))
    answered = [message.token for message, _ in bench.received if isinstance(message, from_engine.EngineProbed)]
    assert answered == list(range(200 - MAX_OPEN, 200))


def test_at_rest_it_turns_to_look_alive_and_during_a_step_more_often(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns_of(seconds: float) -> int:
        sleeper, end = Sleeper(clock), clock.now + seconds
        with monkeypatch.context() as patch:
            patch.setattr(bench.engine, "_poller", sleeper)
            while clock.now < end:
                bench.engine.poll(REST_S)
        return sleeper.num_waits

    assert turns_of(60) <= 60 / REST_S + 1
    bench.add(1, bench.put_item("a"))
    bench.turns()
    assert turns_of(5) >= 5 / POLL_INTERVAL_S
