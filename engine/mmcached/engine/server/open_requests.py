"""Open requests of the engine, each from its message to its answer or error.

A request's resources outside the scheduler are stored under its id and released at its end: inline items, leases on
chunks and encoder outputs, results. Invariant: exactly the open requests have results.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import structlog

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.cache.checkpoints.tokenizer import CheckpointTokenizer
from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.engine_latency import EngineLatency
from mmcached.engine.server.frontend_connection import FrontendConnection
from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.poisonous_requests import PoisonousRequests
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheMiss,
    MmcachedError,
    PoisonousRequest,
    RequestAborted,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.messages import engine as received
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.messages.parts import Feature, StoredItem
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.engine")


class EngineRequests:
    """Open requests of one engine; `publish` publishes the statistics before an error is answered."""

    def __init__(
        self,
        config: ServiceConfig,
        scheduler: Scheduler,
        frontend: FrontendConnection,
        group: WorkerGroup,
        *,
        items: ItemFrames,
        records: HeldRecords,
        latency: EngineLatency,
        clock: Callable[[], float],
        publish: Callable[[], object],
    ) -> None:
        self.results = Results()
        self.num_finished = 0
        self.num_poisonous = 0
        self._max_num = config.max_num_requests
        self._model = config.model
        self._scheduler = scheduler
        self._frontend = frontend
        self._group = group
        self._items = items
        self._records = records
        self._latency = latency
        self._publish = publish
        self._poisonous = PoisonousRequests(clock=clock)
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, message: received.AddRequest, payload: list[Frame]) -> None:
        """Queue a request with its leases and items; answer an error, or `RequestMissed` if it must be sent again."""
        request_id = message.request_id
        if request_id in self._requests:
            log.error("duplicate request dropped", request_id=request_id)
            return
        try:
            has_records = self._records.lease_records(message, self._group.encoder_fingerprint)
            self._items.add(message, payload)
            if not has_records:
                raise CacheMiss([])
            self._check_room()
            request = self._make_request(message)
            self._poisonous.check(request)
            self._scheduler.add_request(request)
        except CacheMiss as miss:
            self._forget(request_id)
            self._frontend.send(to_frontend.RequestMissed(request_id, miss.mm_hashes))
        except MmcachedError as error:
            self.end_with(request_id, error)
        else:
            self._requests[request_id] = request
            self._latency.arrive(request_id, message.kind, message.traceparent)
            self.results.open(request, is_streamed=message.is_streamed)

    def abort(self, request_id: int) -> None:
        self._scheduler.abort(request_id)
        self._forget(request_id, "cancelled")

    def abort_all(self) -> None:
        for request_id in list(self._requests):
            self.abort(request_id)

    def take_answers(
        self, finished: Iterable[Request]
    ) -> list[tuple[to_frontend.RequestGenerated | to_frontend.RequestEncoded, list[Frame]]]:
        answers = []
        for request in finished:
            if request.request_id in self._requests:
                self.num_finished += 1
                answers.append(self.results.take_answer(request))
                self._forget(request.request_id)
        return answers

    def fail(self, request: Request, error: MmcachedError) -> None:
        """Answer a request that the scheduler has ended with an error; a `CacheMiss` asks to send it again."""
        if isinstance(error, CacheMiss):
            self.miss(request)
            return
        log.warning("request failed", request_id=request.request_id, code=error.code)
        if isinstance(error, PoisonousRequest):
            self.num_poisonous += 1
            self._poisonous.add(request, error)
        self.end_with(request.request_id, error)

    def miss(self, request: Request) -> None:
        """Ask the frontend to send a request again that lacks an output; fail it if it was partly answered."""
        if request.num_tokens > request.num_prompt_tokens or request.num_emitted or request.num_rows_delivered:
            reason = "the encoder's output of an item was lost while it was computed; try again"
            self.end_with(request.request_id, RequestAborted(reason))
        else:
            self._forget(request.request_id, CacheMiss.code)
            self._frontend.send(to_frontend.RequestMissed(request.request_id, []))

    def end_with(self, request_id: int, error: MmcachedError) -> None:
        self._forget(request_id, error.code)
        self._publish()
        self._frontend.send(to_frontend.RequestFailed(request_id, error_to_wire(error)))

    def forget_outputs(self) -> None:
        """Drop the leases on encoder outputs of the former epoch; requests that still need one are sent again."""
        self._records.forget_outputs()
        for request in self._requests.values():
            request.outputs.clear()

    def requests_reading(self, step: ScheduledStep, mm_hashes: Sequence[str]) -> list[tuple[Request, Feature]]:
        """Return the step's open requests that have one of these items, or its output, in the store, with the item."""
        lost = {}
        for request in step.requests():
            for feature in request.features:
                is_stored = feature.has_output or isinstance(feature.payload, StoredItem)
                if is_stored and feature.mm_hash in mm_hashes and request.request_id in self._requests:
                    lost[request.request_id] = request, feature
        return list(lost.values())

    def _check_room(self) -> None:
        limit = self._max_num
        if len(self._requests) >= limit:
            reason = f"the engine has {len(self._requests)} requests (max_num_requests = {limit}); try again later"
            raise ServiceUnavailable(reason, field="max_num_requests", value=len(self._requests), limit=limit)

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
            outputs=self._records.tokens(message.request_id),
            store_epoch=message.store_epoch,
            takes_keys=message.takes_keys,
            block_hashes=message.block_hashes,
            sampling=message.sampling,
            stop_token_ids=self._scheduler.caches.language.stop_token_ids.union(
                () if message.sampling is None else message.sampling.stop_token_ids
            ),
            text=self._text_of(message),
            rows_name=f"rows/{secrets.token_hex(16)}" if message.takes_keys and message.store_epoch else "",
        )

    def _text_of(self, message: received.AddRequest) -> AnswerText | None:
        stop = () if message.sampling is None else message.sampling.stop
        return AnswerText(self._tokenizer.text_of, stop) if stop else None

    @cached_property
    def _tokenizer(self) -> CheckpointTokenizer:
        # Only stop strings need it, and the first request with some waits for it: half a second for a large vocabulary.
        return CheckpointTokenizer(Path(self._model.path))

    def _forget(self, request_id: int, error: str = "") -> None:
        """Release a request's resources outside the scheduler; a step in flight keeps the records that it reads."""
        self._requests.pop(request_id, None)
        self._latency.end_request(request_id, error)
        self._items.forget_request(request_id)
        self.results.forget_request(request_id)
        self._records.release_request(request_id)
