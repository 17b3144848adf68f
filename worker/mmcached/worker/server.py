"""Worker process: sends hellos until its engine attaches it, then executes plans, one at a time.

    waiting  ── WorkerHello every HELLO_S ──>  engine
             <── Attach ──
    attached ── WorkerAttached ──>             from now on it accepts plans of this engine and this worker epoch
             <── StepPlan ── StepOutput | StepFailed ──>
             <── ProbeWorker ── WorkerProbed ──>
             <── ClearCaches, Shutdown, WorkerRefused ──

A message of another engine, and any message except `Attach` before the first `Attach`, is dropped. A frame that does
not validate is logged and dropped.

Exit status: 0 after `Shutdown` or SIGTERM (the running step is finished and answered first); `ENGINE_GONE` if the
engine's connection is closed, or another engine answers. The caches die with the process: a worker serves one engine
incarnation.

Invariant: no wait exceeds `rest_s`, except a step itself and the linger of the closing socket. A message, the engine's
death and a signal end it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import logging
import math
import secrets
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ChannelFull, ConfigError, MmcachedError, RemoteProtocolError
from mmcached.wire.messages.engine import WorkerAttached, WorkerHello, WorkerProbed
from mmcached.wire.messages.worker import (
    Attach,
    ClearCaches,
    FromEngineToWorker,
    ProbeWorker,
    Shutdown,
    StepPlan,
    WorkerRefused,
)
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.turns import REST_S, longest_rest_s
from mmcached.wire.sockets.dialer import Dialer
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.sockets.sending import LINGER_S
from mmcached.wire.stats import RoleName
from mmcached.worker.devices import choose_device
from mmcached.worker.steps.runner import ModelRunner

HELLO_S = 0.5
REFUSED = 1
ENGINE_GONE = 3
"""Exit status: the worker has lost its engine and should be restarted."""

_logger = logging.getLogger(__name__)


def main(run_dir: Path, engine_index: int, rank: int) -> int:
    """Run a worker in the main thread of a dedicated process until it is told to stop; return the exit status.

    The status is 1 for an invalid configuration, otherwise see above.
    """
    paths = RunDir(run_dir)
    stop = StopFlag()
    try:
        config = ServiceConfig.load(paths.config)
        if not 0 <= rank < config.world_size:
            raise ConfigError("rank", rank, f"must be below world_size = {config.world_size}")
        device = choose_device(config.device)
        runner = ModelRunner(config, rank=rank, device=device, run_dir=run_dir)
        _ = runner.measured  # before the first hello: an engine waits for workers that have said hello
        _give_back_memory()
    except ConfigError as error:
        _logger.error("worker %d: %s", rank, error)
        stop.close()
        return 1
    hello = WorkerHello(rank, secrets.randbits(63), config.digest(), str(device))
    page = StatsPublisher(paths.stats_page, RoleName("worker", engine_index, rank))
    with stop, page, runner:
        server = WorkerServer(runner, hello, paths.worker_address(engine_index), page)
        try:
            server.wake_on(stop)
            status = server.run(lambda: stop.is_set, rest_s=longest_rest_s(config.limits))
        finally:
            server.close()
    # Without it the interpreter's exit collects garbage among all of torch's objects: 0.4 s of each restart.
    gc.freeze()
    return status


def _give_back_memory() -> None:
    """Return the memory freed after imports and weight initialization to the system, about 10 MiB, if libc can."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


class WorkerServer:
    """Main loop around one runner and one socket. Not thread-safe.

    Args:
        hello: identifies this worker; its epoch is new for each server.
        address: of the engine's socket for workers; the engine may start later.
        page: where the runner's statistics are published, also before each answer.
    """

    def __init__(
        self,
        runner: ModelRunner,
        hello: WorkerHello,
        address: str,
        page: StatsPublisher,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._page = page
        self._hello = hello
        self._clock = clock
        self._dialer: Dialer[FromEngineToWorker] = Dialer(address, FromEngineToWorker)
        self._poller = select.poll()
        self._poller.register(self._dialer.fileno(), select.POLLIN)
        self._num_losses = 0  # of former engines
        self._engine: int | None = None  # the incarnation to which this worker is attached
        self._next_hello_s = clock()
        self._status: int | None = None
        self.num_dropped = 0

    def wake_on(self, source: StopFlag) -> None:
        """Also end a wait as soon as `source` is readable."""
        self._poller.register(source.fileno(), select.POLLIN)

    def run(self, should_stop: Callable[[], bool] = lambda: False, *, rest_s: float = REST_S) -> int:
        """Serve until told to stop, shut down, or without an engine; return the exit status.

        `should_stop` is called between messages, so a running step is finished and answered; waits last `rest_s` at
        most.
        """
        while self._status is None and not should_stop():
            self._page.publish_if_due(self._runner.stats)
            self._say_hello_if_due()
            self._poller.poll(math.ceil(self._wait_s(rest_s) * 1000))
            try:
                received = self._dialer.try_receive()
            except RemoteProtocolError as error:
                self._drop(str(error))
                continue
            if received is None:
                # Only when no message is left: those that an engine sent before it ended are still handled.
                self._look_for_engine()
            else:
                self._handle(*received)
        return self._status or 0

    def close(self) -> None:
        self._dialer.flush(LINGER_S)
        self._dialer.close()

    def _handle(self, message: FromEngineToWorker, frames: list[Frame]) -> None:
        if isinstance(message, Attach):
            self._attach(message)
        elif isinstance(message, WorkerRefused):
            _logger.error("the engine refuses this worker: %s", message.error.message)
            self._status = REFUSED
        elif self._engine is None or message.engine_incarnation != self._engine:
            self._drop(
                f"{type(message).__name__} of engine {message.engine_incarnation}, which this worker is not attached to"
            )
        else:
            match message:
                case StepPlan():
                    self._execute(message, frames)
                case ProbeWorker():
                    self._probe(message, frames)
                case ClearCaches():
                    self._runner.clear()
                case Shutdown():
                    self._status = 0

    def _execute(self, plan: StepPlan, frames: list[Frame]) -> None:
        if plan.worker_epoch != self._hello.worker_epoch:
            self._drop(f"plan {plan.step} for worker epoch {plan.worker_epoch}")
            return
        answer, payload = self._runner.execute(plan, frames)
        self._page.publish(self._runner.stats)
        self._send(answer, payload)
        self._runner.save_outputs()

    def _probe(self, probe: ProbeWorker, frames: list[Frame]) -> None:
        """Answer the checksum of a probe's item as this worker reads it; on failure, the error code."""
        if probe.worker_epoch != self._hello.worker_epoch:
            self._drop(f"probe {probe.token} for worker epoch {probe.worker_epoch}")
            return
        try:
            record = self._runner.read(probe.payload, frames, mm_hash="probe")
            checksum = hashlib.blake2b(record["probe"].numpy().tobytes(), digest_size=16).hexdigest()
            del record  # before the answer, which says that the read has ended
        except Exception as error:
            checksum = error.code if isinstance(error, MmcachedError) else "not a probe"
        self._send(WorkerProbed(probe.engine_incarnation, self._hello.worker_epoch, probe.token, checksum), [])

    def _attach(self, attach: Attach) -> None:
        """Attach, or repeat the answer to an earlier `Attach`. Idempotent."""
        if self._engine not in (None, attach.engine_incarnation):
            self._leave(f"engine {attach.engine_incarnation} answers in place of {self._engine}")
            return
        if self._engine is None:
            self._engine = attach.engine_incarnation
            self._num_losses = self._dialer.num_losses
        fingerprint = self._runner.encoder_fingerprint
        form, nbytes = self._runner.measured.form, self._runner.measured.embedding_bytes
        self._send(WorkerAttached(self._hello.worker_epoch, self._engine, nbytes, fingerprint, form), [])

    def _wait_s(self, rest_s: float) -> float:
        if self._dialer.has_read:
            return 0.0
        if not self._dialer.is_connected:
            return min(rest_s, self._dialer.retry_s())
        return rest_s if self._engine is not None else max(0.0, min(rest_s, self._next_hello_s - self._clock()))

    def _say_hello_if_due(self) -> None:
        if self._engine is None and self._dialer.is_connected and self._clock() >= self._next_hello_s:
            self._next_hello_s = self._clock() + HELLO_S
            with suppress(ChannelFull):  # the engine does not read
                self._dialer.send(self._hello)

    def _send(self, message: object, payload: list[Frame]) -> None:
        try:
            self._dialer.send(message, payload)
        except ChannelFull as error:
            self._leave(f"cannot answer: {error}")

    def _look_for_engine(self) -> None:
        if self._engine is not None and self._dialer.num_losses != self._num_losses:
            # Local sockets do not break by themselves: the process that accepted this connection closed it, or died.
            self._leave("the engine has closed the connection")

    def _leave(self, reason: str) -> None:
        _logger.warning("worker %d exits: %s", self._hello.rank, reason)
        if self._status is None:
            self._status = ENGINE_GONE

    def _drop(self, reason: str) -> None:
        self.num_dropped += 1
        _logger.warning("worker %d dropped a message: %s", self._hello.rank, reason)
