"""Remote encoder: sends each item to the least loaded actor, perhaps on another host.

    begin ──record, as bytes──> an actor ──lost, or late──> another one ──lost, or late──> ServiceUnavailable
      └── all items of a step are sent first; then each result is awaited

A thread looks for actors, so that no step waits for a cluster that does not answer. Answers of an actor with another
fingerprint are never used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from mmcached.shm.store import codec
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ErrorInfo, RemoteProtocolError, ServiceUnavailable, error_from_wire
from mmcached.wire.process.turns import places
from mmcached.worker.encoders.actor_table import Actor, ActorTable, Answer, Call, Lost, Report, most_common
from mmcached.worker.encoders.encoder import MeasuredForm, Outputs, outputs_in
from mmcached.worker.encoders.pieces import Bytes1D

LOOK_S = 1.0
"""Time in seconds between two searches for actors while there is work."""
REST_S = 5.0
"""The same while idle, and the timeout for an actor's report."""

_logger = logging.getLogger(__name__)


class Cluster(Protocol):
    def actors(self) -> Sequence[Actor]:
        """Return all actors, whether they answer or not. May take long. Raises `Lost`."""

    def close(self) -> None: ...


class RemoteEncoder(Closeable):
    """Encoder that calls actors. `begin` and `encode` must be called from one thread.

    Args:
        cluster: is closed with this encoder.
        device: of the outputs.
        limit_s: per item; the first actor has half of it.
        start_timeout_s: for the first actor to answer.
        fingerprint: of the actors that are called; None: the most common.

    Raises:
        ServiceUnavailable: no such actor has answered.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        device: torch.device,
        limit_s: float,
        start_timeout_s: float,
        fingerprint: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._device = device
        self._limit_s = limit_s
        self._clock = clock
        self._table = ActorTable()
        self._is_closed = threading.Event()
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._search_loop, name="mmcached-actors", daemon=True)
        self._thread.start()
        reports = self._table.wait_for(bool, start_timeout_s)
        if reports and not _has(fingerprint, reports):
            # Warn now: the actors may be replaced, but most likely their settings differ from this service's.
            others = sorted({report.fingerprint for report in reports.values()})
            _logger.warning("no encoder actor has fingerprint %s, they have %s: another model?", fingerprint, others)
            reports = self._table.wait_for(partial(_has, fingerprint), start_timeout_s)
        if not _has(fingerprint, reports):
            self.close()
            raise ServiceUnavailable(f"no encoder actor of this model within {start_timeout_s} s: `mmcached ray up`")
        self._fingerprint = fingerprint or most_common(reports)
        report = next(report for report in reports.values() if report.fingerprint == self._fingerprint)
        self._rows = report.rows
        self._measured = MeasuredForm(report.form, report.embedding_bytes)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def rows(self) -> Mapping[str, Any] | None:
        return self._rows

    def measure(self) -> MeasuredForm:
        return self._measured

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        return self.begin(record, num_embeds)()

    def begin(self, record: Mapping[str, Any], num_embeds: int) -> Callable[[], Outputs]:
        """Send an item and return a function that waits for its outputs; the record is not read after the call.

        That function raises the errors of the actor's encoder, or `ServiceUnavailable` if no actor has encoded the
        item.
        """
        self._is_wanted.set()
        packed = pack(record)
        began = self._clock()
        first: tuple[str, Call] | Lost
        try:
            first = self._ask(packed, num_embeds)
        except Lost as lost:
            first = lost
        return partial(self._finish, first, packed, num_embeds, began)

    def close(self) -> None:
        """Stop the thread and disconnect from the cluster. Idempotent."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._is_wanted.set()
            self._thread.join(REST_S)
            self._cluster.close()

    def _ask(self, packed: Bytes1D, num_embeds: int) -> tuple[str, Call]:
        nbytes = num_embeds * self._measured.embedding_bytes
        return self._table.ask(self._fingerprint, lambda actor: actor.encode(packed, num_embeds, nbytes))

    def _finish(self, first: tuple[str, Call] | Lost, packed: Bytes1D, num_embeds: int, began: float) -> Outputs:
        try:
            if isinstance(first, Lost):
                raise first
            name, call = first
            return self._take(name, call, num_embeds, began + self._limit_s / 2)
        except Lost as lost:
            reason = str(lost)
            _logger.warning("an actor has not encoded an item: %s; another actor is called", reason)
        try:
            name, call = self._ask(packed, num_embeds)
            return self._take(name, call, num_embeds, began + self._limit_s)
        except Lost as lost:
            raise ServiceUnavailable(f"no actor has encoded the item: {reason}; then {lost}") from None

    def _take(self, name: str, call: Call, num_embeds: int, deadline: float) -> Outputs:
        """Wait for an actor's answer. Raises `Lost`; then the actor is not called until it answers again."""
        try:
            fingerprint, num_open, error, outputs = self._answer(call, deadline)
            if fingerprint != self._fingerprint:
                raise Lost(f"{name} has another fingerprint now")
            found = None if error else self._read(outputs, num_embeds)
            if found is None and not error:
                raise Lost(f"{name} has returned an invalid output for the item")
        except Lost:
            self._table.lost(name)
            self._is_wanted.set()
            raise
        self._table.answered(name, num_open)
        if found is None:
            raise error_from_wire(msgspec.msgpack.decode(error, type=ErrorInfo))
        return found

    def _answer(self, call: Call, deadline: float) -> Answer:
        answer: Answer = call.result(max(0.0, deadline - self._clock()))
        return answer

    def _read(self, outputs: Bytes1D, num_embeds: int) -> Outputs | None:
        """Return own copies of the tensors, on the device; None if they are not outputs of this encoder."""
        try:
            record = codec.decode(outputs, tensors="torch", copy=self._device.type == "cpu")
        except RemoteProtocolError:
            return None
        found = outputs_in(record, self._measured.form, num_embeds)
        return found and {name: tensor.to(self._device) for name, tensor in found.items()}

    def _search_loop(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._search()
            except Lost as lost:
                _logger.warning("search for encoder actors failed: %s; known actors are still called", lost)
            except Exception as error:  # without this thread no new actor would be found
                found = {"error": type(error).__name__, "where": places(error)}
                _logger.error("search for encoder actors failed", extra=found)
            self._is_closed.wait(LOOK_S)
            self._is_wanted.wait(REST_S)
            self._is_wanted.clear()

    def _search(self) -> None:
        calls = []
        for actor in self._cluster.actors():
            with suppress(Lost):
                calls.append((actor, actor.describe()))
        deadline = self._clock() + REST_S
        heard = []
        for actor, call in calls:
            with suppress(Lost, msgspec.DecodeError):
                answer = call.result(max(0.0, deadline - self._clock()))
                heard.append((actor, msgspec.msgpack.decode(answer, type=Report)))
        self._table.looked(heard)


def pack(record: Mapping[str, Any]) -> Bytes1D:
    encoded = codec.encode(dict(record))
    packed = np.empty(encoded.nbytes, np.uint8)
    encoded.write_into(packed)
    return packed


def _has(fingerprint: str | None, reports: Mapping[str, Report]) -> bool:
    return any(fingerprint in (None, report.fingerprint) for report in reports.values())
