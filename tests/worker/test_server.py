"""The worker against an engine played by the test: in a thread for the protocol, in a process for life and death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch

from mmcached.shm.stats.page import StatsPage, StatsPageReader
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.shm.stats.service import stats_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import WorkerStats
from mmcached.wire.errors import ChannelFull, ConfigError
from mmcached.wire.messages.engine import StepFailed, StepOutput, WorkerAttached, WorkerHello
from mmcached.wire.messages.parts import EncoderForm, Inline, TensorForm
from mmcached.wire.messages.worker import Attach, ClearCaches, EncodeItem, Shutdown
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import REST_S
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.stats import RoleName
from mmcached.worker.devices import choose_device
from mmcached.worker.server import ENGINE_GONE, HELLO_S, WorkerServer, main
from mmcached.worker.steps.runner import ModelRunner
from tests.clock import Clock, Sleeper
from tests.worker.fake_engine import DEADLINE_S, FakeEngine
from tests.worker.oracle import Oracle, random_image
from tests.worker.plans import chunk, plan
from tests.worker.rings import inline_frames

MODEL = ModelConfig(hidden_size=8, num_heads=2, encoder_width=12, patch_size=2, max_patches_per_image=9)
CONFIG = ServiceConfig(model=MODEL, block_size=4, num_kv_blocks=40, max_model_len=64, world_size=2, device="cpu")
ORACLE = Oracle(MODEL)
ENCODER = EncoderForm(
    "reference",
    {
        "image": [TensorForm("pixel_values", "uint8", (-1, 12)), TensorForm("grid", "int64", (2,))],
        "video": [TensorForm("frames", "uint8", (-1, 24)), TensorForm("grid", "int64", (2,))],
        "audio": [TensorForm("samples", "int16", (-1, 640))],
    },
    [TensorForm("embeddings", "int32", (-1, 8))],
)
IMAGE = random_image(np.random.default_rng(0), (2, 3), 2)
INCARNATION = 4711


class Served:
    """A worker in a thread of this process."""

    def __init__(self, run_dir: Path, *, rest_s: float = 0.1) -> None:
        self.num_dropped = 0
        self._rest_s = rest_s
        self._status: int | None = None
        self._stop = threading.Event()
        self._address = RunDir(run_dir).worker_address(0)
        self._stats_page = RunDir(run_dir).stats_page
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def exit_status(self) -> int | None:
        """Wait for the end that the test has brought about."""
        self._thread.join(DEADLINE_S)
        return self._status

    def exit_status_now(self) -> int | None:
        return self._status

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        runner = ModelRunner(CONFIG, rank=0, device=torch.device("cpu"))
        hello = WorkerHello(0, 99, CONFIG.digest(), "cpu")
        page = StatsPublisher(self._stats_page, RoleName("worker"))
        with page:
            server = WorkerServer(runner, hello, self._address, page)
            try:
                self._status = server.run(self._stop.is_set, rest_s=self._rest_s)
                self.num_dropped = server.num_dropped
            finally:
                server.close()


@pytest.fixture
def worker(run_dir: Path) -> Iterator[Served]:
    served = Served(run_dir)
    yield served
    served.stop()


@pytest.fixture
def engine(run_dir: Path) -> Iterator[FakeEngine]:
    with FakeEngine(RunDir(run_dir).worker_address(0), INCARNATION) as fake:
        yield fake


def step(number: int, engine: FakeEngine, *, incarnation: int = INCARNATION, epoch: int | None = None) -> object:
    worker_epoch = engine.epoch if epoch is None else epoch
    return plan(number, chunk(1, [256, 7, 8], [1], sample=True), incarnation=incarnation, epoch=worker_epoch)


# ---- the protocol


def test_hello_is_repeated_until_attached_and_then_plans_are_answered(engine: FakeEngine, worker: Served) -> None:
    hello, _ = engine.receive(WorkerHello)
    again, _ = engine.receive(WorkerHello)
    assert hello == again == WorkerHello(0, 99, CONFIG.digest(), "cpu")
    fingerprint = engine.attach().encoder_fingerprint
    assert len(bytes.fromhex(fingerprint)) == 16
    assert engine.attach() == WorkerAttached(99, INCARNATION, 4 * MODEL.hidden_size, fingerprint, ENCODER)
    engine.send(step(5, engine))
    output, _ = engine.receive(StepOutput)
    assert (output.engine_incarnation, output.worker_epoch, output.step) == (INCARNATION, 99, 5)
    expected = ORACLE.next_token(ORACLE.hidden_states([256, 7, 8])[-1])
    assert [sampled.token_id for sampled in output.sampled] == [expected]
    engine.send(Shutdown(INCARNATION))
    assert worker.exit_status() == 0


def test_an_engine_that_comes_later_or_again_is_found(run_dir: Path) -> None:
    worker = Served(run_dir)
    try:
        with FakeEngine(RunDir(run_dir).worker_address(0), INCARNATION) as first:
            first.receive(WorkerHello)
        with FakeEngine(RunDir(run_dir).worker_address(0), INCARNATION + 1) as second:
            assert second.attach().engine_incarnation == INCARNATION + 1
            second.send(step(1, second, incarnation=INCARNATION + 1))
            second.receive(StepOutput)
            second.send(Shutdown(INCARNATION + 1))
            assert worker.exit_status() == 0
    finally:
        worker.stop()


def test_messages_for_others_are_dropped(engine: FakeEngine, worker: Served) -> None:
    engine.receive(WorkerHello)
    engine.send(step(1, engine))  # not attached yet
    engine.send(Shutdown(INCARNATION))
    engine.attach()
    engine.send(step(2, engine, incarnation=INCARNATION + 1))
    engine.send(step(3, engine, epoch=98))
    engine.send(ClearCaches(INCARNATION + 1))
    engine.send(Shutdown(INCARNATION + 1))
    engine.send(step(4, engine))
    assert engine.receive(StepOutput)[0].step == 4
    engine.send(Shutdown(INCARNATION))
    assert worker.exit_status() == 0
    assert worker.num_dropped == 6


def test_garbage_is_dropped_and_the_next_plan_is_served(engine: FakeEngine, worker: Served) -> None:
    engine.attach()
    body = msgspec.msgpack.encode(["StepPlan", INCARNATION, -1])
    garbage = [[b""], [b"x", b"y"], [b"mmc\x01", b"\xc1"], [b"mmc\x02", body], [b"mmc\x01", body]]
    for frames in garbage:
        engine.send_frames(*frames)
    engine.send(step(1, engine))
    assert engine.receive(StepOutput)[0].step == 1
    engine.send(Shutdown(INCARNATION))
    assert worker.exit_status() == 0
    assert worker.num_dropped == len(garbage)


def test_a_repeated_attach_is_answered_and_keeps_the_caches(engine: FakeEngine, worker: Served) -> None:
    engine.attach()
    engine.send(step(1, engine))
    engine.receive(StepOutput)
    engine.attach()
    more = plan(2, chunk(1, [9], [1], computed=3), incarnation=INCARNATION, epoch=engine.epoch)
    engine.send(more)
    assert engine.receive(StepOutput)[0].step == 2
    engine.send(ClearCaches(INCARNATION))
    engine.send(more)
    assert engine.receive(StepFailed)[0].error.code == "invariant_error"


def test_another_engine_ends_the_worker(engine: FakeEngine, worker: Served) -> None:
    engine.attach()
    engine.send(Attach(INCARNATION + 1))
    assert worker.exit_status() == ENGINE_GONE


def test_an_engine_that_closes_ends_a_rest(run_dir: Path) -> None:
    engine = FakeEngine(RunDir(run_dir).worker_address(0), INCARNATION)
    worker = Served(run_dir, rest_s=10 * DEADLINE_S)
    engine.attach()
    engine.close()
    assert worker.exit_status() == ENGINE_GONE


def test_a_rest_lasts_until_something_is_due_or_the_process_is_to_stop(
    run_dir: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    hello = WorkerHello(0, 99, CONFIG.digest(), "cpu")
    runner = ModelRunner(CONFIG, rank=0, device=torch.device("cpu"))
    with StatsPublisher(RunDir(run_dir).stats_page, RoleName("worker")) as page:
        server = WorkerServer(runner, hello, RunDir(run_dir).worker_address(0), page, clock=clock)

        def turns_of_a_minute() -> int:
            sleeper, end = Sleeper(clock), clock.now + 60
            with monkeypatch.context() as patch:
                patch.setattr(server, "_poller", sleeper)
                server.run(lambda: clock.now >= end)
            return sleeper.num_waits

        try:
            assert turns_of_a_minute() <= 60 / HELLO_S + 1
            monkeypatch.setattr(server, "_engine", INCARNATION)
            assert turns_of_a_minute() <= 60 / REST_S + 1
            is_stopped = os.eventfd(1)  # as after a signal
            server.wake_on(mock.Mock(fileno=lambda: is_stopped))
            asked = iter([False, True])
            server.run(lambda: next(asked), rest_s=10 * DEADLINE_S)
            os.close(is_stopped)
        finally:
            server.close()


def test_a_stop_during_a_step_comes_after_its_answer(
    engine: FakeEngine, worker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = ModelRunner.execute

    def stop_and_execute(self: ModelRunner, *args: Any) -> Any:
        worker.ask_to_stop()
        return execute(self, *args)

    monkeypatch.setattr(ModelRunner, "execute", stop_and_execute)
    engine.attach()
    engine.send(step(1, engine))
    assert engine.receive(StepOutput)[0].step == 1
    assert worker.exit_status() == 0


def test_an_engine_that_reads_nothing_ends_the_worker(
    engine: FakeEngine, worker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.attach()

    def refuse(self: object, message: object, payload: object = ()) -> None:
        raise ChannelFull("the peer does not read")

    monkeypatch.setattr(Dialer, "send", refuse)
    engine.send(step(1, engine))
    assert worker.exit_status() == ENGINE_GONE


@pytest.mark.parametrize(("rank", "device"), [(2, "cpu"), (0, "cuda:77")])
def test_what_cannot_be_served_is_status_1(run_dir: Path, rank: int, device: str) -> None:
    msgspec.structs.replace(CONFIG, device=device).save(RunDir(run_dir).config)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert main(run_dir, 0, rank) == 1
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
            signal.signal(number, handler)


def test_devices_are_chosen_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="CUDA devices"):
        choose_device(f"cuda:{torch.cuda.device_count()}")


# ---- a process of its own


@contextmanager
def worker_process(run_dir: Path, rank: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    program = """
import pathlib, sys
from mmcached.worker.server import main
sys.exit(main(pathlib.Path(sys.argv[1]), 0, int(sys.argv[2])))
"""
    command = [sys.executable, "-c", program, str(run_dir), str(rank)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_serves_inline_items_and_ends_on_shutdown(run_dir: Path, engine: FakeEngine) -> None:
    """Whoever has its answer finds on the page what it has counted for it."""
    CONFIG.save(RunDir(run_dir).config)
    page = RunDir(run_dir).stats_page
    with StatsPage.create(page), StatsPageReader(page) as figures, worker_process(run_dir) as process:
        hello, _ = engine.receive(WorkerHello)
        assert (hello.rank, hello.config_digest, hello.device) == (1, CONFIG.digest(), "cpu")
        engine.attach()
        frames = inline_frames(IMAGE)
        item = EncodeItem("k", "k", 6, Inline(0, len(frames)))
        engine.send_frames(b"no message at all")
        engine.send(plan(1, encode=[item], incarnation=INCARNATION, epoch=hello.worker_epoch), frames)
        output, payload = engine.receive(StepOutput)
        twin = ModelRunner(CONFIG, rank=0, device=torch.device("cpu"))
        expected, _ = twin.execute(plan(1, encode=[item]), frames)
        assert isinstance(expected, StepOutput)
        assert output.digest == expected.digest
        assert payload == []
        assert stats_of(figures.read(), RoleName("worker", 0, 1), WorkerStats).items_copied == 1
        engine.send(Shutdown(INCARNATION))
        assert process.wait(DEADLINE_S) == 0


def test_sigterm_ends_an_attached_process_with_status_0(run_dir: Path, engine: FakeEngine) -> None:
    CONFIG.save(RunDir(run_dir).config)
    with worker_process(run_dir) as process:
        engine.attach()
        engine.send(step(1, engine))
        engine.receive(StepOutput)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
