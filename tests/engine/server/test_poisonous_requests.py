"""A request that kills its workers, through EngineServer with two fake ranks: it fails, everybody else is answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.engine.server.poisonous_requests import MAX_KEPT, PoisonousRequests
from mmcached.wire.config import RESTART_WINDOW_S, ServiceConfig
from mmcached.wire.errors import PoisonousRequest, error_from_wire
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages import worker as to_worker
from tests.clock import Clock
from tests.engine.builders import generate
from tests.engine.fake_peers import Bench

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, step_timeout_s=10.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(run_dir: Path, clock: Clock) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, clock) as bench:
        bench.connect()
        yield bench


class Ranks:
    """Both ranks of a bench, with real deaths: who is killed closes its connection, and a successor says hello."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.num_deaths = 0
        self.plans: list[list[int]] = []
        self._came: dict[int, to_worker.StepPlan] = {}

    def take_plans(self) -> list[to_worker.StepPlan]:
        """Return the next step's plans, one of each rank."""
        plans = [self._plan(rank) for rank in range(2)]
        self.plans.append([chunk.request_id for chunk in plans[0].chunks])
        return plans

    def run_or_die(self, poisonous: int, *, dying: tuple[int, ...] = (1,)) -> None:
        """Run the next step; if it has the poisonous request, these ranks die of it, and the others answer."""
        plans = self.take_plans()
        is_fatal = any(chunk.request_id == poisonous for chunk in plans[0].chunks)
        for rank, worker in enumerate(self.bench.workers):
            if not (is_fatal and rank in dying):
                worker.channel.send(worker.output(plans[rank]))
        if is_fatal:
            self.num_deaths += 1
            assert self.num_deaths < 5, "it is tried again and again"
            self.kill(*dying)

    def kill(self, *ranks: int) -> None:
        """Let ranks die, all of them before the first successor comes."""
        for rank in ranks:
            self.bench.workers[rank].channel.close()
        for rank in ranks:
            self.bench.attach(self.bench.replace(rank))

    def _plan(self, rank: int) -> to_worker.StepPlan:
        self.bench.pump(lambda: self.has_plan(rank))
        return self._came.pop(rank)

    def has_plan(self, rank: int) -> bool:
        """Return whether a rank's next plan has come; take what comes before it."""
        while rank not in self._came and (received := self.bench.workers[rank].channel.try_receive()) is not None:
            message, _ = received
            if isinstance(message, to_worker.StepPlan):
                self._came[rank] = message
            else:
                assert isinstance(message, to_worker.ClearCaches), message
        return rank in self._came

    def outcomes(self, num: int, **how: Any) -> dict[int, from_engine.RequestGenerated | from_engine.RequestFailed]:
        """Run steps until so many requests have ended."""
        while len(found := endings(self.bench)) < num:
            self.run_or_die(**how)
            self.bench.pump(lambda: len(endings(self.bench)) >= num or self.has_plan(0))
        return found


def endings(bench: Bench) -> dict[int, from_engine.RequestGenerated | from_engine.RequestFailed]:
    """Return what requests have ended with."""
    kinds = (from_engine.RequestGenerated, from_engine.RequestFailed)
    return {message.request_id: message for message, _ in bench.received if isinstance(message, kinds)}


def failures(bench: Bench) -> list[from_engine.RequestFailed]:
    return [message for message, _ in bench.received if isinstance(message, from_engine.RequestFailed)]


@pytest.mark.parametrize("dying", [(1,), (0, 1)])
def test_the_one_that_kills_fails_and_the_others_are_answered(bench: Bench, dying: tuple[int, ...]) -> None:
    for request_id in (1, 2, 3):
        bench.add(request_id, bench.put_item(str(request_id)), max_tokens=1)
    bench.pump(lambda: bench.engine.stats().requests_waiting + bench.engine.stats().requests_running == 3)
    ranks = Ranks(bench)
    outcomes = ranks.outcomes(3, poisonous=2, dying=dying)
    assert isinstance(outcomes[1], from_engine.RequestGenerated)
    assert isinstance(outcomes[3], from_engine.RequestGenerated)
    failed = outcomes[2]
    assert isinstance(failed, from_engine.RequestFailed)
    error = error_from_wire(failed.error)
    assert isinstance(error, PoisonousRequest)
    assert (error.retryable, error.details["num_deaths"]) == (False, 2)
    assert ranks.num_deaths == 2, "one to suspect it, one to know it"
    stats = bench.engine.stats()
    assert (stats.deaths_in_steps, stats.poisonous_requests, stats.steps_failed) == (2, 1, 0)
    assert bench.leases == 0


def test_the_same_request_is_refused_for_as_long_as_deaths_count(bench: Bench, clock: Clock) -> None:
    ranks = Ranks(bench)
    bench.add(1)
    ranks.outcomes(1, poisonous=1)
    bench.received.clear()
    handle = bench.put_item("a")
    bench.add(2)
    assert bench.expect(from_engine.RequestFailed).error.code == PoisonousRequest.code
    bench.add(3, handle)
    plans = ranks.take_plans()
    assert ranks.plans[-1] == [3], "another one is computed"
    bench.answer(plans)
    bench.expect(from_engine.RequestGenerated)
    clock.now += RESTART_WINDOW_S
    bench.add(4)
    ranks.take_plans()
    assert ranks.plans[-1] == [4], "perhaps it was the weather"


def test_a_worker_that_dies_late_of_a_step_is_not_blamed_on_the_next(bench: Bench) -> None:
    """Rank 1 dies at once, rank 0 long after; in between nothing is started that could be blamed for it."""
    ranks = Ranks(bench)
    bench.add(1)
    ranks.take_plans()
    bench.attach(bench.replace(1))
    bench.add(2)
    bench.turns()
    assert not bench.workers[1].channel.wait(0) or isinstance(
        bench.workers[1].channel.receive(0)[0], to_worker.ClearCaches
    )
    bench.attach(bench.replace(0))
    ranks.take_plans()
    assert bench.engine.stats().deaths_in_steps == 1


def test_a_worker_that_dies_between_steps_is_nobody_s_fault(bench: Bench) -> None:
    """One that has answered, or that was never given the plan, has not died of the step."""
    ranks = Ranks(bench)
    bench.add(1)
    plans = ranks.take_plans()
    bench.workers[1].channel.send(bench.workers[1].output(plans[1]))
    bench.workers[1].channel.send(to_engine.WorkerHello(1, 0, "another", "cpu"))
    bench.from_engine(bench.workers[1], to_worker.WorkerRefused)  # so the output has come, too
    bench.workers[0].channel.send(bench.workers[0].output(plans[0], token=66))
    bench.attach(bench.replace(1))
    bench.expect(from_engine.RequestGenerated)
    assert failures(bench) == []


def test_a_voided_step_that_hangs_still_has_its_deadline(bench: Bench, clock: Clock) -> None:
    ranks = Ranks(bench)
    bench.add(1)
    ranks.take_plans()
    bench.attach(bench.replace(1))
    clock.now += CONFIG.step_timeout_s + 1
    with pytest.raises(Exception, match=r"rank\(s\) \[0, 1\]"):
        bench.expect(from_engine.RequestGenerated)


def test_what_is_remembered_is_bounded() -> None:
    clock = Clock()
    poisonous = PoisonousRequests(clock=clock)
    for number in range(MAX_KEPT + 7):
        poisonous.add(generate(number, 10), PoisonousRequest(2, 2))
    assert len(poisonous) == MAX_KEPT
    with pytest.raises(PoisonousRequest):
        poisonous.check(generate(MAX_KEPT + 6, 10))
    clock.now += RESTART_WINDOW_S
    poisonous.check(generate(MAX_KEPT + 6, 10))
    assert len(poisonous) == MAX_KEPT - 1
