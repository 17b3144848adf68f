"""Serves the clients' generations and embeddings: from a request that has come to its one answer.

    accept ──> refused, with the reason                       nothing is left open
       └─────> its verb ──> a wait: what has been made, put, freed; an engine's word ──> its verb ──> … ──> answered
                              └──> cancelled, or its time, client or engine is gone: the verb is closed

Each request has a verb, a generator that says what it does until its answer (see `request_verbs`); it runs here, when
what it waits for has happened. Whatever happens on the way, a request is answered at most once and leaves no lease,
pin, stream or waiting work behind. Tokens and rows that are wanted as they commit go to their client at the end of the
turn. Knows nothing of sockets: messages to clients go through a callable, those to engines through their connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevel
from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.processing.media import media_of
from mmcached.gateway.processing.pool import Mailbox
from mmcached.gateway.requests.admission import Admission
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs
from mmcached.gateway.requests.open_requests import OpenRequest, OpenRequests
from mmcached.gateway.requests.token_streams import TokenStreams
from mmcached.gateway.requests.waits import Waits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    MmcachedError,
    RequestAborted,
    error_to_wire,
)
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.process.turns import Guard
from mmcached.wire.slow_log import SlowCalls
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ProcessorCacheStats
from mmcached.wire.vocabulary import Modality

if TYPE_CHECKING:
    from mmcached.gateway.requests.request_verbs import RequestVerbs, Word
    from mmcached.wire.tracing import StartSpan

log = structlog.get_logger("mmcached.frontend")

Send = Callable[[bytes, to_client.ToClient, Sequence[Frame]], bool]
"""Sends to a client, or drops what it does not take; returns whether it was queued."""


class RequestService:
    """All requests of one frontend; `num_done` and `num_failed` only rise.

    Args:
        start_span: begins the span of a request; None: requests have no spans.
    Attributes:
        items: the cache of processed items.
        outputs: what is known of encoder outputs.
        slow: the requests that took longer than `slow_log_ms`.
    """

    def __init__(
        self,
        config: ServiceConfig,
        connections: EngineConnections,
        items: ItemCache,
        *,
        records: RecordStore,
        second_level: SecondLevel,
        send: Send,
        clock: Callable[[], float],
        start_span: StartSpan | None = None,
    ) -> None:
        self._config = config
        self._connections = connections
        self._send = send
        self._clock = clock
        self._start_span = start_span
        self._requests = OpenRequests()
        self._admission = Admission(config, self._requests)
        self._waits: Waits[OpenRequest] = Waits()
        self._mailbox = Mailbox()
        self.items = items
        self.outputs = EncoderOutputs(config, records, connections, second_level, self._waits, clock=clock)
        self.streams = TokenStreams(send)
        self.slow = SlowCalls(config.slow_log_ms, log.warning)
        self.num_done = 0
        self.num_failed = 0
        self._verbs: RequestVerbs | None = None
        if config.has_workers:  # a store alone imports nothing that processes images
            from mmcached.gateway.requests.clip_records import ClipRecords
            from mmcached.gateway.requests.item_making import ItemMaking
            from mmcached.gateway.requests.request_verbs import RequestVerbs

            clips = ClipRecords(records, config, self._waits, second_level)
            making = ItemMaking(config, items, clips, self._mailbox, self._waits)
            self._verbs = RequestVerbs(
                config,
                connections,
                self._requests,
                making=making,
                items=items,
                outputs=self.outputs,
                streams=self.streams,
                waits=self._waits,
            )

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def item_fingerprints(self) -> Mapping[Modality, str]:
        """By modality, all that the keys of items depend on beside their files."""
        return {} if self._verbs is None else self._verbs.making.fingerprints

    def clients(self) -> set[str]:
        return self._requests.clients()

    @property
    def pinned_bytes(self) -> int:
        """Bytes of items in the store that open requests keep there."""
        return 0 if self._verbs is None else self._verbs.submission.pinned_bytes

    @property
    def num_beyond_quota(self) -> int:
        """Items that travelled as frames because their engine's requests had too much pinned."""
        return 0 if self._verbs is None else self._verbs.submission.num_beyond_quota

    @property
    def num_resends(self) -> int:
        """How many times a request was sent again; it only rises."""
        return 0 if self._verbs is None else self._verbs.num_resends

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `go_on` has something to do."""
        return self._mailbox.fileno()

    def drain(self) -> None:
        """Accept no new request from now on; those open go on."""
        self._admission.is_draining = True

    def forget_items(self) -> None:
        """Forget all processed items, and let nothing that is being processed be cached or sent."""
        self.items.clear()
        if self._verbs is not None:
            self._verbs.flush()
        self.outputs.flush()

    def go_on(self, guard: Guard) -> None:
        """End a turn: run the verbs whose wait is over, and send what streams have."""
        # What was woken in this turn goes first: those that have waited for room, before others take it.
        if self._verbs is not None:
            for done in self._mailbox.take_all():
                guard.call("what a thread has made", self._verbs.making.take, done)
            self._verbs.making.let_in()
        if self._connections.ready():
            self._waits.wake(self._connections)
        while (request := self._waits.take_ready()) is not None:
            error = guard.call("a request that goes on", self._run, request)
            if error is not None:
                guard.call("a request that fails", self.fail, request.number, error)
        guard.call("tokens for clients", self.streams.flush)

    def processor_stats(self) -> ProcessorCacheStats:
        return self.items.stats() if self._verbs is None else self._verbs.making.stats(self.items.stats())

    def close(self) -> None:
        for request in self._requests:
            self.fail(request.number, RequestAborted("the service stops; try again"))
        if self._verbs is not None:
            self._verbs.making.close()
        self._mailbox.close()

    # ---- from clients

    def accept(self, peer: bytes, message: received.Generate | received.Encode, files: Sequence[Frame]) -> None:
        """Open a request and begin it, or answer why not and leave nothing open."""
        now = self._clock()
        deadline = now + min(message.timeout_s, self._config.request_timeout_s)
        request = OpenRequest(self._requests.next_number(), peer, message, [], deadline, came_at=now)
        if self._start_span is not None:
            kind = type(message).__name__.lower()
            about = {"mmcached.num_images": len(files) - len(message.clips), "mmcached.num_clips": len(message.clips)}
            request.span = self._start_span(f"mmcached.frontend.{kind}", message.traceparent, about)
        try:
            request.media = media_of(message, files)
            if self._verbs is None:
                limit = "must be more than 0 to generate or encode: this service is a store"
                raise InvalidRequest("world_size", 0, limit)
            self._admission.check(request, self._verbs.making.check)
        except MmcachedError as error:
            self.num_failed += 1
            log.info("request refused", request_id=request.number, code=error.code)
            if request.span is not None:
                request.span.end(error.code)
            self._send(peer, to_client.Failed(message.request_id, error_to_wire(error)), ())
            return
        request.verb = self._verbs.answer(request)
        self._requests.add(request)
        self.streams.open(request)
        try:
            self._run(request)
        except Exception:  # a fault of ours, which the caller answers
            self._end(request, "invariant_error")
            raise

    def taken(self, message: received.TokensTaken) -> None:
        request = self._requests.find(message.client_id, message.request_id)
        if request is not None:
            self.streams.taken(request, message)

    def cancel(self, client_id: str, request_id: int) -> None:
        """Forget one request; an unknown one changes nothing."""
        request = self._requests.find(client_id, request_id)
        if request is not None:
            self._forget(request)

    # ---- from engines: of a request that is not with that engine (any more), nothing

    def tokens_committed(
        self, engine: EngineConnection, message: from_engine.TokensCommitted, payload: Sequence[Frame]
    ) -> None:
        """Take tokens and rows that an engine has computed for streams."""
        for part in message.rows:
            request = self._with(engine, part.request_id)
            if request is None:
                continue
            try:
                self.streams.committed_rows(request, part.rows, payload)
            except MmcachedError as error:
                self.fail(request.number, error)
        for tokens in message.streams:
            request = self._with(engine, tokens.request_id)
            if request is not None and request.sent is not None:
                request.sent.prompt_computed()
                self.streams.committed(request, tokens)

    def ended(self, engine: EngineConnection, word: Word, payload: Sequence[Frame]) -> None:
        """Take what an engine says at the end of its part of a request."""
        if isinstance(word, from_engine.RequestMissed):
            self.items.missed(word.mm_hashes)  # true of any request
        request = self._with(engine, word.request_id)
        if request is not None:
            self._run(request, (word, payload))

    def engine_lost(self, engine: EngineConnection, reason: str) -> None:
        for request in self._requests.on_engine(engine):
            self.fail(request.number, RequestAborted(f"the engine died ({reason}); try again"))

    def _with(self, engine: EngineConnection, number: int) -> OpenRequest | None:
        """Return a request if that engine has it; a former frontend may have given the same number to another."""
        request = self._requests.get(number)
        return request if request is not None and request.sent and request.sent.engine is engine else None

    # ---- deadlines and ends

    def check(self, now: float) -> None:
        self.outputs.check(now)
        self._waits.expire(now)
        for request in self._requests.expired(now):
            timeout_s = min(request.message.timeout_s, self._config.request_timeout_s)
            operation = type(request.message).__name__.lower()
            if self._connections in request.wait.keys:
                operation += " (no engine was ready)"
            self.fail(request.number, DeadlineExceeded(operation, timeout_s))

    def end_client(self, client_id: str) -> None:
        """Forget what a client has asked for: it is gone."""
        for request in self._requests.of_client(client_id):
            self._forget(request)

    def fail_client(self, client_id: str, error: MmcachedError) -> None:
        for request in self._requests.of_client(client_id):
            self.fail(request.number, error)

    def fail(self, number: int, error: MmcachedError) -> None:
        """End a request with an error; one that is not open changes nothing."""
        request = self._requests.get(number)
        if request is not None:
            self.num_failed += 1
            self._end(request, error.code)
            self._send(request.peer, to_client.Failed(request.message.request_id, error_to_wire(error)), ())

    # ---- verbs

    def _run(self, request: OpenRequest, word: tuple[Word, Sequence[Frame]] | None = None) -> None:
        """Run a request's verb until it waits again, or has its answer.

        Args:
            word: of the engine that has it, if it waits for that.
        """
        assert request.verb is not None
        self._waits.remove(request.wait)
        try:
            request.wait = request.verb.send(word)
            self._waits.add(request.wait, request)
        except StopIteration as stop:
            answer, payload = stop.value
            is_failed = isinstance(answer, to_client.Failed)
            self.num_failed += is_failed
            self.num_done += not is_failed
            self._end(request, answer.error.code if isinstance(answer, to_client.Failed) else "")
            self._send(request.peer, answer, payload)
        except MmcachedError as error:
            log.info("request failed", request_id=request.number, code=error.code)
            self.fail(request.number, error)

    def _forget(self, request: OpenRequest) -> None:
        """End a request without an answer: its client does not wait for it."""
        self.num_failed += 1
        self._end(request, "cancelled")

    def _end(self, request: OpenRequest, error: str = "") -> None:
        """Close a request's verb, and forget the request. `error`: what has ended it."""
        self._requests.take(request.number)
        self._waits.remove(request.wait)
        self.streams.close(request)
        message, took_s = request.message, self._clock() - request.came_at
        kind, num_files = type(message).__name__.lower(), len(request.media)
        self.slow.note("request", took_s, request.number, request_id=request.number, kind=kind, num_files=num_files)
        if request.span is not None:
            request.span.end(error)
        if request.verb is not None:
            request.verb.close()
