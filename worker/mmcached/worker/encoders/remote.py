"""Has items encoded by actors, perhaps on other hosts: each by the one that has the least to do.

    begin ──record, as bytes──> an actor ──lost, or late──> another one ──lost, or late──> ServiceUnavailable
      └── the items of a step are under way together; then each is waited for

Knows nothing of Ray. A thread looks for actors, so that no step waits for a cluster that does not answer. What an actor
of another fingerprint says is never taken.
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
from mmcached.worker.encoders.encoder import Measured, Outputs, outputs_in
from mmcached.worker.encoders.pieces import Bytes1D

LOOK_S = 1.0
"""Time between two looks for actors while there is work."""
REST_S = 5.0
"""The same at rest, and how long an actor may take to describe itself."""

_logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """Where the actors are."""

    def actors(self) -> Sequence[Actor]:
        """Return all that there are, whether they answer or not. May take long. Raises `Lost`."""

    def close(self) -> None:
        """Let go of the cluster."""


class RemoteEncoder(Closeable):
    """An encoder that asks actors. `begin` and `encode` are of one thread.

    Args:
        cluster: is closed with this encoder.
        device: where outputs are wanted.
        limit_s: for an item; the first actor has half of it.
        start_timeout_s: for the first actor to answer.
        fingerprint: of the actors that are asked; None: the one that most of them have.
        clock: monotonic seconds.
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
        self._thread = threading.Thread(target=self._look_again_and_again, name="mmcached-actors", daemon=True)
        self._thread.start()
        reports = self._table.wait_for(bool, start_timeout_s)
        if reports and not _has(fingerprint, reports):
            # Said now: they may be replaced, but most likely this service has other settings than they.
            others = sorted({report.fingerprint for report in reports.values()})
            _logger.warning("no encoder actor has fingerprint %s, they have %s: another model?", fingerprint, others)
            reports = self._table.wait_for(partial(_has, fingerprint), start_timeout_s)
        if not _has(fingerprint, reports):
            self.close()
            raise ServiceUnavailable(f"no encoder actor of this model within {start_timeout_s} s: `mmcached ray up`")
        self._fingerprint = fingerprint or most_common(reports)
        report = next(report for report in reports.values() if report.fingerprint == self._fingerprint)
        self._measured = Measured(report.form, report.embedding_bytes)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def measure(self) -> Measured:
        return self._measured

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        """Raises as `begin` and what it returns."""
        return self.begin(record, num_embeds)()

    def begin(self, record: Mapping[str, Any], num_embeds: int) -> Callable[[], Outputs]:
        """Send an item, of which nothing is read any more then; return what waits for its outputs.

        The latter raises what the actor's encoder raises, or:
            ServiceUnavailable: no actor has encoded it.
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
        """End the thread, and let go of the cluster. A second call does nothing."""
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
            _logger.warning("an actor has not encoded an item: %s; another one is asked", reason)
        try:
            name, call = self._ask(packed, num_embeds)
            return self._take(name, call, num_embeds, began + self._limit_s)
        except Lost as lost:
            raise ServiceUnavailable(f"no actor has encoded the item: {reason}; then {lost}") from None

    def _take(self, name: str, call: Call, num_embeds: int, deadline: float) -> Outputs:
        """Wait for an actor's answer. Raises `Lost`, and then the actor is not asked until it is heard of again."""
        try:
            fingerprint, num_open, error, outputs = self._answer(call, deadline)
            if fingerprint != self._fingerprint:
                raise Lost(f"{name} has another fingerprint by now")
            found = None if error else self._read(outputs, num_embeds)
            if found is None and not error:
                raise Lost(f"{name} has answered what is no output of the item")
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
        """Return tensors of our own, on our device; None: they are no outputs of this encoder."""
        try:
            record = codec.decode(outputs, tensors="torch", copy=self._device.type == "cpu")
        except RemoteProtocolError:
            return None
        found = outputs_in(record, self._measured.form, num_embeds)
        return found and {name: tensor.to(self._device) for name, tensor in found.items()}

    def _look_again_and_again(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._look()
            except Lost as lost:
                _logger.warning("no look at the encoder actors: %s; those that are known are asked", lost)
            except Exception as error:  # without this thread nobody would be found any more
                _logger.error("no look at the actors", extra={"error": type(error).__name__, "where": places(error)})
            self._is_closed.wait(LOOK_S)
            self._is_wanted.wait(REST_S)
            self._is_wanted.clear()

    def _look(self) -> None:
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
    """Return a record as bytes of its own; its tensors are on the CPU."""
    encoded = codec.encode(dict(record))
    packed = np.empty(encoded.nbytes, np.uint8)
    encoded.write_into(packed)
    return packed


def _has(fingerprint: str | None, reports: Mapping[str, Report]) -> bool:
    """Return whether one of the reports is wanted; with None, any is."""
    return any(fingerprint in (None, report.fingerprint) for report in reports.values())
