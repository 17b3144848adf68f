"""P0: the one process per host that clients talk to. Owns the sender cache and the ring; books no blocks, runs no
model.

    clients ==> client.sock (wire.listener) ==> Frontend <== engine.sock (engine_gate) <== engines
                                       |
                                       +-- (request_desk) generate, encode: processed items into the ring, with leases
                                       +-- (store_desk)   what clients put, in a ring of their own

One loop; only hashing large files and processing images has threads (see `preparing`). A turn of it takes a bounded
share from the engines, then from the clients, one message of each in a round; deaths and deadlines are looked at when
they are due, whatever else there is to do. An event never ends the loop: what a client or an engine sent wrong is
answered or logged, and what we did wrong ends the one request or message. A request is answered exactly once; a miss is
sent again and never reaches the client, unless it concerns an image of which the client sent no more than its id;
nothing here waits for an engine, a client or an image. Requests may overtake each other, those of one client too: one
whose items are all cached is sent at once.
"""

from __future__ import annotations

import select
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import assert_never

import structlog

from mmcached.frontend.caches.from_config import item_cache_from_config
from mmcached.frontend.connections.listening import listen_for_clients, listen_for_engines
from mmcached.frontend.connections.seats import Seats
from mmcached.frontend.engines.engine_gate import EngineGate
from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.frontend.engines.flushes import Flushes
from mmcached.frontend.engines.probes import Probes
from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.requests.preparing import Preparing
from mmcached.frontend.requests.request_desk import RequestDesk
from mmcached.frontend.store.retried_ring import RetriedRing
from mmcached.frontend.store.store_desk import StoreDesk
from mmcached.shm import ObjectStoreWriter, RingWriter, sweep
from mmcached.shm.files.lock_file import is_held, remove_if_free
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.stats.page import StatsPageReader
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.shm.stats.service import service_stats
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    InvariantError,
    MmcachedError,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.process.turns import Guard, TurnShare
from mmcached.wire.sockets.channels import Frame
from mmcached.wire.stats import FrontendStats, RingStats, RoleName
from mmcached.wire.vocabulary import END_TOKEN_ID, IMAGE_TOKEN_ID

log = structlog.get_logger("mmcached.frontend")

CHECK_INTERVAL_S = 0.25
"""How often deaths and deadlines are looked at."""
_NOBODYS = (
    received.GetStats
    | received.Probe
    | received.Flush
    | received.HaveRecords
    | received.DropRecord
    | received.Reconcile
)
"""What is said in no client's name."""
_UNANSWERED = received.TokensTaken | received.Cancel | received.DropClaim | received.Reconcile | received.ClientBye


class Frontend(Closeable):
    """The frontend's sockets, caches and loop. Call `poll` until `is_drained`, then `close`.

    Args:
        clock: monotonic seconds.
    Raises:
        OSError: a socket could not be bound.
    """

    def __init__(self, run_dir: RunDir, config: ServiceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._config = config
        self._clock = clock
        self._share = TurnShare.of(config.limits)
        self._guard = Guard()
        self._num_clients = 0
        self._num_protocol_errors = 0
        self._is_draining = False
        self._next_check = clock()
        self._asked_for_stats: list[tuple[bytes, int]] = []
        with ExitStack() as stack:
            page = run_dir.stats_page  # there is none where a frontend was started alone
            self._page = stack.enter_context(StatsPageReader(page)) if page.exists() else None
            self._retried_ring = _retried_ring(config)
            self._ring = self._try_ring(stack)
            store = None if self._ring is None else ObjectStoreWriter(self._ring)
            self._clients = stack.enter_context(listen_for_clients(run_dir, config, clock))
            self._engines = stack.enter_context(listen_for_engines(run_dir, config, clock))
            self._desk = stack.enter_context(StoreDesk.from_config(config, send=self._clients.try_send, clock=clock))
            self._closing = stack.pop_all()
        self._seats = Seats(self._clients.is_connected)
        self._item_cache = item_cache_from_config(config, store)
        processing = Processing(config)
        self._preparing = Preparing(config, processing, self._item_cache)
        self._closing.callback(self._preparing.close)
        self._gate = EngineGate(
            self._engines, self._ring, config, clock=clock, on_lost=self._on_engine_lost, on_new=self._on_new_engine
        )
        max_askers = config.limits.max_requests_per_client
        self._requests = RequestDesk(
            config,
            self._gate,
            self._item_cache,
            processing=processing,
            preparing=self._preparing,
            answer=self._clients.try_send,
            clock=clock,
        )
        self._probes = Probes(self._gate, store, max_askers)
        self._flushes = Flushes(
            self._gate,
            forget=self._forget,
            min_interval_s=config.limits.flush_interval_s,
            max_per_peer=max_askers,
        )
        self._poller = select.poll()
        for source in (self._clients, self._engines, self._preparing):
            self._poller.register(source.fileno(), select.POLLIN)

    # ---- the loop

    def poll(self, timeout_s: float) -> None:
        """Serve what has come, waiting up to `timeout_s` for something; then look at deaths and deadlines if due.

        Each source gets a share of the turn; what is left over waits for the next one.
        """
        has_more = self._clients.has_more or self._engines.has_more
        self._poller.poll(0 if has_more else max(0, round(timeout_s * 1000)))
        self._serve_engines()
        self._serve_clients()
        for request in self._preparing.collect():
            error = self._guard.call("a request that goes on", self._requests.advance, request)
            if error is not None:
                self._guard.call("a request that fails", self._requests.fail, request.number, error)
        self._guard.call("tokens for clients", self._requests.flush)
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            self._guard.call("look at the engines", self._gate.check)
            self._guard.call("look at the connections", self._clients.check, now)
            self._guard.call("look at the connections", self._engines.check, now)
            self._guard.call("look at the clients", self._check_clients)
            self._guard.call("look at deadlines", self._requests.check, now)
            self._guard.call("look at the store", self._desk.check, now)
            self._guard.call("look for room for the ring", self._look_for_room)
        self._guard.call("answers that all wait for", self._answer_finished, now)

    def drain(self) -> None:
        """Accept no new request from now on; those open go on."""
        self._is_draining = True
        self._requests.drain()

    @property
    def is_drained(self) -> bool:
        return self._is_draining and not len(self._requests)

    def close(self) -> None:
        """Fail what is still open, remove the ring, close the sockets."""
        self._requests.fail_all(RequestAborted("the service stops; try again"))
        self._closing.close()

    # ---- the ring

    def _try_ring(self, closing: ExitStack) -> RingWriter | None:
        """Make the ring if it is wanted, missing and has room; `closing` closes it."""
        if self._retried_ring is None or (ring := self._retried_ring.try_now(self._clock())) is None:
            return None
        self._retried_ring = None
        return closing.enter_context(ring)

    def _look_for_room(self) -> None:
        """Bring the ring into use that had no room at the start."""
        ring = self._try_ring(self._closing)
        if ring is None:
            return
        self._ring = ring
        store = ObjectStoreWriter(ring)
        self._item_cache = item_cache_from_config(self._config, store)
        self._requests.use(self._item_cache)
        self._preparing.use(self._item_cache)
        self._probes.use(store)
        self._gate.use(ring)

    # ---- clients

    def _serve_clients(self) -> None:
        for peer, message, payload in self._clients.serve(self._share):
            if isinstance(message, RemoteProtocolError):
                self._refuse(peer, None, message)
                continue
            error = self._guard.call("message of a client", self._handle_client, peer, message, payload)
            if error is not None and (request_id := getattr(message, "request_id", None)) is not None:
                self._clients.try_send(peer, to_client.Failed(request_id, error_to_wire(error)))

    def _handle_client(self, peer: bytes, message: received.FromClient, payload: list[Frame]) -> None:
        if not isinstance(message, _NOBODYS):
            try:
                self._seats.take(peer, message.client_id)
            except RemoteProtocolError as error:
                self._refuse(peer, message, error)
                return
        match message:
            case received.ClientHello():
                self._desk.greet(peer, message.client_id)
                self._clients.try_send(peer, self._welcome())
            case received.Generate() | received.Encode():
                self._requests.accept(peer, message, [bytes(frame) for frame in payload])
            case received.TokensTaken():
                self._requests.taken(message)
            case received.Cancel():
                self._requests.cancel(message.client_id, message.request_id)
                self._desk.cancel(message.client_id, message.request_id)
            case received.ClientBye():
                self._end_client(message.client_id)
            case received.GetStats():
                self._asked_for_stats.append((peer, message.request_id))
            case received.Probe() | received.Flush():
                self._ask_all(peer, message)
            case (
                received.TakeRow()
                | received.GetRecords()
                | received.HaveRecords()
                | received.PutRecord()
                | received.ClaimRecord()
                | received.DropClaim()
                | received.DropRecord()
                | received.Reconcile()
            ):
                self._desk.handle(peer, message, payload)
            case _:
                assert_never(message)

    def _refuse(self, peer: bytes, message: received.FromClient | None, error: RemoteProtocolError) -> None:
        """Answer what cannot be; a message that could not be read, or that nobody waits for, in general."""
        self._num_protocol_errors += 1
        log.warning("bad message from a client", peer=peer.hex(), reason=str(error))
        if message is None or isinstance(message, received.ClientHello):
            self._clients.try_send(peer, to_client.Failed(None, error_to_wire(error)))
        elif not isinstance(message, _UNANSWERED):
            self._clients.try_send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def _ask_all(self, peer: bytes, message: received.Probe | received.Flush) -> None:
        """Take a question that all engines answer together, or say why not."""
        now = self._clock()
        try:
            match message:
                case received.Flush():
                    self._flushes.start(peer, message.request_id, now, new_epoch=message.new_epoch)
                case received.Probe():
                    if self._is_draining:
                        raise ServiceUnavailable("the service is draining")
                    self._probes.start(peer, message.request_id, message.timeout_s, now)
        except MmcachedError as error:
            self._clients.try_send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def _forget(self, is_new_epoch: bool) -> None:
        """Empty the frontend's own caches."""
        self._item_cache.clear()
        self._preparing.flush()
        self._desk.flush(is_new_epoch=is_new_epoch)

    def _welcome(self) -> to_client.Welcome:
        return to_client.Welcome(
            service_id=self._config.digest(),
            image_token_id=IMAGE_TOKEN_ID,
            eos_token_id=END_TOKEN_ID,
            hidden_size=self._config.model.hidden_size,
            max_model_len=self._config.max_model_len,
            store_ring=self._desk.announcement,
            store_epoch=self._desk.tier.epoch,
        )

    def _check_clients(self) -> None:
        """End what clients have asked for whose lock is free or gone, and look who is there."""
        self._num_clients = 0
        for path in self._run_dir.clients.glob("*.lock"):
            try:
                if is_held(path):
                    self._num_clients += 1
                elif remove_if_free(path):
                    log.info("client dead", client_id=path.stem)
            except OSError as error:  # what somebody else has put there is no lock of a client
                log.warning("not a lock", path=path.name, reason=str(error))
        self._seats.drop_closed(self._clients.__contains__)
        for client_id in self._requests.clients() | self._desk.clients() | set(self._seats):
            if not self._run_dir.client_lock(client_id).exists():
                self._lock_is_gone(client_id)

    def _lock_is_gone(self, client_id: str) -> None:
        """End a client that is dead. One whose connection is alive has lost its lock to somebody who tidies up: it is
        told, and has to connect anew, and then it locks again.
        """
        peer = self._seats.peer_of(client_id)
        if peer is not None and self._clients.is_connected(peer):
            log.warning("a client's lock was removed: it has to connect anew", client_id=client_id)
            reason = "the lock file of this client was removed, without which it counts as dead; try again"
            self._requests.fail_client(client_id, RequestAborted(reason))
            self._end_client(client_id)
            self._clients.disconnect(peer)
        else:
            self._end_client(client_id)

    def _end_client(self, client_id: str) -> None:
        self._seats.leave(client_id)
        self._desk.end_client(client_id)
        self._requests.end_client(client_id)

    # ---- engines

    def _serve_engines(self) -> None:
        for link, message, payload in self._gate.serve(self._share, self._guard):
            error = self._guard.call("message of an engine", self._handle_engine, link, message, payload)
            # What it says of a request may be half taken in: that request ends, and no other.
            if error is not None and (number := getattr(message, "request_id", None)) is not None:
                self._guard.call("a request that fails", self._requests.fail, number, error)
        self._requests.send_waiting()

    def _handle_engine(self, link: EngineLink, message: received.FromEngine, payload: list[Frame]) -> None:
        match message:
            case received.EngineProbed():
                self._probes.answered(link, message)
            case received.EngineFlushed():
                self._flushes.answered(link, message)
            case (
                received.TokensCommitted()
                | received.RequestGenerated()
                | received.RequestEncoded()
                | received.RequestFailed()
                | received.RequestMissed()
            ):
                self._requests.handle_engine(link.incarnation, message, payload)
            case (
                received.EngineHello()
                | received.RowHello()
                | received.EngineReady()
                | received.LeaseGap()
                | received.Reconcile()
            ):
                raise InvariantError(f"the gate deals with {type(message).__name__}")
            case _:
                assert_never(message)

    def _on_new_engine(self, link: EngineLink) -> None:
        log.info("engine connected", engine=link.index)
        self._item_cache.engine_changed()

    def _on_engine_lost(self, link: EngineLink, reason: str) -> None:
        self._requests.engine_lost(link, reason)

    # ---- looking in

    def stats(self) -> FrontendStats:
        """Return the frontend's own figures."""
        return FrontendStats(
            requests_open=len(self._requests),
            requests_done=self._requests.num_done,
            requests_failed=self._requests.num_failed,
            protocol_errors=self._num_protocol_errors + self._gate.num_protocol_errors + self._desk.num_protocol_errors,
            resends=self._requests.num_resends,
            lease_refusals=self._gate.num_lease_refusals,
            clients=self._num_clients,
            connections=len(self._clients),
            clients_refused=self._clients.num_refused,
            clients_disconnected=self._clients.num_disconnected,
            faults=self._guard.num_faults,
            processor=self._preparing.stats(self._item_cache.stats()),
            ring=RingStats() if self._ring is None else self._ring.stats(),
            desyncs=self._item_cache.num_desyncs,
            store=self._desk.stats(),
        )

    def _answer_finished(self, now: float) -> None:
        """Answer the questions for figures, and those that all engines have answered, or whose time is over."""
        if self._asked_for_stats:
            asked, self._asked_for_stats = self._asked_for_stats, []
            snapshots = {} if self._page is None else self._page.read()
            ready = sorted(link.index for link in self._gate.links if link.is_ready)
            stats = service_stats(snapshots, self.stats(), ready)
            for peer, request_id in asked:
                self._clients.try_send(peer, to_client.Stats(request_id, stats))
        for peer, answer in (*self._probes.take_finished(now), *self._flushes.take_finished(now)):
            self._clients.try_send(peer, answer)


def _retried_ring(config: ServiceConfig) -> RetriedRing | None:
    """Return what makes the ring; None if the configuration has none."""
    if not config.ring_data_bytes or not config.is_multimodal_model:
        return None
    make = partial(
        RingWriter.create,
        data_bytes=config.ring_data_bytes,
        num_slots=config.ring_num_slots,
        max_rows=config.ring_max_rows,
        max_object_bytes=config.max_object_bytes,
        reader_quota_bytes=config.ring_reader_quota_bytes,
        has_checksums=config.ring_has_checksums,
    )
    return RetriedRing("ring", make)


def warn_of_small_shm(config: ServiceConfig, shm_bytes: int) -> bool:
    """Say so if /dev/shm has no room for both rings beside those of a dead frontend; return whether it has not."""
    needed = 2 * (config.ring_data_bytes + config.store_data_bytes)
    if shm_bytes >= needed:
        return False
    log.warning(
        "/dev/shm is too small for a restart: a next frontend would begin without ring or store, inline",
        shm_mib=shm_bytes >> 20,
        wanted_mib=needed >> 20,
    )
    return True


def main(run_dir: Path) -> int:
    """Run the frontend of a run directory until SIGTERM, then drain; return the exit status."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    for name in sweep():
        log.info("removed what a dead process left behind", name=name)
    warn_of_small_shm(config, shutil.disk_usage(SHM_DIR).total)
    page = StatsPublisher(directory.stats_page, RoleName("frontend"))
    with page, Frontend(directory, config) as frontend:
        while not stop.is_set:
            frontend.poll(CHECK_INTERVAL_S)
            page.publish_if_due(frontend.stats)
        frontend.drain()
        give_up = time.monotonic() + config.drain_timeout_s
        while not frontend.is_drained and time.monotonic() < give_up:
            frontend.poll(CHECK_INTERVAL_S)
            page.publish_if_due(frontend.stats)
    return 0
