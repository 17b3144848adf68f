"""Serves the clients' generations and embeddings: from a request that has come to its one answer.

    accept --> refused, with the reason                       nothing is left open
       |
    advance --> (items are being made, or no engine is ready: advance again) --> submit --> with an engine --> answered
       ^                                                                 |
       +----------------------- missed: what the engine lacks, resent ---+

Whatever happens on the way (a bad image, a deadline, a cancel, the death of client or engine), a request is answered at
most once and leaves no lease, pin, stream or waiting work behind. Tokens and rows that are wanted as they commit go to
their client at the end of the turn. Knows nothing of sockets: messages to clients go through a callable, those to
engines through their connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from mmcached.frontend.caches.item_cache import ItemCache
from mmcached.frontend.engines.engine_connections import EngineConnection, EngineConnections
from mmcached.frontend.processing.media import media_of
from mmcached.frontend.requests.admission import Admission
from mmcached.frontend.requests.clip_records import ClipRecords
from mmcached.frontend.requests.encoder_outputs import EncoderOutputs
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.frontend.requests.preprocessing import preprocessing_from_config
from mmcached.frontend.requests.submission import Submission
from mmcached.frontend.requests.token_streams import TokenStreams
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevel
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    DeadlineExceeded,
    InvariantError,
    MmcachedError,
    RequestAborted,
    error_to_wire,
)
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.parts import EncoderOutput
from mmcached.wire.process.turns import Guard
from mmcached.wire.slow_log import SlowCalls
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ProcessorCacheStats
from mmcached.wire.vocabulary import Modality

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

log = structlog.get_logger("mmcached.frontend")

MAX_RESENDS = 2

Send = Callable[[bytes, to_client.ToClient, Sequence[Frame]], bool]
"""Sends to a client, or drops what it does not take; returns whether it was queued."""


class RequestService:
    """All requests of one frontend; `num_done`, `num_failed` and `num_resends` only rise.

    `slow` has those that took too long.

    Args:
        start_span: begins the span of a request; None: requests have no spans.
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
        self._preprocessing = preprocessing_from_config(config, items, ClipRecords(records, config, second_level))
        self._admission = Admission(config, self._requests, self._preprocessing)
        self.outputs = EncoderOutputs(config, records, connections, second_level, clock=clock)
        self._submission = Submission(
            config, connections, self._requests, self.outputs, items=items, counts=self._preprocessing.counts
        )
        self.streams = TokenStreams(send)
        self._waiting: dict[int, None] = {}  # numbers of those that wait for an engine
        self.slow = SlowCalls(config.slow_log_ms, log.warning)
        self.num_done = 0
        self.num_failed = 0
        self.num_resends = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def items(self) -> ItemCache:
        """The cache of processed items."""
        return self._submission.items

    @property
    def item_fingerprints(self) -> Mapping[Modality, str]:
        """By modality, all that the keys of items depend on beside their files."""
        return self._preprocessing.item_fingerprints

    def clients(self) -> set[str]:
        return self._requests.clients()

    @property
    def pinned_bytes(self) -> int:
        """Bytes of items in the store that open requests keep there."""
        return self._submission.pins.num_bytes

    @property
    def num_beyond_quota(self) -> int:
        """Items that travelled as frames because their engine's requests had too much pinned."""
        return self._submission.pins.num_beyond_quota

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `go_on` has something to do."""
        return self._preprocessing.fileno()

    def drain(self) -> None:
        """Accept no new request from now on; those open go on."""
        self._admission.is_draining = True

    def forget_items(self) -> None:
        """Forget all processed items, and let nothing that is being processed be cached or sent."""
        self.items.clear()
        self._preprocessing.flush()
        self.outputs.flush()

    def go_on(self, guard: Guard) -> None:
        """End a turn: advance what has been processed or has waited for an engine, and send what streams have."""
        # First who has waited for room: whoever is asked before may take it.
        for request in (*self._take_ready(), *self._preprocessing.collect(), *self._take_waiting()):
            error = guard.call("a request that goes on", self._advance_or_fail, request)
            if error is not None:
                guard.call("a request that fails", self.fail, request.number, error)
        guard.call("tokens for clients", self.streams.flush)

    def processor_stats(self) -> ProcessorCacheStats:
        return self._preprocessing.stats(self.items.stats())

    def check_integrity(self) -> None:
        """Raise `InvariantError` if requests, streams or waiting work contradict themselves."""
        self._requests.check_integrity()
        self._preprocessing.check_integrity()
        self.streams.check_integrity()
        self.outputs.check_integrity()
        noted = self.streams.numbers() | self._preprocessing.numbers()
        noted |= self.outputs.numbers() | self._submission.numbers()
        if left := noted - {request.number for request in self._requests}:
            raise InvariantError(f"streams, or waits, of requests that are over: {left}")

    def close(self) -> None:
        for request in self._requests:
            self.fail(request.number, RequestAborted("the service stops; try again"))
        self._preprocessing.close()

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
            self._admission.check(request)
            self._advance(request)
        except MmcachedError as error:
            self.num_failed += 1
            log.info("request refused", request_id=request.number, code=error.code)
            if request.span is not None:
                request.span.end(error.code)
            self._send(peer, to_client.Failed(message.request_id, error_to_wire(error)), ())
            return
        self._requests.add(request)
        self.streams.open(request)
        self._answer_named(request)

    def taken(self, message: received.TokensTaken) -> None:
        request = self._requests.find(message.client_id, message.request_id)
        if request is not None:
            self.streams.taken(request.number, message)

    def cancel(self, client_id: str, request_id: int) -> None:
        """Forget one request; an unknown one changes nothing."""
        request = self._requests.find(client_id, request_id)
        if request is not None:
            self._end(request)

    # ---- on the way to an engine

    def _advance_or_fail(self, request: OpenRequest) -> None:
        if request.engine or self._requests.get(request.number) is not request:
            return  # it waited for two things, which came in one turn: it has been sent, or has ended
        try:
            if request.answer is None:
                self._advance(request)
            self._answer_named(request)
        except MmcachedError as error:
            log.info("request failed", request_id=request.number, code=error.code)
            self.fail(request.number, error)

    def _advance(self, request: OpenRequest) -> None:
        """Send a request if all its items are there and an engine is ready; if not, it is advanced again later."""
        is_sent = False
        if self._submission.is_possible:
            try:
                if not self._preprocessing.has_keys(request):
                    return
                stored = self.outputs.look(request)
                if self.outputs.are_all_in(request, stored):
                    self._preprocessing.leave(request.number, has_used=False)
                    request.answer = _encoded(request, [*self.outputs.keys(request)]), ()
                    return
                if self.outputs.has_to_fetch(request, stored):
                    return
                stored = self.outputs.loadable(request, stored)
                given = self._preprocessing.advance(request, stored)
                if given is None:
                    return
                is_sent = self._submission.submit(request, given, stored)
                if is_sent and request.span is not None:
                    about = {"mmcached.num_processed": len(given), "mmcached.num_stored": len(stored)}
                    request.span.end_phase("mmcached.frontend.preprocess", attributes=about)
            except Exception:  # a fault, too: what the request has joined counts until it leaves
                self._preprocessing.leave(request.number, has_used=False)
                self.outputs.leave(request.number)
                raise
        if is_sent:
            self._preprocessing.leave(request.number, has_used=True)
        elif not (self.outputs.is_waiting(request.number) or self._submission.inline.is_waiting(request.number)):
            self._waiting[request.number] = None

    def _take_waiting(self) -> list[OpenRequest]:
        """Return and forget those that wait for an engine, if one is ready."""
        if not self._waiting or not self._submission.is_possible:
            return []
        waiting, self._waiting = self._waiting, {}
        return [request for number in waiting if (request := self._requests.get(number)) is not None]

    def _take_ready(self) -> list[OpenRequest]:
        """Return and forget those that have waited for what is encoded, or fetched, or for room."""
        ready = [*self.outputs.take_ready(), *self._submission.inline.take_ready()]
        return [request for number in ready if (request := self._requests.get(number)) is not None]

    # ---- from engines: of a request that is not with that engine (any more), nothing

    def tokens_committed(self, engine: int, message: received.TokensCommitted, payload: Sequence[Frame]) -> None:
        """Take tokens and rows that an engine (by incarnation, here and below) has computed for streams."""
        for rows in message.rows:
            request = self._with(engine, rows.request_id)
            if request is None:
                continue
            try:
                self.streams.committed_rows(rows, payload)
            except MmcachedError as error:
                self._abort_in_engine(request)
                self.fail(request.number, error)
        for tokens in message.streams:
            request = self._with(engine, tokens.request_id)
            if request is not None:
                self._requests.prompt_computed(request)
                self.streams.committed(tokens)

    def generated(self, engine: int, message: received.RequestGenerated, payload: Sequence[Frame]) -> None:
        request = self._with(engine, message.request_id)
        if request is None:
            return
        try:
            rows, frames = self.streams.rest(message.request_id, message.rows, payload)
        except MmcachedError as error:
            self.fail(message.request_id, error)
            return
        answer = to_client.Generated(
            request_id=request.message.request_id,
            token_ids=message.token_ids,
            finish_reason=message.finish_reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=message.num_cached_tokens,
            rows=rows,
            saved_rows=message.saved_rows,
        )
        if not message.saved_rows:
            self._finish(request, answer, frames)
            return
        self.outputs.expect(request, [rows.name for rows in message.saved_rows])
        self._hold_answer(request, answer, frames)

    def encoded(self, engine: int, message: received.RequestEncoded, payload: Sequence[Frame]) -> None:
        request = self._with(engine, message.request_id)
        if request is not None:
            self._hold_answer(request, _encoded(request, message.outputs), payload)

    def _hold_answer(
        self, request: OpenRequest, answer: to_client.Encoded | to_client.Generated, payload: Sequence[Frame]
    ) -> None:
        """Answer a request as soon as the store has all that is named. Its engine may die from now on."""
        self._requests.move(request, 0)
        self._submission.leave(request.number)
        request.answer = answer, payload
        self._advance_or_fail(request)

    def _answer_named(self, request: OpenRequest) -> None:
        """Answer an open request whose results are here or in the store. If they are being put there, it waits; if they
        were not kept, it gets them inline.

        Raises:
            RequestAborted: the engine has named what was to come inline.
        """
        if request.answer is None or self._requests.get(request.number) is not request:
            return
        answer, payload = request.answer
        keys = _named_in(answer)
        if keys and not request.takes_keys:
            raise RequestAborted("the engine has named records of the store in an answer; try again")
        if self.outputs.have_to_come(request, keys):
            return
        if self.outputs.have_come(request, keys):
            self._finish(request, answer, payload)
            return
        self.outputs.leave(request.number, has_ended=False)
        if request.span is not None:
            request.span.end_phase("mmcached.frontend.missed")
        request.answer, request.has_to_be_inline = None, True
        self._advance(request)

    def failed(self, engine: int, message: received.RequestFailed) -> None:
        """Answer a request that its engine could not serve."""
        request = self._with(engine, message.request_id)
        if request is not None:
            self._take(request.number, message.error.code)
            self.num_failed += 1
            self._send(request.peer, to_client.Failed(request.message.request_id, message.error), ())

    def missed(self, engine: int, message: received.RequestMissed) -> None:
        """Send a request again whose items the engine could not use."""
        self.items.missed(message.mm_hashes)  # true whosever request it was
        request = self._with(engine, message.request_id)
        if request is None:
            return
        request.num_resends += 1
        self.num_resends += 1
        if request.span is not None:
            request.span.end_phase("mmcached.frontend.missed")
        if request.num_resends > MAX_RESENDS:
            reason = f"the engine missed items {request.num_resends} times; try again"
            self.fail(request.number, RequestAborted(reason))
            return
        self._requests.move(request, 0)
        self._submission.leave(request.number)
        self.outputs.leave(request.number, has_ended=False)
        self._advance_or_fail(request)

    def engine_lost(self, connection: EngineConnection, reason: str) -> None:
        for request in self._requests.on_engine(connection.incarnation):
            self.fail(request.number, RequestAborted(f"the engine died ({reason}); try again"))

    def _with(self, engine: int, number: int) -> OpenRequest | None:
        """Return a request if that engine has it; a former frontend may have given the same number to another."""
        request = self._requests.get(number)
        return request if request is not None and request.engine == engine else None

    def _finish(self, request: OpenRequest, answer: to_client.ToClient, payload: Sequence[Frame]) -> None:
        self._take(request.number)
        self.num_done += 1
        self._send(request.peer, answer, payload)

    # ---- deadlines and ends

    def check(self, now: float) -> None:
        self.outputs.check(now)
        for request in self._requests.expired(now):
            timeout_s = min(request.message.timeout_s, self._config.request_timeout_s)
            self._abort_in_engine(request)
            operation = type(request.message).__name__.lower()
            if request.number in self._waiting:
                operation += " (no engine was ready)"
            self.fail(request.number, DeadlineExceeded(operation, timeout_s))

    def end_client(self, client_id: str) -> None:
        """Forget what a client has asked for: it is gone."""
        for request in self._requests.of_client(client_id):
            self._end(request)

    def fail_client(self, client_id: str, error: MmcachedError) -> None:
        for request in self._requests.of_client(client_id):
            self._abort_in_engine(request)
            self.fail(request.number, error)

    def _end(self, request: OpenRequest) -> None:
        """Forget a request without an answer: nobody waits for it. The engine gives its leases back."""
        self._take(request.number, "cancelled")
        self.num_failed += 1
        self._abort_in_engine(request)

    def fail(self, number: int, error: MmcachedError) -> None:
        """End a request with an error; one that is not open changes nothing."""
        request = self._take(number, error.code)
        if request is not None:
            self.num_failed += 1
            self._send(request.peer, to_client.Failed(request.message.request_id, error_to_wire(error)), ())

    def _take(self, number: int, error: str = "") -> OpenRequest | None:
        """Forget a request, and all that waits for it; return it if it was open. `error`: what has ended it."""
        self.streams.close(number)
        self._preprocessing.leave(number, has_used=False)
        self.outputs.leave(number)
        self._submission.leave(number)
        self._waiting.pop(number, None)
        request = self._requests.take(number)
        if request is not None:
            message, took_s = request.message, self._clock() - request.came_at
            kind, num_files = type(message).__name__.lower(), len(request.media)
            self.slow.note("request", took_s, number, request_id=number, kind=kind, num_files=num_files)
            if request.span is not None:
                request.span.end(error)
        return request

    def _abort_in_engine(self, request: OpenRequest) -> None:
        connection = self._connections.get(request.engine)
        if connection is not None:
            self._connections.tell(connection, to_engine.AbortRequest(request.number))


def _encoded(request: OpenRequest, outputs: list[EncoderOutput]) -> to_client.Encoded:
    clips = [[(each.start_s, each.end_s) for each in medium.slices] for medium in request.media if medium.options]
    return to_client.Encoded(request.message.request_id, outputs, clips)


def _named_in(answer: to_client.Encoded | to_client.Generated) -> list[str]:
    """Return the keys in the store of what an answer names."""
    if isinstance(answer, to_client.Generated):
        return [rows.name for rows in answer.saved_rows]
    return [output for output in answer.outputs if isinstance(output, str)]
