"""The gateway of a service without workers: it refuses requests for computed results, and has nothing else to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import assert_never

import msgspec

from mmcached.frontend.mount import FrontendParts
from mmcached.wire.errors import InvalidRequest, MmcachedError, ServiceUnavailable, error_to_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.process.turns import Guard
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import FrontendStats
from mmcached.wire.vocabulary import Modality


class StoreAlone:
    """Implements `Gateway` without engines; `num_refused` counts the refused generations and embeddings."""

    descriptors: Sequence[int] = ()
    has_more = False
    num_open = 0
    is_idle = True
    is_flushing = False

    def __init__(self, parts: FrontendParts) -> None:
        self._send = parts.send
        self._is_draining = False
        self.num_refused = 0

    def take(self, peer: bytes, message: received.GatewayMessage, payload: Sequence[Frame]) -> None:
        match message:
            case received.Generate() | received.Encode():
                self.num_refused += 1
                self._refuse(peer, message.request_id, _no_workers("to generate or encode"))
            case received.GetProcessorInfo():
                self._refuse(peer, message.request_id, _no_workers("to encode"))
            case received.Probe():
                if self._is_draining:
                    self._refuse(peer, message.request_id, ServiceUnavailable("the service is draining"))
                else:
                    self._send(peer, to_client.Probed(message.request_id, [], 0, []), ())
            case received.TokensTaken() | received.Cancel():
                pass  # of a request that was refused
            case _:
                assert_never(message)

    def receive(self, ready: AbstractSet[int], guard: Guard) -> None:
        pass

    def go_on(self, ready: AbstractSet[int], guard: Guard) -> None:
        pass

    def check(self, now: float, guard: Guard) -> None:
        pass

    def clients(self) -> set[str]:
        return set()

    def end_client(self, client_id: str, error: MmcachedError | None = None) -> None:
        pass

    def drain(self) -> None:
        self._is_draining = True

    def begin_flush(self) -> None:
        pass

    def encoder_fingerprints(self) -> tuple[str, Mapping[Modality, str]]:
        return "", {}

    def ready_engines(self) -> list[int]:
        return []

    def stats(self, own: FrontendStats) -> FrontendStats:
        return msgspec.structs.replace(own, requests_failed=self.num_refused)

    def close(self) -> None:
        pass

    def _refuse(self, peer: bytes, request_id: int, error: MmcachedError) -> None:
        self._send(peer, to_client.Failed(request_id, error_to_wire(error)), ())


def _no_workers(purpose: str) -> InvalidRequest:
    return InvalidRequest("world_size", 0, f"must be more than 0 {purpose}: this service is a store")
