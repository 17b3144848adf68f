"""Serves the clients' generations and embeddings, each from its message to its one answer.

    accept ──> refused, with the reason                                                    nothing stays open
       └─────> its verb ──> a wait: items, outputs, room, an engine's answer ──> its verb ──> … ──> answered
                              └──> cancelled; or its time is over, its client or its engine is gone: the verb is closed

Each request has a verb: a generator that runs until the answer (see `request_verbs`), and is resumed here when its wait
is over. A request is answered at most once, and leaves no lease, pin, stream or waiting work behind. Streamed tokens
and rows are sent at the end of the turn in which they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from mmcached.frontend.mount import FrontendParts
from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.gateway.processing.media import media_of
from mmcached.gateway.processing.pool import Mailbox, WorkDone
from mmcached.gateway.requests.admission import Admission
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs
from mmcached.gateway.requests.item_making import ItemMaking
from mmcached.gateway.requests.open_requests import OpenRequest, RequestTable
from mmcached.gateway.requests.prompts import Prompts, TextWork
from mmcached.gateway.requests.request_verbs import RequestVerbs, Word
from mmcached.gateway.requests.token_streams import TokenStreams
from mmcached.gateway.requests.waits import Waits
from mmcached.wire.errors import (
    DeadlineExceeded,
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

log = structlog.get_logger("mmcached.frontend")


class RequestService:
    """All requests of one frontend.

    Args:
        parts: The parts of the frontend that requests use.
        connections: The engines.
        items: The cache of processed items.

    Attributes:
        making: Processes the files of requests.
        items: As given.
        outputs: The encoder outputs that are stored or being made.
        streams: Tokens and rows on their way to clients.
        slow: Requests slower than `slow_log_ms`.
        num_done, num_failed: Numbers of ended requests; they only rise.
    """

    def __init__(
        self,
        parts: FrontendParts,
        connections: EngineConnections,
        items: ItemCache,
    ) -> None:
        config, clock, waits = parts.config, parts.clock, Waits[OpenRequest]()
        records, second_level = parts.store.records, parts.store.second_level
        self._config = config
        self._connections = connections
        self._send = parts.send
        self._clock = clock
        self._start_span = parts.start_span
        self._requests = RequestTable()
        self._waits = waits
        self._mailbox = Mailbox()
        self._prompts = Prompts(config, self._mailbox)
        self._admission = Admission(config, self._requests, self._prompts)
        self.items = items
        self.outputs = EncoderOutputs(config, records, connections, second_level, waits, clock=clock)
        self.streams = TokenStreams(parts.send)
        self.slow = SlowCalls(config.slow_log_ms, log.warning)
        self.num_done = 0
        self.num_failed = 0
        clips = ClipRecords(records, config, waits, second_level)
        self.making = ItemMaking(config, items, clips, self._mailbox, waits)
        self._verbs = RequestVerbs(
            config,
            connections,
            self._requests,
            prompts=self._prompts,
            making=self.making,
            items=items,
            outputs=self.outputs,
            streams=self.streams,
            waits=waits,
        )

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def item_fingerprints(self) -> Mapping[Modality, str]:
        """Fingerprints of everything that the keys of items depend on beside their files, by modality."""
        return self.making.fingerprints

    def clients(self) -> set[str]:
        return self._requests.clients()

    @property
    def pinned_bytes(self) -> int:
        """Bytes of items in the store that are pinned for open requests."""
        return self._verbs.submission.pinned_bytes

    @property
    def num_beyond_quota(self) -> int:
        """Number of items sent as frames because too many bytes were pinned for their engine."""
        return self._verbs.submission.num_beyond_quota

    @property
    def num_resends(self) -> int:
        """Number of times that a request was sent to an engine again; it only rises."""
        return self._verbs.num_resends

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `go_on` has work."""
        return self._mailbox.fileno()

    def drain(self) -> None:
        """Accept no new request; open ones go on."""
        self._admission.is_draining = True

    def forget_items(self) -> None:
        """Drop all processed items; items that are being processed are neither cached nor sent."""
        self.items.clear()
        self._verbs.flush()
        self.outputs.flush()

    def go_on(self, guard: Guard) -> None:
        """End a turn: resume the verbs whose wait is over, and send streamed tokens and rows."""
        # Requests woken in this turn go first: they have waited for room, which others would take.
        for done in self._mailbox.take_all():
            guard.call("what a thread has made", self._take, done)
        self.making.let_in()
        if self._connections.ready():
            self._waits.wake(self._connections)
        while (request := self._waits.take_ready()) is not None:
            error = guard.call("a request that goes on", self._run, request)
            if error is not None:
                guard.call("a request that fails", self.fail, request.number, error)
        guard.call("tokens for clients", self.streams.flush)

    def processor_stats(self) -> ProcessorCacheStats:
        return self.making.stats(self.items.stats())

    def close(self) -> None:
        for request in self._requests:
            self.fail(request.number, RequestAborted("the service stops; try again"))
        self.making.close()
        self._prompts.close()
        self._mailbox.close()

    # ---- from clients

    def accept(self, peer: bytes, message: received.Generate | received.Encode, files: Sequence[Frame]) -> None:
        """Open a request and begin it, or answer with the reason for the refusal."""
        now = self._clock()
        deadline = now + min(message.timeout_s, self._config.request_timeout_s)
        request = OpenRequest(self._requests.next_number(), peer, message, [], deadline, came_at=now)
        if self._start_span is not None:
            kind = type(message).__name__.lower()
            about = {"mmcached.num_images": len(files) - len(message.clips), "mmcached.num_clips": len(message.clips)}
            request.span = self._start_span(f"mmcached.frontend.{kind}", message.traceparent, about)
        try:
            request.media = media_of(message, files)
            self._admission.check(request, self.making.check)
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
        """End one request without an answer; an unknown one changes nothing."""
        request = self._requests.find(client_id, request_id)
        if request is not None:
            self._forget(request)

    # ---- from engines: of a request that is not with that engine (any more), nothing

    def tokens_committed(
        self, engine: EngineConnection, message: from_engine.TokensCommitted, payload: Sequence[Frame]
    ) -> None:
        """Take the tokens and rows that an engine has computed for streams."""
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
        """Take an engine's last message about a request, and resume the request."""
        if isinstance(word, from_engine.RequestMissed):
            self.items.missed(word.mm_hashes)  # true of any request
        request = self._with(engine, word.request_id)
        if request is not None:
            self._run(request, (word, payload))

    def engine_lost(self, engine: EngineConnection, reason: str) -> None:
        for request in self._requests.on_engine(engine):
            self.fail(request.number, RequestAborted(f"the engine died ({reason}); try again"))

    def _with(self, engine: EngineConnection, number: int) -> OpenRequest | None:
        """Return an open request that this engine has; None for others.

        A former frontend may have given the same number to another request.
        """
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

    def end_client(self, client_id: str, error: MmcachedError | None = None) -> None:
        """End a client's requests; with an error as their answer if it is still connected."""
        for request in self._requests.of_client(client_id):
            if error is None:
                self._forget(request)
            else:
                self.fail(request.number, error)

    def fail(self, number: int, error: MmcachedError) -> None:
        """End a request with an error; an unknown one changes nothing."""
        request = self._requests.get(number)
        if request is not None:
            self.num_failed += 1
            self._end(request, error.code)
            self._send(request.peer, to_client.Failed(request.message.request_id, error_to_wire(error)), ())

    # ---- verbs

    def _take(self, done: WorkDone) -> None:
        """Take the result of a thread, and wake the requests that wait for it."""
        if isinstance(done.token, TextWork):
            done.token.outcome = done.outcome
            self._waits.wake(done.token)
        else:
            self.making.take(done)

    def _run(self, request: OpenRequest, word: tuple[Word, Sequence[Frame]] | None = None) -> None:
        """Run a request's verb until it waits again, or has its answer.

        Args:
            word: Last message of its engine with its frames, if the request waits for that.
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
        """End a request without an answer."""
        self.num_failed += 1
        self._end(request, "cancelled")

    def _end(self, request: OpenRequest, error: str = "") -> None:
        """Close a request's verb, and forget the request. `error`: code of the error that has ended it."""
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
