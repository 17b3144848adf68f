"""The desk at which clients ask for generations and embeddings: from a request that has come to its one answer.

    accept --> refused, with the reason                       nothing is left open
       |
    advance --> (items are being made, or no engine is ready: advance again) --> submit --> with an engine --> answered
       ^                                                                 |
       +----------------------- missed: what the engine lacks, resent ---+

Whatever happens on the way (a bad image, a deadline, a cancel, the death of client or engine), a request is answered at
most once and leaves no lease, pin, stream or waiting work behind. Tokens and rows that are wanted as they commit go to
their client at the next `flush`. Knows nothing of sockets: messages to clients go through a callable, those to engines
through the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import structlog

from mmcached.frontend.caches.item_cache import ItemCache, OutgoingItem
from mmcached.frontend.engines.engine_gate import EngineGate
from mmcached.frontend.engines.engine_links import EngineLink
from mmcached.frontend.processing.fair_queue import fair_share
from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.processing.processor import Processed
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.frontend.requests.preparing import Preparing
from mmcached.frontend.requests.request_builder import build_request, prompt_tokens
from mmcached.frontend.requests.token_streams import TokenStreams
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import (
    DeadlineExceeded,
    MmcachedError,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.handle import LeaseId
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as received
from mmcached.wire.sockets.channels import Frame

log = structlog.get_logger("mmcached.frontend")

MAX_RESENDS = 2

FromEngine = (
    received.TokensCommitted
    | received.RequestGenerated
    | received.RequestEncoded
    | received.RequestFailed
    | received.RequestMissed
)
"""What an engine says of requests."""
Answer = Callable[[bytes, to_client.ToClient, Sequence[Frame]], bool]
"""Sends to a client, or drops what it does not take; returns whether it was queued."""


class RequestDesk:
    """All requests of one frontend.

    Args:
        answer: see `Answer`.
        clock: monotonic seconds.
    Attributes:
        num_done, num_failed, num_resends: they only rise.
    """

    def __init__(
        self,
        config: ServiceConfig,
        gate: EngineGate,
        item_cache: ItemCache,
        *,
        processing: Processing,
        preparing: Preparing,
        answer: Answer,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._gate = gate
        self._item_cache = item_cache
        self._processing = processing
        self._preparing = preparing
        self._answer = answer
        self._clock = clock
        self._requests = OpenRequests()
        self._streams = TokenStreams(answer)
        self._waiting: dict[int, None] = {}  # numbers of those that wait for an engine
        self._is_draining = False
        self.num_done = 0
        self.num_failed = 0
        self.num_resends = 0

    def use(self, item_cache: ItemCache) -> None:
        """Keep and send items by another cache from now on."""
        self._item_cache = item_cache

    def __len__(self) -> int:
        """Return how many requests are open."""
        return len(self._requests)

    def clients(self) -> set[str]:
        """Return whose requests are open."""
        return self._requests.clients()

    def drain(self) -> None:
        """Accept no new request from now on; those open go on."""
        self._is_draining = True

    # ---- from clients

    def accept(self, peer: bytes, message: received.Generate | received.Encode, images: list[bytes]) -> None:
        """Open a request, and send it to an engine unless items of it have to be processed first; on any typed error
        answer with it and leave nothing open.
        """
        deadline = self._clock() + min(message.timeout_s, self._config.request_timeout_s)
        request = OpenRequest(self._requests.next_number(), peer, message, images, deadline)
        try:
            self._check_admission(message)
            self._check_contents(request)
            self._check_image_bytes(request)
            self._advance(request)
        except MmcachedError as error:
            self.num_failed += 1
            log.info("request refused", request_id=request.number, code=error.code)
            self._answer(peer, to_client.Failed(message.request_id, error_to_wire(error)), ())
            return
        self._requests.add(request)
        self._streams.open(request)

    def advance(self, request: OpenRequest) -> None:
        """Go on with an open request for which items have come; fail it if it cannot be served."""
        try:
            self._advance(request)
        except MmcachedError as error:
            log.info("request failed", request_id=request.number, code=error.code)
            self.fail(request.number, error)

    def _check_admission(self, message: received.Generate | received.Encode) -> None:
        if self._is_draining:
            raise ServiceUnavailable("the service is draining; try another one")
        num_open, limit = len(self._requests), self._config.max_num_requests
        if num_open >= limit:
            reason = f"{num_open} requests are open (max_num_requests = {limit}); try again later"
            raise ServiceUnavailable(reason, field="max_num_requests", value=num_open, limit=limit)
        num_open, limit = self._requests.num_of_client(message.client_id), self._config.limits.max_requests_per_client
        if num_open >= limit:
            name = "limits.max_requests_per_client"
            reason = f"{num_open} requests of this client are open ({name} = {limit}); try again later"
            raise ServiceUnavailable(reason, field=name, value=num_open, limit=limit)
        if self._requests.find(message.client_id, message.request_id) is not None:
            raise RemoteProtocolError(f"request {message.request_id} of this client is open already", "request_id")

    def _check_contents(self, request: OpenRequest) -> None:
        """Refuse what needs no work to be refused, before any is begun."""
        request.token_ids = prompt_tokens(request.message, len(request.images), self._config)
        self._processing.check(request.images, request.image_ids)

    def _check_image_bytes(self, request: OpenRequest) -> None:
        """Refuse a client's files beyond its share of memory; where no request holds any, one may be larger."""
        new, held = request.image_bytes, self._requests.image_bytes
        if not new or not held:
            return
        of_client = self._requests.image_bytes_of_client(request.message.client_id)
        name, limit = "limits.max_open_image_mb", self._config.limits.max_open_image_mb * MIB
        if of_client + new > fair_share(limit, held - of_client):
            reason = f"open requests hold {held} bytes of image files, {of_client} of them this client's"
            reason = f"{reason} ({name} = {limit} bytes, half of what is left for one client); try again later"
            raise ServiceUnavailable(reason, field=name, value=held + new, limit=limit)

    def _choose_engine(self) -> EngineLink | None:
        return self._gate.links.choose(lambda engine: len(list(self._requests.on_engine(engine.incarnation))))

    def _advance(self, request: OpenRequest) -> None:
        """Send a request if all its items are there and an engine is ready. If not the items are being made, or it
        waits, and it is advanced again then.
        """
        if self._choose_engine() is None:
            self._waiting[request.number] = None
            return
        try:
            given = self._preparing.advance(request)
            if given is None:
                return
            if not self._submit(request, given):
                self._waiting[request.number] = None
                return
        except MmcachedError:
            self._preparing.leave(request.number, has_used=False)
            raise
        self._preparing.leave(request.number, has_used=True)

    def send_waiting(self) -> None:
        """Go on with those that wait for an engine, if one is ready."""
        if self._waiting and self._choose_engine() is not None:
            waiting, self._waiting = self._waiting, {}
            for number in waiting:
                request = self._requests.get(number)
                if request is not None:
                    self.advance(request)

    def _submit(self, request: OpenRequest, given: Mapping[str, Processed]) -> bool:
        """Resolve, lease, send. Either the engine's queue has the request, or no lease, pin or mirror has moved; return
        False if that is because no engine is there any more.
        """
        link = self._choose_engine()
        if link is None:
            return False
        try:
            items = self._item_cache.resolve(request.keys, given)

            def make(
                routed: Sequence[OutgoingItem], leases: Sequence[LeaseId | None]
            ) -> tuple[to_engine.AddRequest, list[Frame]]:
                add, payload = build_request(
                    request.number,
                    request.message,
                    request.token_ids,
                    routed,
                    leases=leases,
                    mirror_seq=self._item_cache.next_mirror_seq,
                    config=self._config,
                )
                request.num_prompt_tokens = len(add.prompt_token_ids)
                return add, payload

            self._item_cache.sent(self._gate.send_with_leases(link, items, make))
        except PeerGone:
            return False
        finally:
            self._item_cache.release()
        request.engine = link.incarnation
        return True

    # ---- from engines

    def handle_engine(self, engine: int, message: FromEngine, payload: Sequence[Frame]) -> None:
        """Take what an engine (by incarnation) says of a request; one that is not open, or not with it, is nobody's: it
        may be of a former frontend, which gave the same numbers.
        """
        if isinstance(message, received.TokensCommitted):
            self._pass_on(engine, message, payload)
            return
        if isinstance(message, received.RequestMissed):
            self._item_cache.missed(message.mm_hashes)  # true whosever request it was
        if not self._is_with(engine, message.request_id):
            return
        match message:
            case received.RequestGenerated():
                self._finish_generation(message, payload)
            case received.RequestEncoded():
                request = self._take(message.request_id)
                if request is not None:
                    self.num_done += 1
                    answer = to_client.Encoded(request.message.request_id, message.embeddings)
                    self._answer(request.peer, answer, payload)
            case received.RequestFailed():
                request = self._take(message.request_id)
                if request is not None:
                    self.num_failed += 1
                    self._answer(request.peer, to_client.Failed(request.message.request_id, message.error), ())
            case received.RequestMissed():
                self._resend(message)
            case _:
                assert_never(message)

    def _is_with(self, engine: int, number: int) -> bool:
        request = self._requests.get(number)
        return request is not None and request.engine == engine

    def _pass_on(self, engine: int, message: received.TokensCommitted, payload: Sequence[Frame]) -> None:
        for rows in message.rows:
            if not self._is_with(engine, rows.request_id):
                continue
            try:
                self._streams.committed_rows(rows, payload)
            except MmcachedError as error:
                request = self._requests.get(rows.request_id)
                if request is not None:
                    self._abort_in_engine(request)
                    self.fail(request.number, error)
        for tokens in message.streams:
            if self._is_with(engine, tokens.request_id):
                self._streams.committed(tokens)

    def engine_lost(self, link: EngineLink, reason: str) -> None:
        """Fail what an engine had that is gone."""
        for request in self._requests.on_engine(link.incarnation):
            self.fail(request.number, RequestAborted(f"the engine died ({reason}); try again"))

    def _finish_generation(self, message: received.RequestGenerated, payload: Sequence[Frame]) -> None:
        try:
            rows, frames = self._streams.rest(message.request_id, message.rows, payload)
        except MmcachedError as error:
            self.fail(message.request_id, error)
            return
        request = self._take(message.request_id)
        if request is None:
            return
        self.num_done += 1
        answer = to_client.Generated(
            request_id=request.message.request_id,
            token_ids=message.token_ids,
            finish_reason=message.finish_reason,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=message.num_cached_tokens,
            rows=rows,
        )
        self._answer(request.peer, answer, frames)

    def _resend(self, message: received.RequestMissed) -> None:
        """Send a request again whose items the engine could not use. What is not cached here either is processed
        again; if only an id came for it, the request ends with a `CacheMiss`.
        """
        request = self._requests.get(message.request_id)
        if request is None:
            return
        request.num_resends += 1
        self.num_resends += 1
        if request.num_resends > MAX_RESENDS:
            reason = f"the engine missed items {request.num_resends} times; try again"
            self.fail(request.number, RequestAborted(reason))
            return
        request.engine = 0
        self.advance(request)

    # ---- streams

    def taken(self, message: received.TokensTaken) -> None:
        """A client has taken tokens or rows of a streamed generation: it may be sent more."""
        request = self._requests.find(message.client_id, message.request_id)
        if request is not None:
            self._streams.taken(request.number, message)

    def flush(self) -> None:
        """Send the tokens and rows that have come and may be sent."""
        self._streams.flush()

    # ---- deadlines and ends

    def check(self, now: float) -> None:
        """Send what has waited for an engine, if there is one now; fail those whose time is over."""
        self.send_waiting()
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

    def cancel(self, client_id: str, request_id: int) -> None:
        """Forget one request; an unknown one changes nothing."""
        request = self._requests.find(client_id, request_id)
        if request is not None:
            self._end(request)

    def fail_client(self, client_id: str, error: MmcachedError) -> None:
        """Answer everything that a client has open with an error."""
        for request in self._requests.of_client(client_id):
            self._abort_in_engine(request)
            self.fail(request.number, error)

    def fail_all(self, error: MmcachedError) -> None:
        """Answer everything that is open with an error."""
        for request in self._requests:
            self.fail(request.number, error)

    def _end(self, request: OpenRequest) -> None:
        """Forget a request without an answer: nobody waits for it. The engine gives its leases back."""
        self._take(request.number)
        self._preparing.leave(request.number, has_used=False)
        self.num_failed += 1
        self._abort_in_engine(request)

    def fail(self, number: int, error: MmcachedError) -> None:
        """End a request with an error; one that is not open changes nothing."""
        request = self._take(number)
        if request is not None:
            self._preparing.leave(number, has_used=False)
            self.num_failed += 1
            self._answer(request.peer, to_client.Failed(request.message.request_id, error_to_wire(error)), ())

    def _take(self, number: int) -> OpenRequest | None:
        """Forget a request, and the tokens and rows that wait for its client; return it if it was open."""
        self._streams.close(number)
        self._waiting.pop(number, None)
        return self._requests.take(number)

    def _abort_in_engine(self, request: OpenRequest) -> None:
        link = self._gate.links.get(request.engine)
        if link is not None:
            self._gate.tell(link, to_engine.AbortRequest(request.number))
