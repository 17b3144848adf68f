"""The engine server (P1) schedules steps, sends their plans to the workers, and commits what these have computed.

    frontend <==DEALER (frontend_connection)== EngineServer ==(worker_group) ROUTER workers-<i>.sock==> workers 0 … N-1

One thread, one loop, one step in flight. It owns one entry of the ring: its workers read under its leases, and it alone
gives leases back. It never touches tensor bytes, so it imports no torch. What a peer sends wrong is logged or answered;
what contradicts the scheduler's tables ends the process, before anything of that step is answered.

After a death:
    frontend   its requests end; its leases are void; all caches stay; an entry of the new ring, workers attach anew;
               the same when it lives and has dropped this engine
    worker     the step in flight is void; all caches are cleared; requests start over at token 0 when the rank is back,
               those of that step one by one; a request that kills workers alone fails
    step hung  past its deadline this process ends, and with it the group: nothing is taken from a living reader
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import structlog
import zmq

from mmcached.engine.encoder.worker_check import check_encoder_caches
from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.held_content import HeldContent
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.kv_event_publisher import KVEventPublisher, kv_event_publisher_from_config
from mmcached.engine.server.leases import HeldLeases
from mmcached.engine.server.poisonous_requests import PoisonousRequests
from mmcached.engine.server.probes import EngineProbes
from mmcached.engine.server.step_results import StepResults
from mmcached.engine.server.step_runner import StepRunner
from mmcached.engine.server.stored_outputs import StoredOutputs, contact
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.engine.steps.request import Request
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheMiss,
    ChannelFull,
    ErrorInfo,
    InvariantError,
    MmcachedError,
    PoisonousRequest,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_from_wire,
    error_to_wire,
)
from mmcached.wire.handle import Handle
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.parts import Barrier
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.turns import REST_S, Guard, TurnShare, longest_rest_s, places
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.sockets.channels import RouterChannel
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import EncoderCacheStats, EngineStats, RoleName

log = structlog.get_logger("mmcached.engine")

POLL_INTERVAL_S = 0.25
"""The longest wait while a step is computed, whose deadline is looked at."""


class EngineServer(Closeable):
    """The engine's sockets, entry, scheduler and loop: `poll`, again and again, then `close`.

    Args:
        engine_index: number of its `workers-<i>.sock`.
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
        self._incarnation = secrets.randbits(63)
        self._scheduler = Scheduler(config)
        self._requests: dict[int, Request] = {}
        self._items = ItemFrames(config)
        self._leases = HeldLeases(self._give_back)
        self._outputs = StoredOutputs(partial(contact, run_dir.path))
        self._results = Results()
        self._poisonous = PoisonousRequests(config.restart_window_s, clock=clock)
        self._share = TurnShare.of(config.limits)
        self._rest_s = longest_rest_s(config.limits)
        self._guard = Guard(ends=(InvariantError,))
        self._num_finished = 0
        self._num_steps_failed = 0
        self._num_deaths_in_steps = 0
        self._num_poisonous = 0
        self._ready_with: str | None = None  # the fingerprint that the frontend was told
        self._held = HeldContent() if config.routes_by_content else None
        with ExitStack() as stack:
            context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
            hello = to_frontend.EngineHello(engine_index, self._incarnation, config.digest())
            self._frontend = FrontendConnection(context, run_dir.engine_address, hello, clock())
            stack.callback(self._frontend.close)
            stack.enter_context(self._outputs)
            self._page = stack.enter_context(
                StatsPublisher(run_dir.stats_page, RoleName("engine", engine_index), clock=clock)
            )
            self._worker_channel: RouterChannel[received.FromWorker] = stack.enter_context(
                RouterChannel(context, run_dir.worker_address(engine_index), received.FromWorker)
            )
            self._kv_events = kv_event_publisher_from_config(context, config, run_dir.path, engine_index)
            if self._kv_events is not None:
                stack.callback(self._kv_events.close)
            self._closing = stack.pop_all()
        self._group = WorkerGroup(
            self._worker_channel, config.world_size, incarnation=self._incarnation, config_digest=config.digest()
        )
        self._steps = StepRunner(
            self._scheduler,
            self._group,
            self._leases,
            self._items,
            self._outputs,
            incarnation=self._incarnation,
            timeout_s=config.step_timeout_s,
            slow_ms=config.slow_log_ms,
            clock=clock,
        )
        self._probes = EngineProbes(self._incarnation, self._group, self._leases)
        self._poller = zmq.Poller()
        self._frontend.channel.register(self._poller)
        self._poller.register(self._worker_channel.socket, zmq.POLLIN)
        self._is_replaying = False
        if self._kv_events is not None:
            self._poller.register(self._kv_events.replay_socket, zmq.POLLIN)

    # ---- the loop

    def poll(self, timeout_s: float) -> None:
        """Serve what has come, waiting up to `timeout_s` unless a step can start; then start one if possible.

        Raises:
            InvariantError: the tables, the ranks or their caches contradict each other.
            PeerGone: a step is past its deadline.
            ConfigError: the frontend was started otherwise. After each of the three the process must end.
        """
        ready = dict(self._poller.poll(math.ceil(self._wait_s(timeout_s) * 1000)))
        if self._worker_channel.socket in ready:
            self._serve_workers()
        if self._frontend.channel.socket in ready:
            self._serve_frontend()
        self._frontend.keep(self._clock())
        self._send_ready()
        self._steps.check_deadline()
        if self._steps.can_start:
            failed = self._steps.start()
            if failed is not None:
                self._end_step(failed)
        for request, error in self._scheduler.take_failed():
            self._fail(request, error)
        if self._kv_events is not None:  # late: the workers compute meanwhile
            self._guard.call("KV events", self._publish, self._kv_events)
        self._page.publish_if_due(self.stats)

    def wake_on(self, source: StopFlag) -> None:
        """End a wait as soon as `source` can be read, too."""
        self._poller.register(source.fileno(), zmq.POLLIN)

    def _wait_s(self, timeout_s: float) -> float:
        """Return the time until something is due by itself, at most `timeout_s`."""
        if self._steps.can_start or self._is_replaying:
            return 0.0
        due_s = POLL_INTERVAL_S if self._steps.has_deadline else self._rest_s
        return max(0.0, min(timeout_s, due_s, self._frontend.next_hello - self._clock()))

    def _publish(self, publisher: KVEventPublisher) -> None:
        self._is_replaying = False
        self._tell_of_caches()
        self._is_replaying = publisher.serve_replay()

    def _tell_of_caches(self) -> None:
        """Publish what has changed in the prefix cache, and tell the frontend of what it routes by."""
        events = self._scheduler.kv_cache_manager.take_events()
        if self._held is not None:
            is_shared = self._config.encoder_cache_scope == "shared"
            self._held.note(events, self._scheduler.encoder_cache_manager.ready_contents() if is_shared else set())
            if self._ready_with is not None:
                self._held.tell(self._frontend.channel.send)
        if self._kv_events is not None:
            self._kv_events.publish(events)

    def close(self) -> None:
        """End the workers, give up the entry, close the sockets. A second call does nothing."""
        if self._worker_channel.socket.closed:
            return
        self._group.send_all(to_worker.Shutdown(self._incarnation))
        self._closing.close()

    # ---- the frontend

    def _serve_frontend(self) -> None:
        for _ in self._share:
            try:
                received_now = self._frontend.channel.try_receive()
            except RemoteProtocolError as error:
                log.warning("bad message from the frontend", reason=str(error))
                continue
            if received_now is None:
                return
            message, payload = received_now
            if isinstance(message, received.Refused):
                raise error_from_wire(message.error)
            fault = self._guard.call("message of the frontend", self._handle_frontend, message, payload)
            if fault is not None and isinstance(message, received.AddRequest):
                self._scheduler.abort(message.request_id)
                self._end_with(message.request_id, fault)

    def _handle_frontend(self, message: received.FromFrontend, payload: list[Frame]) -> None:
        match message:
            case received.Ring():
                former = self._frontend.entry
                if self._frontend.on_ring(message):
                    self._start_over_with_frontend()
                elif self._frontend.entry is not former:
                    self._group.attach_all(self._frontend.entry)
                self._ready_with = None
            case received.ReaderAttached():
                self._frontend.on_reader_attached(message)
            case Barrier():
                self._frontend.on_barrier(message)
            case received.Detached():
                self._frontend.on_detached(message)
            case received.AddRequest():
                self._add(message, payload)
            case received.AbortRequest():
                self._scheduler.abort(message.request_id)
                self._forget(message.request_id)
            case received.ProbeEngine():
                is_ours = not isinstance(message.payload, Handle) or self._frontend.receive(
                    message.payload, message.lease
                )
                if is_ours and not self._probes.start(message, payload):
                    self._frontend.send(to_frontend.EngineProbed(message.token, []))
            case received.FlushEngine():
                self._items.clear_cache()  # at once: what comes next counts on an empty one
                self._forget_outputs()
                self._scheduler.new_epoch()
                self._page.publish(self.stats)
                if self._held is not None:
                    self._tell_of_caches()
                self._frontend.send(to_frontend.EngineFlushed(message.token))

    def _start_over_with_frontend(self) -> None:
        """End the requests of a former frontend, and bring the workers to the new one's ring."""
        if self._requests:
            log.warning("another frontend: its predecessor's requests end", requests=len(self._requests))
        self._leases.forget_all()  # first: what ends now must not be given back to the new ring
        for request_id in list(self._requests):
            self._scheduler.abort(request_id)
            self._forget(request_id)
        self._items.clear()
        self._probes.take_all()
        self._group.attach_all(self._frontend.entry)

    def _forget_outputs(self) -> None:
        """Load nothing of the former epoch into the books of the next: who still needs it has it sent anew."""
        self._outputs.forget_all()
        for request in self._requests.values():
            request.outputs.clear()

    def _send_ready(self) -> None:
        fingerprint = self._group.encoder_fingerprint
        if self._frontend.is_accepted and self._group.are_all_attached and self._ready_with != fingerprint:
            self._ready_with = fingerprint
            self._frontend.send(to_frontend.EngineReady(self._config.world_size, fingerprint, self._group.encoder))
            if self._held is not None:
                self._held.forget_frontend()
                self._tell_of_caches()

    # ---- requests

    def _add(self, message: received.AddRequest, payload: list[Frame]) -> None:
        """Queue a request with its leases and items, or answer it with an error or the items that are missed."""
        request_id = message.request_id
        if request_id in self._requests:
            log.error("request came twice; the second is dropped", request_id=request_id)
            return
        try:
            missed = self._hold_leases(message)
            has_outputs = self._outputs.hold(message, self._group.encoder_fingerprint)
            self._items.add(message, payload)
            if missed or not has_outputs:
                raise CacheMiss(missed)
            self._check_room()
            request = self._make_request(message)
            self._poisonous.check(request)
            self._scheduler.add_request(request)
        except CacheMiss as miss:
            self._forget(request_id)
            self._frontend.send(to_frontend.RequestMissed(request_id, miss.mm_hashes))
        except MmcachedError as error:
            self._end_with(request_id, error)
        else:
            self._requests[request_id] = request
            self._steps.latency.arrive(request_id)
            self._results.open(request, is_streamed=message.is_streamed)

    def _check_room(self) -> None:
        limit = self._config.max_num_requests
        if len(self._requests) >= limit:
            reason = f"the engine has {len(self._requests)} requests (max_num_requests = {limit}); try again later"
            raise ServiceUnavailable(reason, field="max_num_requests", value=len(self._requests), limit=limit)

    def _hold_leases(self, message: received.AddRequest) -> list[str]:
        """Hold the leases that came; return the items whose descriptor is not for this incarnation."""
        missed = []
        for feature in message.features:
            if not isinstance(feature.payload, Handle):
                continue
            if feature.lease is None or not self._frontend.receive(feature.payload, feature.lease):
                missed.append(feature.mm_hash)
            else:
                self._leases.hold(message.request_id, feature.payload, feature.lease)
        return missed

    def _make_request(self, message: received.AddRequest) -> Request:
        return Request(
            request_id=message.request_id,
            kind=message.kind,
            prompt_token_ids=message.prompt_token_ids,
            features=message.features,
            max_tokens=message.max_tokens,
            rows=message.rows,
            tenant=message.tenant,
            priority=message.priority,
            outputs=self._outputs.tokens(message.request_id),
            store_epoch=message.store_epoch,
            takes_keys=message.takes_keys,
            rows_name=f"rows/{secrets.token_hex(16)}" if message.takes_keys and message.store_epoch else "",
        )

    def _forget(self, request_id: int) -> None:
        """Let go of all that a request held outside the scheduler; of its leases as soon as nobody reads."""
        self._requests.pop(request_id, None)
        self._steps.latency.forget(request_id)
        self._items.forget(request_id)
        self._results.forget(request_id)
        self._outputs.forget(request_id)
        self._leases.end_request(request_id)

    def _fail(self, request: Request, error: MmcachedError) -> None:
        """Answer a request, which the scheduler has ended, with an error; one that lacks an item is sent again."""
        if isinstance(error, CacheMiss):
            self._miss(request)
            return
        log.warning("request failed", request_id=request.request_id, code=error.code)
        if isinstance(error, PoisonousRequest):
            self._num_poisonous += 1
            self._poisonous.add(request, error)
        self._end_with(request.request_id, error)

    def _miss(self, request: Request) -> None:
        """Have a request sent again that lacks an output; if part of it has been answered, its client has to."""
        if request.num_tokens > request.num_prompt_tokens or request.num_emitted or request.num_rows_delivered:
            reason = "the encoder's output of an image was lost while it was computed; try again"
            self._end_with(request.request_id, RequestAborted(reason))
        else:
            self._forget(request.request_id)
            self._frontend.send(to_frontend.RequestMissed(request.request_id, []))

    def _end_with(self, request_id: int, error: MmcachedError) -> None:
        self._forget(request_id)
        self._page.publish(self.stats)
        self._frontend.send(to_frontend.RequestFailed(request_id, error_to_wire(error)))

    # ---- workers

    def _serve_workers(self) -> None:
        """Take in the workers' share of a turn; ZeroMQ takes from each of them in rotation."""
        for _ in self._share:
            raw = self._worker_channel.receive_raw()
            if raw is None:
                return
            peer, frames = raw
            try:
                message, payload = self._worker_channel.decode(frames)
            except RemoteProtocolError as error:
                log.warning("bad message from a worker", peer=peer.hex(), reason=str(error))
                continue
            match message:
                case received.WorkerHello():
                    self._guard.call("hello of a worker", self._on_worker_hello, peer, message)
                case received.WorkerAttached():
                    self._guard.call("word of a worker", self._on_worker_attached, message)
                case received.StepOutput() | received.StepFailed():
                    # Not guarded: a step that is committed by half contradicts the tables.
                    finished = self._steps.take(message, payload)
                    if finished is not None:
                        self._end_step(finished)
                case received.WorkerProbed():
                    self._guard.call("word of a worker", self._on_worker_probed, message)

    def _on_worker_hello(self, peer: bytes, message: received.WorkerHello) -> None:
        accepted = self._group.hello(peer, message)
        if accepted is None:
            return
        link, has_replaced = accepted
        if self._frontend.is_ring_known and not link.is_attached:
            self._group.attach(link, self._frontend.entry)
        if has_replaced:
            fatal = self._steps.computed_by(link.rank)
            requests = [] if fatal is None else fatal.request_ids()
            log.warning("rank replaced: all caches start over", rank=link.rank, was_computing=requests)
            self._start_over_with_workers()
            if fatal is not None:
                self._num_deaths_in_steps += 1
                self._scheduler.blame_death(fatal)

    def _on_worker_attached(self, message: received.WorkerAttached) -> None:
        link = self._group.attached(message, self._frontend.entry)
        if link is None:
            return
        log.info("worker attached", rank=link.rank, device=link.device)
        if link.former_epoch is not None:
            # It holds the byte of its rank: the former process is certified dead and reads nothing any more.
            self._leases.worker_died(link.former_epoch)
            link.former_epoch = None
        if self._group.are_all_attached:
            self._frontend.close_former_entries()

    def _start_over_with_workers(self) -> None:
        """Clear all caches, since a rank has lost its own; requests start at token 0."""
        self._scheduler.reset()
        self._steps.void()
        for token in self._probes.take_all():
            self._frontend.send(to_frontend.EngineProbed(token, []))
        self._group.send_all(to_worker.ClearCaches(self._incarnation))

    def _on_worker_probed(self, message: received.WorkerProbed) -> None:
        if message.engine_incarnation != self._incarnation:
            return
        checksums = self._probes.answered(message)
        if checksums is not None:
            self._frontend.send(to_frontend.EngineProbed(message.token, checksums))

    # ---- steps

    def _end_step(self, results: StepResults) -> None:
        """Commit a step that all ranks have run, or withdraw it. Raises InvariantError if they disagree."""
        error = results.failure()
        if error is not None:
            self._withdraw(results, error)
        else:
            self._commit(results)

    def _commit(self, results: StepResults) -> None:
        step, (output, payload) = results.step, results.answer()
        self._results.gather(output, payload)
        sampled = {entry.request_id: entry.token_id for entry in output.sampled}
        finished = self._scheduler.commit(step, sampled, results.prefix_report(), output.missing)
        self._steps.latency.commit(step)
        if self._config.debug_check_workers:
            table = self._scheduler.encoder_cache_manager
            check_encoder_caches(table.ready_keys(), table.lingering_keys(), results.encoder_keys(), step=step.step_id)
        if self._held is not None:  # first: who is answered may go on with what has just been computed
            self._guard.call("what the caches hold", self._tell_of_caches)
        answers = []
        for request in finished:
            if request.request_id in self._requests:
                self._num_finished += 1
                answers.append(self._results.take_answer(request))
                self._forget(request.request_id)
        self._page.publish(self.stats)
        for message, frames in answers:
            self._frontend.send(message, frames)
        self._send_streams(step, output)  # those that were just answered are streamed no more

    def _send_streams(self, step: ScheduledStep, output: received.StepOutput) -> None:
        """Send what a committed step has added to streamed generations."""
        if not self._results.has_streams:
            return
        sampled = (chunk.request for chunk in step.chunks if chunk.sample)
        message, frames = self._results.unsent(sampled, dict.fromkeys(made.request_id for made in output.rows))
        if not message.streams and not message.rows:
            return
        try:
            self._frontend.channel.send(message, frames)
        except ChannelFull as error:
            log.warning("tokens and rows wait for the next step", reason=str(error))
        else:
            self._results.mark_sent(message)

    def _withdraw(self, results: StepResults, error: ErrorInfo) -> None:
        step = results.step
        log.error("step failed", step=step.step_id, requests=step.request_ids(), reason=error.message)
        self._num_steps_failed += 1
        self._scheduler.withdraw(step, results.prefix_report())
        cause = error_from_wire(error)
        lost = self._that_load(step, cause.mm_hashes) if isinstance(cause, CacheMiss) else []
        if not lost:
            self._scheduler.blame_failure(step, cause)
        for request, mm_hash in lost:
            self._outputs.drop(self._group.encoder_fingerprint, mm_hash, request.tenant)
            self._scheduler.abort(request.request_id)
            self._miss(request)

    def _that_load(self, step: ScheduledStep, mm_hashes: Sequence[str]) -> list[tuple[Request, str]]:
        """Return the open requests of a step that have one of these items from the store, with that item."""
        lost = {}
        for request in step.requests():
            for feature in request.features:
                if feature.has_output and feature.mm_hash in mm_hashes and request.request_id in self._requests:
                    lost[request.request_id] = request, feature.mm_hash
        return list(lost.values())

    # ---- looking in

    def stats(self) -> EngineStats:
        return EngineStats(
            steps=self._steps.num_steps,
            steps_failed=self._num_steps_failed,
            step_latency=self._steps.latency.step.histogram(),
            queue_latency=self._steps.latency.queue.histogram(),
            deaths_in_steps=self._num_deaths_in_steps,
            poisonous_requests=self._num_poisonous,
            faults=self._guard.num_faults,
            requests_running=self._scheduler.num_running,
            requests_waiting=self._scheduler.num_waiting,
            requests_finished=self._num_finished,
            preemptions=self._scheduler.num_preemptions,
            leases_held=len(self._leases) + len(self._outputs),
            slow_log=SlowLog.of(self._steps.latency.slow.last),
            kv=self._scheduler.kv_cache_manager.stats(),
            encoder=self._encoder_stats(),
        )

    def _encoder_stats(self) -> EncoderCacheStats:
        """Return the encoder cache's figures, in bytes too as soon as a worker has measured an embedding."""
        stats, embedding_bytes = self._scheduler.encoder_cache_manager.stats(), self._group.embedding_bytes
        return msgspec.structs.replace(
            stats,
            bytes_used=stats.embeds_used * embedding_bytes,
            bytes_total=stats.embeds_total * embedding_bytes,
            step_bytes=self._scheduler.caches.encoder_budget.compute_budget * embedding_bytes,
        )

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()
        self._leases.check_integrity()
        if len(self._results) != len(self._requests):
            raise InvariantError(f"results of {len(self._results)} requests, of which {len(self._requests)} are open")

    def _give_back(self, handle: Handle) -> None:
        self._frontend.give_back(handle)


def main(run_dir: Path, engine_index: int) -> int:
    """Run one engine of a run directory until SIGTERM; return the exit status (1: it had to end, the log says why)."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    with stop, EngineServer(directory, config, engine_index) as engine:
        engine.wake_on(stop)
        try:
            while not stop.is_set:
                engine.poll(REST_S)
        except MmcachedError as error:
            log.error("the engine ends", code=error.code, reason=str(error))
            return 1
        except Exception as error:
            log.error("the engine ends", code=type(error).__name__, where=places(error))
            return 1
    return 0
