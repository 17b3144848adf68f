"""P0: the one process per host that clients talk to. Owns the sender cache and the ring; books no blocks, runs no
model.

    clients ==ROUTER client.sock==> Frontend ==ROUTER engine.sock==> engines
                                       |
                                       +-- writes the ring (leases go with `AddRequest`)

One thread, one loop. An event never ends the loop: what a client or an engine sent wrong is answered or logged.
Invariants: a lease is counted before the message that carries it is sent, and taken back if that message was not
accepted · a request is answered exactly once · nothing here waits for a reader, an engine or a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from mmcached.frontend.engine_links import EngineLink, EngineLinks
from mmcached.frontend.factories import processor_cache_from_config
from mmcached.frontend.open_requests import OpenRequest, OpenRequests
from mmcached.frontend.sender_cache import ShmItem
from mmcached.frontend.statistics import StatsCollector
from mmcached.frontend.submission import FeatureBuilder, Preparer, ResolvedItem
from mmcached.shm import ObjectStoreWriter, RingWriter, RowVoided, sweep
from mmcached.shm.lock_file import is_held, remove_if_free
from mmcached.wire.channels import Frame, RouterChannel
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    ChannelFull,
    DeadlineExceeded,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received
from mmcached.wire.paths import RunDir
from mmcached.wire.signals import StopFlag
from mmcached.wire.stats import ServiceStats
from mmcached.wire.vocabulary import END_TOKEN_ID, IMAGE_TOKEN_ID

logger = logging.getLogger("mmcached.frontend")

MAX_RESENDS = 2
CHECK_INTERVAL_S = 0.25
"""How often deaths and deadlines are looked at."""


class Frontend:
    """The frontend's sockets, caches and loop. Call `poll` until `is_drained`, then `close`.

    Args:
        clock: monotonic seconds.
    Raises:
        SegmentError: the ring could not be made.
        zmq.ZMQError: a socket could not be bound.
    """

    def __init__(self, run_dir: RunDir, config: ServiceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._config = config
        self._clock = clock
        self._requests = OpenRequests()
        self._engines = EngineLinks()
        self._statistics = StatsCollector()
        self._num_clients = 0
        self._is_draining = False
        self._next_check = clock()
        with ExitStack() as stack:
            self._ring = _make_ring(config, stack)
            store = None if self._ring is None else ObjectStoreWriter(self._ring)
            self._cache = processor_cache_from_config(config, store, grant=grant_when_sent)
            if self._cache is not None:
                stack.callback(self._cache.close)
            context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
            self._clients: RouterChannel[received.FromClient] = stack.enter_context(
                RouterChannel(context, run_dir.client_address, received.FromClient)
            )
            self._engine_channel: RouterChannel[received.FromEngine] = stack.enter_context(
                RouterChannel(context, run_dir.engine_address, received.FromEngine)
            )
            self._closing = stack.pop_all()
        self._preparer = Preparer(config, self._cache)
        self._poller = zmq.Poller()
        self._poller.register(self._clients.socket, zmq.POLLIN)
        self._poller.register(self._engine_channel.socket, zmq.POLLIN)

    # ---- the loop

    def poll(self, timeout_s: float) -> None:
        """Serve what has come, waiting up to `timeout_s` for something; then look at deaths and deadlines if due."""
        ready = dict(self._poller.poll(max(0, round(timeout_s * 1000))))
        if self._engine_channel.socket in ready:
            self._serve_engines()
        if self._clients.socket in ready:
            self._serve_clients()
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            self._check_deaths()
            self._check_deadlines(now)

    def drain(self) -> None:
        """Accept no new request from now on; those open go on."""
        self._is_draining = True

    @property
    def is_drained(self) -> bool:
        return self._is_draining and not self._requests

    def close(self) -> None:
        """Fail what is still open, remove the ring, close the sockets."""
        for request in self._requests:
            self._fail(request.number, RequestAborted("the service stops; try again"))
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- clients

    def _serve_clients(self) -> None:
        while (raw := self._clients.receive_raw()) is not None:
            peer, frames = raw
            try:
                message, payload = self._clients.decode(frames)
            except RemoteProtocolError as error:
                self._statistics.protocol_errors += 1
                logger.warning("client %s: %s", peer.hex(), error)
                self._answer(peer, to_client.Failed(None, error_to_wire(error)))
                continue
            self._handle_client(peer, message, payload)

    def _handle_client(self, peer: bytes, message: received.FromClient, payload: list[Frame]) -> None:
        match message:
            case received.ClientHello():
                self._answer(peer, self._welcome())
            case received.Generate() | received.Encode():
                self._accept(peer, message, [bytes(frame) for frame in payload])
            case received.Cancel():
                request = self._requests.find(message.client_id, message.request_id)
                if request is not None:
                    self._end(request.number)
            case received.ClientBye():
                self._end_client(message.client_id)
            case received.GetStats():
                self._collect_stats(peer, message.request_id)

    def _welcome(self) -> to_client.Welcome:
        return to_client.Welcome(
            service_id=self._config.digest(),
            image_token_id=IMAGE_TOKEN_ID,
            eos_token_id=END_TOKEN_ID,
            hidden_size=self._config.model.hidden_size,
            max_model_len=self._config.max_model_len,
        )

    def _accept(self, peer: bytes, message: received.Generate | received.Encode, images: list[bytes]) -> None:
        """Open a request and send it to an engine; on any typed error answer with it and leave nothing open."""
        deadline = self._clock() + min(message.timeout_s, self._config.request_timeout_s)
        request = OpenRequest(self._requests.next_number(), peer, message, images, deadline)
        try:
            self._check_admission(message)
            self._submit(request)
        except MmcachedError as error:
            self._statistics.requests_failed += 1
            logger.info("request %d refused: %s", request.number, error)
            self._answer(peer, to_client.Failed(message.request_id, error_to_wire(error)))
            return
        self._requests.add(request)

    def _check_admission(self, message: received.Generate | received.Encode) -> None:
        if self._is_draining:
            raise ServiceUnavailable("the service is draining; try another one")
        if len(self._requests) >= self._config.max_num_requests:
            raise ServiceUnavailable(f"{len(self._requests)} requests are open (max_num_requests); try again later")
        if self._requests.find(message.client_id, message.request_id) is not None:
            raise RemoteProtocolError(f"request {message.request_id} of this client is open already", "request_id")

    def _submit(self, request: OpenRequest) -> None:
        """Prepare, lease, send. Either the engine's queue has the request, or no lease and no pin is left."""
        engine = self._engines.choose(lambda peer: len(list(self._requests.on_engine(peer))))
        token_ids = self._preparer.prepare(request.message, request.images)
        try:
            items = self._preparer.resolve(request.images, request.message.tenant)
            token_ids, places = self._preparer.expand(request.message, token_ids, items)
            self._lease_and_send(engine, request, token_ids, list(zip(items, places, strict=True)))
        finally:
            self._preparer.release()
        request.engine = engine.peer
        request.num_prompt_tokens = len(token_ids)

    def _lease_and_send(
        self,
        engine: EngineLink,
        request: OpenRequest,
        token_ids: list[int],
        items: Sequence[tuple[ResolvedItem, tuple[int, int]]],
    ) -> None:
        message = request.message
        is_generate = isinstance(message, received.Generate)
        granted: list[tuple[Handle, LeaseId]] = []
        builder = FeatureBuilder()
        try:
            for item, place in items:
                lease = None
                if isinstance(item.item, ShmItem):
                    lease = self._grant(engine, item.item.handle)
                    granted.append((item.item.handle, lease))
                builder.add(item, place, lease)
            add = to_engine.AddRequest(
                request_id=request.number,
                kind="generate" if is_generate else "encode",
                prompt_token_ids=token_ids,
                features=builder.features,
                max_tokens=message.max_tokens if isinstance(message, received.Generate) else 0,
                want_hidden_states=isinstance(message, received.Generate) and message.want_hidden_states,
                tenant=message.tenant,
            )
            self._engine_channel.send(engine.peer, add, builder.payload)
        except MmcachedError as error:
            # Not queued, so no descriptor can arrive: undo in reverse order, or seq would show a gap.
            for handle, lease in reversed(granted):
                self._undo_grant(engine, handle, lease)
            if isinstance(error, PeerGone):
                self._lose_engine(engine, "its connection is gone")
            raise
        self._statistics.inline_items += sum(not isinstance(item.item, ShmItem) for item, _ in items)

    def _grant(self, engine: EngineLink, handle: Handle) -> LeaseId:
        if self._ring is None or engine.row is None:
            raise ServiceUnavailable("the engine is not attached to the ring yet; try again")
        return self._ring.grant(engine.row, handle)

    def _undo_grant(self, engine: EngineLink, handle: Handle, lease: LeaseId) -> None:
        if self._ring is not None and engine.row is not None:
            self._ring.undo_grant(engine.row, handle, lease)

    # ---- engines

    def _serve_engines(self) -> None:
        while (raw := self._engine_channel.receive_raw()) is not None:
            peer, frames = raw
            try:
                message, payload = self._engine_channel.decode(frames)
            except RemoteProtocolError as error:
                self._statistics.protocol_errors += 1
                logger.warning("engine %s: %s", peer.hex(), error)
                continue
            self._handle_engine(peer, message, payload)

    def _handle_engine(self, peer: bytes, message: received.FromEngine, payload: list[Frame]) -> None:
        match message:
            case received.EngineHello():
                self._greet_engine(peer, message)
            case received.RowHello():
                self._attach_row(peer, message)
            case received.EngineReady():
                link = self._engines.get(peer)
                if link is not None and (self._ring is None or link.row is not None):
                    link.is_ready = True
                    logger.info("engine %s is ready with %d worker(s)", peer.hex(), message.num_workers)
            case received.RequestGenerated():
                self._finish_generation(message, payload)
            case received.RequestEncoded():
                request = self._requests.take(message.request_id)
                if request is not None:
                    self._statistics.requests_done += 1
                    answer = to_client.Encoded(request.message.request_id, message.embeddings)
                    self._answer(request.peer, answer, payload)
            case received.RequestFailed():
                request = self._requests.take(message.request_id)
                if request is not None:
                    self._statistics.requests_failed += 1
                    self._answer(request.peer, to_client.Failed(request.message.request_id, message.error))
            case received.RequestMissed():
                self._resend(message)
            case received.EngineStatsReply():
                self._statistics.add_reply(peer, message.token, message.stats)
                self._answer_stats()

    def _greet_engine(self, peer: bytes, message: received.EngineHello) -> None:
        if message.config_digest != self._config.digest():
            logger.error(
                "engine %s has configuration %s, this frontend %s: refused; start both from one config.json",
                peer.hex(),
                message.config_digest,
                self._config.digest(),
            )
            return
        self._engines.hello(peer, message.incarnation)
        self._tell(peer, to_engine.Ring(None if self._ring is None else self._ring.announcement))

    def _attach_row(self, peer: bytes, message: received.RowHello) -> None:
        link = self._engines.get(peer)
        if link is None or self._ring is None or message.epoch != self._ring.announcement.epoch:
            return
        if not self._ring.attach(message.row, message.nonce):
            logger.warning("engine %s: row %d does not hold its nonce; ignored", peer.hex(), message.row)
            return
        link.row, link.nonce = message.row, message.nonce
        self._tell(peer, to_engine.RowAttached(message.epoch, message.row, message.nonce))

    def _finish_generation(self, message: received.RequestGenerated, payload: list[Frame]) -> None:
        request = self._requests.take(message.request_id)
        if request is None:
            return
        self._statistics.requests_done += 1
        answer = to_client.Generated(
            request_id=request.message.request_id,
            token_ids=message.token_ids,
            finish_reason=message.finish_reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=message.num_cached_tokens,
            hidden_states=message.hidden_states,
        )
        self._answer(request.peer, answer, payload)

    def _resend(self, message: received.RequestMissed) -> None:
        """Send a request again whose items the engine could not use: a miss never reaches the client."""
        request = self._requests.get(message.request_id)
        if request is None:
            return
        request.num_resends += 1
        self._statistics.resends += 1
        if request.num_resends > MAX_RESENDS:
            self._fail(
                request.number, RequestAborted(f"the engine missed items {request.num_resends} times; try again")
            )
            return
        try:
            self._submit(request)
        except MmcachedError as error:
            self._fail(request.number, error)

    # ---- deaths, deadlines, ends

    def _check_deaths(self) -> None:
        if self._ring is not None:
            for event in self._ring.poll_deaths():
                link = self._engines.with_row(event.row)
                reason = "no process holds its row" if isinstance(event, RowVoided) else event.reason
                if link is not None and link.nonce == event.nonce:
                    self._lose_engine(link, reason)
        self._num_clients = 0
        for path in self._run_dir.clients.glob("*.lock"):
            if is_held(path):
                self._num_clients += 1
            elif remove_if_free(path):
                logger.info("client %s is dead", path.stem[:12])
        for client_id in self._requests.clients():
            if not self._run_dir.client_lock(client_id).exists():
                self._end_client(client_id)

    def _check_deadlines(self, now: float) -> None:
        for request in self._requests.expired(now):
            timeout_s = min(request.message.timeout_s, self._config.request_timeout_s)
            self._abort_in_engine(request)
            self._fail(request.number, DeadlineExceeded(type(request.message).__name__.lower(), timeout_s))
        self._answer_stats(now)

    def _lose_engine(self, link: EngineLink, reason: str) -> None:
        logger.warning("engine %s is lost: %s", link.peer.hex(), reason)
        self._engines.remove(link.peer)
        for request in self._requests.on_engine(link.peer):
            self._fail(request.number, RequestAborted(f"the engine died ({reason}); try again"))

    def _end_client(self, client_id: str) -> None:
        for request in self._requests.of_client(client_id):
            self._end(request.number)

    def _end(self, number: int) -> None:
        """Forget a request without an answer: nobody waits for it. The engine gives its leases back."""
        request = self._requests.take(number)
        if request is not None:
            self._statistics.requests_failed += 1
            self._abort_in_engine(request)

    def _fail(self, number: int, error: MmcachedError) -> None:
        request = self._requests.take(number)
        if request is not None:
            self._statistics.requests_failed += 1
            self._answer(request.peer, to_client.Failed(request.message.request_id, error_to_wire(error)))

    def _abort_in_engine(self, request: OpenRequest) -> None:
        self._tell(request.engine, to_engine.AbortRequest(request.number))

    # ---- statistics

    def _collect_stats(self, peer: bytes, request_id: int) -> None:
        asked = [link.peer for link in self._engines if link.is_ready]
        token = self._statistics.ask(peer, request_id, asked, self._clock())
        for engine in asked:
            self._tell(engine, to_engine.GetEngineStats(token))
        self._answer_stats()

    def _answer_stats(self, now: float | None = None) -> None:
        for peer, request_id, engines in self._statistics.take_complete(self._clock() if now is None else now):
            stats = ServiceStats(
                requests_open=len(self._requests),
                requests_done=self._statistics.requests_done,
                requests_failed=self._statistics.requests_failed,
                protocol_errors=self._statistics.protocol_errors,
                resends=self._statistics.resends,
                clients=self._num_clients,
                processor=self._statistics.processor(self._cache, self._preparer.items_processed),
                ring=self._statistics.ring(self._ring),
                engines=engines,
            )
            self._answer(peer, to_client.Stats(request_id, stats))

    # ---- sending

    def _answer(self, peer: bytes, message: to_client.ToClient, payload: Sequence[Frame] = ()) -> None:
        """Send to a client; one that is gone or does not read loses its answer, nobody else waits."""
        try:
            self._clients.send(peer, message, payload)
        except (PeerGone, ChannelFull) as error:
            logger.info("answer dropped: %s", error)

    def _tell(self, peer: bytes, message: to_engine.FromFrontend) -> None:
        try:
            self._engine_channel.send(peer, message)
        except (PeerGone, ChannelFull) as error:
            logger.warning("engine not told %s: %s", type(message).__name__, error)


def _make_ring(config: ServiceConfig, stack: ExitStack) -> RingWriter | None:
    """Make the ring, to be closed by `stack`; None if the configuration has none."""
    if not config.ring_data_bytes or not config.is_multimodal_model:
        return None
    return stack.enter_context(
        RingWriter.create(
            data_bytes=config.ring_data_bytes,
            num_slots=config.ring_num_slots,
            max_rows=config.ring_max_rows,
            max_object_bytes=config.max_object_bytes,
        )
    )


def grant_when_sent(handle: Handle) -> dict[int, LeaseId]:
    """In the service the sender cache grants nothing: the frontend does, as it sends, to the engine that it chose."""
    return {}


def main(run_dir: Path) -> int:
    """Run the frontend of a run directory until SIGTERM, then drain; return the exit status."""
    directory = RunDir(run_dir)
    config = ServiceConfig.load(directory.config)
    stop = StopFlag()
    for name in sweep():
        logger.info("removed %s, left behind by a dead process", name)
    with Frontend(directory, config) as frontend:
        while not stop.is_set:
            frontend.poll(CHECK_INTERVAL_S)
        frontend.drain()
        give_up = time.monotonic() + config.drain_timeout_s
        while not frontend.is_drained and time.monotonic() < give_up:
            frontend.poll(CHECK_INTERVAL_S)
    return 0
