"""P1: the process that books. It schedules, leases, tells the workers what to compute, and commits what they have done.

    frontend <==DEALER== EngineServer ==ROUTER workers-<i>.sock==> workers 0 … N-1

One thread, one loop, one step in flight. It owns one row of the ring: its workers read under its leases, and it alone
gives leases back. It never touches tensor bytes (items in the ring stay there; inline items are forwarded as the frames
that came), so it imports no torch. What a peer sends wrong is logged or answered; what contradicts the books ends the
process.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from mmcached.engine.answers import Answers
from mmcached.engine.leases import LeaseBook
from mmcached.engine.plan import InlineItems, build_plan, leases_read
from mmcached.engine.request import Request
from mmcached.engine.scheduler import ScheduledStep, Scheduler
from mmcached.engine.worker_links import StepResults, WorkerLink, WorkerLinks
from mmcached.shm import ReaderRow
from mmcached.wire.channels import DealerChannel, Frame, RouterChannel
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    ChannelFull,
    ErrorInfo,
    InvariantError,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    error_to_wire,
)
from mmcached.wire.handle import Handle
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.paths import RunDir
from mmcached.wire.signals import StopFlag
from mmcached.wire.stats import EngineStats, WorkerStats

logger = logging.getLogger("mmcached.engine")

POLL_INTERVAL_S = 0.25
HELLO_INTERVAL_S = 0.5


class EngineServer:
    """The engine's sockets, row, books and loop. Call `poll` until told to stop, then `close`.

    Args:
        engine_index: which `workers-<i>.sock` is its.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        run_dir: RunDir,
        config: ServiceConfig,
        engine_index: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        self._nonce = secrets.randbits(63)
        self._row: ReaderRow | None = None
        self._is_ring_known = False
        self._is_row_accepted = False
        self._was_ready_told = False
        self._next_hello = clock()
        self._leases = LeaseBook(self._give_back)
        self._scheduler = Scheduler(config)
        self._inline = InlineItems()
        self._answers = Answers()
        self._workers = WorkerLinks(config.world_size)
        self._worker_stats: dict[int, WorkerStats] = {}
        self._step: ScheduledStep | None = None
        self._results: StepResults | None = None
        self._num_steps = 0
        self._num_finished = 0
        self._requests: dict[int, Request] = {}
        with ExitStack() as stack:
            context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
            self._frontend: DealerChannel[received.FromFrontend] = stack.enter_context(
                DealerChannel(context, run_dir.engine_address, received.FromFrontend)
            )
            self._worker_channel: RouterChannel[received.FromWorker] = stack.enter_context(
                RouterChannel(context, run_dir.worker_address(engine_index), received.FromWorker)
            )
            self._closing = stack.pop_all()
        self._poller = zmq.Poller()
        self._poller.register(self._frontend.socket, zmq.POLLIN)
        self._poller.register(self._worker_channel.socket, zmq.POLLIN)

    # ---- the loop

    def poll(self, timeout_s: float) -> None:
        """Serve what has come, waiting up to `timeout_s` unless a step can start; then start one if possible.

        Raises:
            InvariantError: the books or the ranks contradict each other; the process must end.
            PeerGone: a worker was lost or did not finish its step in time; the process must end.
        """
        wait_s = 0.0 if self._can_start_step else timeout_s
        ready = dict(self._poller.poll(max(0, round(wait_s * 1000))))
        if self._frontend.socket in ready:
            self._serve_frontend()
        if self._worker_channel.socket in ready:
            self._serve_workers()
        self._keep_contact()
        if self._can_start_step:
            self._start_step()

    def close(self) -> None:
        """Tell the workers to end, give up the row, close the sockets."""
        for link in self._workers.in_rank_order():
            self._tell_worker(link, to_worker.Shutdown(self._nonce))
        self._closing.close()
        if self._row is not None:
            self._row.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _can_start_step(self) -> bool:
        return self._step is None and self._was_ready_told and self._scheduler.has_work()

    # ---- attaching: frontend first, then the ring's row, then the workers

    def _keep_contact(self) -> None:
        """Say hello until the frontend has announced its ring; look at the step's deadline."""
        now = self._clock()
        if not self._is_ring_known and now >= self._next_hello:
            self._next_hello = now + HELLO_INTERVAL_S
            self._tell_frontend(to_frontend.EngineHello(self._nonce, self._config.digest()))
        if self._results is not None and now > self._results.deadline:
            missing = self._results.missing_ranks
            raise PeerGone(
                f"step {self._results.step}: no output of rank(s) {missing} in {self._config.step_timeout_s} s"
            )

    def _on_ring(self, message: received.Ring) -> None:
        """Take a row of the announced ring. A repeated announcement changes nothing."""
        if self._is_ring_known:
            return
        if message.announcement is None:
            self._is_row_accepted = True
        else:
            self._row = ReaderRow.attach(message.announcement)
            self._tell_frontend(to_frontend.RowHello(message.announcement.epoch, self._row.row, self._row.nonce))
        self._is_ring_known = True
        self._attach_workers()

    def _on_row_attached(self, message: received.RowAttached) -> None:
        row = self._row
        if row is not None and (message.row, message.nonce) == (row.row, row.nonce):
            self._is_row_accepted = True
            self._tell_ready()

    def _on_worker_hello(self, peer: bytes, message: received.WorkerHello) -> None:
        if message.config_digest != self._config.digest():
            logger.error("rank %d has configuration %s: refused", message.rank, message.config_digest)
            return
        former = self._workers.current(message.rank)
        if former is not None and former.is_attached and former.worker_epoch != message.worker_epoch:
            raise PeerGone(f"rank {message.rank} was replaced by another process: its KV cache is gone")
        link = self._workers.hello(peer, message)
        if self._is_ring_known and not link.is_attached:
            self._attach(link)

    def _attach_workers(self) -> None:
        for link in self._workers.in_rank_order():
            self._attach(link)

    def _attach(self, link: WorkerLink) -> None:
        row = self._row
        if row is None:
            self._tell_worker(link, to_worker.Attach(self._nonce, None, 0, 0))
        else:
            self._tell_worker(link, to_worker.Attach(self._nonce, row.announcement, row.row, row.nonce))

    def _on_worker_attached(self, message: received.WorkerAttached) -> None:
        link = self._workers.by_epoch(message.worker_epoch)
        if link is not None and message.engine_nonce == self._nonce:
            link.is_attached = True
            logger.info("rank %d is attached, on %s", link.rank, link.device)
            self._tell_ready()

    def _tell_ready(self) -> None:
        if self._is_row_accepted and self._workers.are_all_attached and not self._was_ready_told:
            self._was_ready_told = True
            self._tell_frontend(to_frontend.EngineReady(self._config.world_size))

    # ---- requests

    def _serve_frontend(self) -> None:
        while True:
            try:
                received_now = self._frontend.try_receive()
            except RemoteProtocolError as error:
                logger.warning("frontend: %s", error)
                continue
            if received_now is None:
                return
            message, payload = received_now
            match message:
                case received.Ring():
                    self._on_ring(message)
                case received.RowAttached():
                    self._on_row_attached(message)
                case received.AddRequest():
                    self._add(message, payload)
                case received.AbortRequest():
                    self._abort(message.request_id)
                case received.GetEngineStats():
                    self._tell_frontend(to_frontend.EngineStatsReply(message.token, self.stats()))

    def _add(self, message: received.AddRequest, payload: list[Frame]) -> None:
        """Take a request with its leases; items whose descriptor is not for this incarnation are missed."""
        if message.request_id in self._requests:
            logger.error("request %d came twice; the second is dropped", message.request_id)
            return
        missed = []
        for feature in message.features:
            if not isinstance(feature.payload, Handle):
                continue
            if self._row is None or feature.lease is None or not self._row.owns(feature.payload, feature.lease):
                missed.append(feature.mm_hash)
            else:
                self._leases.hold(message.request_id, feature.payload, feature.lease)
        if missed:
            self._leases.end_request(message.request_id)
            self._tell_frontend(to_frontend.RequestMissed(message.request_id, missed))
            return
        request = Request(
            request_id=message.request_id,
            kind=message.kind,
            prompt_token_ids=message.prompt_token_ids,
            features=message.features,
            max_tokens=message.max_tokens,
            want_hidden_states=message.want_hidden_states,
            tenant=message.tenant,
            # Without kept rows, a prefix hit would leave the hidden states of the prefix missing.
            skip_reading_prefix_cache=message.want_hidden_states and not self._config.enable_tensor_prefix_cache,
        )
        try:
            self._inline.add(message, payload)
            self._scheduler.add_request(request)
        except MmcachedError as error:
            self._forget(message.request_id)
            self._tell_frontend(to_frontend.RequestFailed(message.request_id, error_to_wire(error)))
            return
        self._requests[message.request_id] = request

    def _abort(self, request_id: int) -> None:
        self._scheduler.abort(request_id)
        self._forget(request_id)

    def _forget(self, request_id: int) -> None:
        """Let go of all that a request held outside the scheduler's books; its leases as soon as nobody reads."""
        self._requests.pop(request_id, None)
        self._inline.forget(request_id)
        self._answers.forget(request_id)
        self._leases.end_request(request_id)

    # ---- steps

    def _start_step(self) -> None:
        step = self._scheduler.schedule()
        if step is None:
            return
        links = self._workers.in_rank_order()
        deadline = self._clock() + self._config.step_timeout_s
        self._step = step
        self._results = StepResults(step.step_id, self._config.world_size, deadline)
        # Booked before the first plan is sent: a fast worker's read_done may not come first.
        self._leases.reading(leases_read(step), [link.worker_epoch for link in links], step.step_id)
        for link in links:
            plan, payload = build_plan(step, self._inline, engine_nonce=self._nonce, worker_epoch=link.worker_epoch)
            self._worker_channel.send(link.peer, plan, payload)
        self._num_steps += 1

    def _serve_workers(self) -> None:
        while (raw := self._worker_channel.receive_raw()) is not None:
            peer, frames = raw
            try:
                message, payload = self._worker_channel.decode(frames)
            except RemoteProtocolError as error:
                logger.warning("worker %s: %s", peer.hex(), error)
                continue
            match message:
                case received.WorkerHello():
                    self._on_worker_hello(peer, message)
                case received.WorkerAttached():
                    self._on_worker_attached(message)
                case received.StepOutput() | received.StepFailed():
                    self._on_result(message, payload)

    def _on_result(self, result: received.StepOutput | received.StepFailed, payload: list[Frame]) -> None:
        link = self._workers.by_epoch(result.worker_epoch)
        if link is None or result.engine_nonce != self._nonce:
            return
        for done in result.read_done:
            self._leases.read_done(result.worker_epoch, done.step, done.seq)
        if isinstance(result, received.StepOutput):
            self._worker_stats[link.rank] = result.stats
        if self._results is None or result.step != self._results.step:
            return
        self._results.add(link.rank, result, payload)
        if self._results.is_complete:
            self._finish_step(self._results)

    def _finish_step(self, results: StepResults) -> None:
        step = self._step
        if step is None:
            raise InvariantError("results of a step that was not started")
        self._step = self._results = None
        failure = results.failure()
        if failure is None:
            self._commit(step, *results.answer())
        else:
            self._withdraw(step, failure.error)

    def _commit(self, step: ScheduledStep, output: received.StepOutput, payload: list[Frame]) -> None:
        for rows in output.hidden_states:
            if rows.request_id in self._requests:
                self._answers.put_hidden(rows, payload)
        for embedding in output.embeddings:
            if embedding.request_id in self._requests:
                self._answers.put_embedding(embedding, payload)
        sampled = {entry.request_id: entry.token_id for entry in output.sampled}
        for request in self._scheduler.commit(step, sampled):
            self._answer(request)

    def _withdraw(self, step: ScheduledStep, error: ErrorInfo) -> None:
        """A worker could not run the step: none of it counts, and the requests that were in it fail with the reason."""
        logger.error("step %d failed: %s", step.step_id, error.message)
        self._scheduler.withdraw(step)
        for request_id in step.request_ids():
            if request_id in self._requests:
                self._scheduler.abort(request_id)
                self._forget(request_id)
                self._tell_frontend(to_frontend.RequestFailed(request_id, error))

    def _answer(self, request: Request) -> None:
        request_id = request.request_id
        if request_id not in self._requests:
            return
        self._num_finished += 1
        if request.kind == "encode":
            tensors, frames = self._answers.take_embeddings(request_id, len(request.features))
            self._tell_frontend(to_frontend.RequestEncoded(request_id, tensors), frames)
        else:
            self._answer_generation(request)
        self._forget(request_id)

    def _answer_generation(self, request: Request) -> None:
        tensor, frames = None, list[bytes]()
        if request.want_hidden_states:
            # The last sampled token was never computed, so it has no row.
            answer = self._answers.take_hidden(request.request_id, request.num_tokens - 1)
            tensor, frames = answer.tensor(0), [bytes(answer.data)]
        message = to_frontend.RequestGenerated(
            request_id=request.request_id,
            token_ids=list(request.output_token_ids),
            finish_reason="stop" if request.finish_reason == "stop" else "length",
            num_cached_tokens=request.num_cached_tokens,
            hidden_states=tensor,
        )
        self._tell_frontend(message, frames)

    # ---- small things

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._num_steps,
            requests_running=self._scheduler.num_running,
            requests_waiting=self._scheduler.num_waiting,
            requests_finished=self._num_finished,
            preemptions=self._scheduler.num_preemptions,
            leases_held=len(self._leases),
            kv=self._scheduler.kv_cache_manager.stats(),
            encoder=self._scheduler.encoder_cache_manager.stats(),
            workers=[self._worker_stats[rank] for rank in sorted(self._worker_stats)],
        )

    def _give_back(self, handle: Handle) -> None:
        if self._row is not None:
            self._row.give_back(handle)

    def _tell_frontend(self, message: to_frontend.FromEngine, payload: Sequence[Frame] = ()) -> None:
        try:
            self._frontend.send(message, payload)
        except ChannelFull as error:
            logger.error("frontend not told %s: %s", type(message).__name__, error)

    def _tell_worker(self, link: WorkerLink, message: to_worker.FromEngineToWorker) -> None:
        try:
            self._worker_channel.send(link.peer, message)
        except (PeerGone, ChannelFull) as error:
            logger.warning("rank %d not told %s: %s", link.rank, type(message).__name__, error)


def main(run_dir: Path, engine_index: int) -> int:
    """Run one engine of a run directory until SIGTERM; return the exit status (1: a worker was lost, or a bug)."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    with EngineServer(directory, config, engine_index) as engine:
        try:
            while not stop.is_set:
                engine.poll(POLL_INTERVAL_S)
        except MmcachedError as error:
            logger.error("%s: %s", error.code, error)
            return 1
    return 0
