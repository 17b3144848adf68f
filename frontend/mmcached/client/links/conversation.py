"""What `Client` and `AsyncClient` say, without sockets: builds each message, and checks what comes back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from mmcached.client import arguments
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, error_from_wire
from mmcached.wire.messages.client import (
    Encoded,
    Failed,
    Flushed,
    Generated,
    Present,
    Probed,
    Records,
    RowTaken,
    Stats,
    Stored,
    ToClient,
    Tokens,
    Welcome,
)
from mmcached.wire.messages.frontend import (
    Cancel,
    ClaimRecord,
    ClientHello,
    DropClaim,
    DropRecord,
    Encode,
    Flush,
    Generate,
    GetRecords,
    GetStats,
    HaveRecords,
    Probe,
    PutRecord,
    TakeRow,
)
from mmcached.wire.messages.parts import Barrier, RowsWanted

STREAM_WINDOW = 32
"""Tokens of a stream that may be on the way; a caller who takes them at once never waits for the receipt."""
AnswerT = TypeVar("AnswerT", Generated, Encoded, Stats, Probed, Flushed, RowTaken, Records, Present, Stored)
StoreAsk = TakeRow | GetRecords | HaveRecords | PutRecord | ClaimRecord | DropRecord
Ask = Generate | Encode | GetStats | Probe | Flush | StoreAsk


@dataclass(slots=True)
class Options:
    """Settings of a client.

    Raises:
        InvalidRequest: one of them can't be.
    Attributes:
        timeout_s: deadline of a call that names none.
        connect_timeout_s: how long the first contact may take.
        tenant: name under which items are cached; other tenants never hit them.
        fail_open: whether a store verb without a service is a miss instead of an error.
    """

    timeout_s: float = 60.0
    connect_timeout_s: float = 10.0
    tenant: str = ""
    fail_open: bool = True

    def __post_init__(self) -> None:
        self.timeout_s = arguments.checked_timeout("timeout_s", self.timeout_s)
        self.connect_timeout_s = arguments.checked_timeout("connect_timeout_s", self.connect_timeout_s)
        arguments.check_tenant(self.tenant)
        arguments.check_bool("fail_open", self.fail_open)


class Conversation:
    """Numbers the requests of one client and checks what comes back."""

    def __init__(self, options: Options) -> None:
        self.client_id = secrets.token_hex(16)
        self.options = options
        self._ids = count(1)

    def hello(self) -> ClientHello:
        return ClientHello(self.client_id)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        image_ids: list[str | None],
        max_tokens: int,
        hidden_states: bool | RowsWanted,
        priority: int,
        timeout_s: float | None,
        stream_window: int = 0,
    ) -> Generate:
        """Raises:
        InvalidRequest: one of them can't be.
        """
        return Generate(
            client_id=self.client_id,
            request_id=next(self._ids),
            prompt=arguments.checked_prompt(prompt),
            max_tokens=arguments.checked_int("max_tokens", max_tokens, 1, arguments.MAX_TOKENS),
            timeout_s=self.timeout(timeout_s),
            rows=arguments.checked_rows(hidden_states),
            tenant=self.options.tenant,
            image_ids=image_ids,
            stream_window=stream_window,
            priority=arguments.checked_int("priority", priority, -(1 << 31), (1 << 31) - 1),
        )

    def encode(self, *, image_ids: list[str | None], timeout_s: float | None) -> Encode:
        return Encode(self.client_id, next(self._ids), self.timeout(timeout_s), self.options.tenant, image_ids)

    def probe(self, *, timeout_s: float) -> Probe:
        """The service gets nine tenths of the time, so that it can still say where the probe is stuck."""
        return Probe(next(self._ids), 0.9 * self.timeout(timeout_s))

    def flush(self, *, new_epoch: bool = False) -> Flush:
        return Flush(next(self._ids), new_epoch)

    def get_stats(self) -> GetStats:
        return GetStats(next(self._ids))

    def cancel(self, request_id: int) -> Cancel:
        return Cancel(self.client_id, request_id)

    # ---- the store

    def take_row(self, *, ring_epoch: int, row: int, nonce: int) -> TakeRow:
        return TakeRow(self.client_id, next(self._ids), ring_epoch, row, nonce)

    def get_records(self, keys: list[str], *, nonce: int) -> GetRecords:
        return GetRecords(self.client_id, next(self._ids), keys, self.options.tenant, nonce)

    def have_records(self, keys: list[str]) -> HaveRecords:
        return HaveRecords(next(self._ids), keys, self.options.tenant)

    def put_record(self, key: str, *, store_epoch: int, claim: int = 0) -> PutRecord:
        return PutRecord(self.client_id, next(self._ids), key, store_epoch, self.options.tenant, claim)

    def claim_record(self, key: str, *, timeout_s: float, nonce: int) -> ClaimRecord:
        return ClaimRecord(self.client_id, next(self._ids), key, timeout_s, self.options.tenant, nonce)

    def drop_claim(self, claim: int) -> DropClaim:
        return DropClaim(self.client_id, claim)

    def drop_record(self, key: str) -> DropRecord:
        return DropRecord(next(self._ids), key, self.options.tenant)

    def timeout(self, timeout_s: float | None) -> float:
        """Return the deadline of a call that names this one, or none.

        Raises:
            InvalidRequest: it is outside what is possible.
        """
        return self.options.timeout_s if timeout_s is None else arguments.checked_timeout("timeout_s", timeout_s)


def answer_id(message: ToClient) -> int | None:
    """Return which request a message answers; None for one that answers no request in particular."""
    return None if isinstance(message, Welcome | Tokens | Barrier) else message.request_id


def failure_of(message: ToClient) -> MmcachedError | None:
    """Return the error that a message reports, rebuilt as its class, or None."""
    return error_from_wire(message.error) if isinstance(message, Failed) else None


def expect(message: ToClient, kind: type[AnswerT]) -> AnswerT:
    """Return the message if it is of the wanted kind.

    Raises:
        MmcachedError: what the service reported.
        RemoteProtocolError: the service answered something else.
    """
    error = failure_of(message)
    if error is not None:
        raise error
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message
