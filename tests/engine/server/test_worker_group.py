"""WorkerGroup and StepResults: who is attached, who was replaced, when a step is complete; ranks must agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.step_results import StepResults
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.errors import PeerGone
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.engine import FromWorker, StepOutput, WorkerAttached, WorkerHello
from tests.doubles.dealer import Dealer
from tests.doubles.router import Router

DEADLINE_S = 20.0


class Wiring:
    """A group of two ranks behind a real socket."""

    def __init__(self, run_dir: Path, stack: ExitStack) -> None:
        self._stack = stack
        self._address = f"ipc://{run_dir}/workers.sock"
        self.router: Router[FromWorker] = stack.enter_context(Router(self._address, FromWorker))
        self.group = WorkerGroup(self.router.listener, 2, incarnation=5, config_digest="d")

    def worker(self, hello: WorkerHello) -> tuple[Dealer[to_worker.FromEngineToWorker], bytes]:
        """Connect a worker and return its end with the identity that the group sees."""
        channel: Dealer[to_worker.FromEngineToWorker] = self._stack.enter_context(
            Dealer(self._address, to_worker.FromEngineToWorker)
        )
        channel.send(hello)
        assert self.router.wait(DEADLINE_S)
        received = self.router.try_receive()
        assert received is not None
        return channel, received[0]


@pytest.fixture
def wiring(run_dir: Path) -> Iterator[Wiring]:
    with ExitStack() as stack:
        yield Wiring(run_dir, stack)


def test_all_ranks_must_attach_and_stale_answers_do_not_count(wiring: Wiring) -> None:
    group = wiring.group
    for rank in range(2):
        hello = WorkerHello(rank, 10 + rank, "d", "cpu")
        channel, peer = wiring.worker(hello)
        accepted = group.hello(peer, hello)
        assert accepted is not None
        assert accepted[1] is False
        group.attach(accepted[0])
        assert channel.receive(DEADLINE_S)[0] == to_worker.Attach(5)
        assert not group.are_all_attached
        assert group.attached(WorkerAttached(10 + rank, 6)) is None, "of another engine"
        assert group.attached(WorkerAttached(77, 5)) is None, "of another process"
        assert group.embedding_bytes == (0 if rank == 0 else 200)
        assert group.attached(WorkerAttached(10 + rank, 5, 100 * (2 + rank))) is accepted[0]
        assert group.embedding_bytes == 100 * (2 + rank)
    assert group.are_all_attached
    assert group.epochs == [10, 11]


def test_a_rank_with_another_encoder_than_the_others_is_refused(wiring: Wiring) -> None:
    channels = []
    for rank, fingerprint in enumerate(("f", "g")):
        hello = WorkerHello(rank, 10 + rank, "d", "cpu")
        channel, peer = wiring.worker(hello)
        wiring.group.hello(peer, hello)
        channels.append(channel)
        attached = wiring.group.attached(WorkerAttached(10 + rank, 5, encoder_fingerprint=fingerprint))
        assert (attached is not None) is (rank == 0)
        assert wiring.group.encoder_fingerprint == "", "not all are attached"
    refused = channels[1].receive(DEADLINE_S)[0]
    assert isinstance(refused, to_worker.WorkerRefused)
    assert refused.error.details["field"] == "encoder fingerprint"
    wiring.group.attached(WorkerAttached(11, 5, encoder_fingerprint="f"))
    assert wiring.group.encoder_fingerprint == "f"


def test_another_configuration_is_refused_with_the_reason(wiring: Wiring) -> None:
    hello = WorkerHello(0, 10, "other", "cpu")
    channel, peer = wiring.worker(hello)
    assert wiring.group.hello(peer, hello) is None
    refused, _ = channel.receive(DEADLINE_S)
    assert isinstance(refused, to_worker.WorkerRefused)
    assert "config digest" in refused.error.message


def test_plans_to_a_rank_that_is_gone_raise_and_news_do_not(wiring: Wiring) -> None:
    hello = WorkerHello(0, 10, "d", "cpu")
    wiring.group.hello(b"nobody", hello)
    (link,) = wiring.group.in_rank_order()
    with pytest.raises(PeerGone):
        wiring.group.send(link, to_worker.ClearCaches(5))
    wiring.group.send_all(to_worker.ClearCaches(5))
    assert wiring.group.epochs == [10]


STEP = ScheduledStep(3, [], [], [], [])


def output(digest: bytes) -> StepOutput:
    return StepOutput(1, 2, 3, digest, [], [], [], [])


def test_step_is_complete_when_every_rank_has_answered() -> None:
    results = StepResults(STEP, 2, deadline=0.0)
    results.add(1, output(b"x"), [b"1"])
    results.add(1, output(b"x"), [b"1"])
    assert not results.is_complete
    assert results.missing_ranks == [0]
    results.add(0, output(b"x"), [b"0"])
    assert results.is_complete
    assert results.answer() == (output(b"x"), [b"0"])
