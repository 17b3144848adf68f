"""The interface through which a gateway is mounted on the frontend's loop.

    Frontend ──message, turn, deadlines, figures──> Gateway           ModelGateway (mmcached.gateway), or StoreAlone
    Gateway  ──records, second level, messages───> FrontendParts

The frontend imports neither implementation of `Gateway`: its caller passes a `Mount`, the class to create.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mmcached.frontend.store.store_service import StoreService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.client import ToClient
from mmcached.wire.paths import RunDir
from mmcached.wire.process.turns import Guard
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import FrontendStats
from mmcached.wire.vocabulary import Modality

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

Send = Callable[[bytes, ToClient, Sequence[Frame]], bool]
"""Sends a message with its frames to a client's connection; returns whether it was queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendParts:
    """The parts of the frontend that a gateway uses.

    Attributes:
        clock: Monotonic time in seconds.
        announce_encoder: Tells all clients the present fingerprints.
        start_span: Begins the span of a generation or embedding; None: no spans.
    """

    run_dir: RunDir
    config: ServiceConfig
    store: StoreService
    send: Send
    clock: Callable[[], float]
    announce_encoder: Callable[[], None]
    start_span: StartSpan | None = None


class Gateway(Protocol):
    """The part of a frontend that serves requests for computed results. No call waits.

    Errors of a message are answered to its client; other handlers that may raise run under the loop's guard.
    """

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors that become readable when `receive` or `go_on` has something to do."""

    @property
    def has_more(self) -> bool:
        """Whether `receive` has something to do without an event."""

    @property
    def num_open(self) -> int:
        """Number of accepted requests without an answer."""

    @property
    def is_idle(self) -> bool:
        """Whether no request and no probe is open."""

    def take(self, peer: bytes, message: received.GatewayMessage, payload: Sequence[Frame]) -> None:
        """Handle one message of a client."""

    def receive(self, ready: AbstractSet[int], guard: Guard) -> None:
        """Handle the messages of engines. `ready`: the readable descriptors."""

    def go_on(self, ready: AbstractSet[int], guard: Guard) -> None:
        """End a turn: continue the requests whose wait is over, and send finished answers."""

    def check(self, now: float, guard: Guard) -> None:
        """Check deaths of engines, and deadlines."""

    def clients(self) -> set[str]:
        """Return the clients with open requests."""

    def end_client(self, client_id: str, error: MmcachedError | None = None) -> None:
        """End the requests of a client; with an error as their answer if it is still connected."""

    def drain(self) -> None:
        """Accept no new request; open ones go on."""

    def begin_flush(self) -> None:
        """Drop the processed items, and have the engines empty their caches."""

    @property
    def is_flushing(self) -> bool:
        """Whether a live engine has not confirmed the last flush."""

    def encoder_fingerprints(self) -> tuple[str, Mapping[Modality, str]]:
        """Return the encoder's fingerprint, "" if no engine is ready yet, and those of its items by modality."""

    def ready_engines(self) -> list[int]:
        """Return the indices of the engines that may get requests, in order."""

    def stats(self, own: FrontendStats) -> FrontendStats:
        """Return the frontend's figures with those of the gateway."""

    def close(self) -> None:
        """Fail open requests, and release all resources."""


Mount = Callable[[FrontendParts], Gateway]
