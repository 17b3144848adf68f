"""What `Client` and `AsyncClient` say, without sockets: builds each message, and checks what comes back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from mmcached.wire.errors import InvalidRequest, MmcachedError, RemoteProtocolError, error_from_wire
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
from mmcached.wire.messages.parts import MAX_ROW_KEYS, Barrier, RowsWanted

MAX_TIMEOUT_S = 86_400.0
MAX_KEY_CHARACTERS = 256
MAX_KEYS = 4096
MAX_IMAGE_ID_BYTES = 256
MAX_POSITION = 1 << 32
STREAM_WINDOW = 32
"""Tokens of a stream that may be on the way; a caller who takes them at once never waits for the receipt."""
AnswerT = TypeVar("AnswerT", Generated, Encoded, Stats, Probed, Flushed, RowTaken, Records, Present, Stored)
StoreAsk = TakeRow | GetRecords | HaveRecords | PutRecord | ClaimRecord | DropRecord
Ask = Generate | Encode | GetStats | Probe | Flush | StoreAsk


@dataclass(slots=True)
class Options:
    """Settings of a client.

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
        if not -(1 << 31) <= priority < 1 << 31:
            raise InvalidRequest("priority", priority, "a number of 32 bits, with its sign")
        return Generate(
            client_id=self.client_id,
            request_id=next(self._ids),
            prompt=prompt if isinstance(prompt, str) else list(prompt),
            max_tokens=max_tokens,
            timeout_s=self.timeout(timeout_s),
            rows=_checked_rows(RowsWanted() if hidden_states is True else hidden_states or None),
            tenant=self.options.tenant,
            image_ids=image_ids,
            stream_window=stream_window,
            priority=priority,
        )

    def encode(self, *, image_ids: list[str | None], timeout_s: float | None) -> Encode:
        return Encode(self.client_id, next(self._ids), self.timeout(timeout_s), self.options.tenant, image_ids)

    def probe(self, *, timeout_s: float) -> Probe:
        return Probe(next(self._ids), self.timeout(timeout_s))

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
        chosen = self.options.timeout_s if timeout_s is None else timeout_s
        if not 0 < chosen <= MAX_TIMEOUT_S:
            raise InvalidRequest("timeout_s", chosen, f"must be above 0 and at most {MAX_TIMEOUT_S}")
        return chosen


def checked_keys(keys: Sequence[str], field: str = "keys") -> list[str]:
    """Return the keys as they may travel.

    Raises:
        InvalidRequest: too many, too long, or not text; names the first.
    """
    if isinstance(keys, str) or len(keys) > MAX_KEYS:
        raise InvalidRequest(field, len(keys), f"a sequence of at most {MAX_KEYS} keys")
    for index, key in enumerate(keys):
        if not isinstance(key, str) or len(key) > MAX_KEY_CHARACTERS or not _is_unicode(key):
            limit = f"a key is a string of at most {MAX_KEY_CHARACTERS} Unicode characters; hash what is longer"
            raise InvalidRequest(f"{field}[{index}]", repr(key)[:80], limit)
    return list(keys)


def checked_image_ids(image_ids: Sequence[str | None], num_images: int) -> list[str | None]:
    """Return the ids as they may travel: one per image, or an empty list.

    Raises:
        InvalidRequest: another number of them, or one that can be no id; names the first.
    """
    if not image_ids and not isinstance(image_ids, str):
        return []
    if isinstance(image_ids, str) or len(image_ids) != num_images:
        raise InvalidRequest("image_ids", len(image_ids), f"a sequence of {num_images}: an id or None for each image")
    for index, image_id in enumerate(image_ids):
        if image_id is None:
            continue
        is_text = isinstance(image_id, str) and _is_unicode(image_id)
        if not is_text or not 1 <= len(image_id.encode()) <= MAX_IMAGE_ID_BYTES:
            limit = f"an id is text of 1 to {MAX_IMAGE_ID_BYTES} bytes of UTF-8; hash what is longer"
            raise InvalidRequest(f"image_ids[{index}]", repr(image_id)[:80], limit)
    return list(image_ids)


def _checked_rows(rows: RowsWanted | None) -> RowsWanted | None:
    """Return what was asked for if it can be sent.

    Raises:
        InvalidRequest: no key or too many, one that can be no name, a position that is none, one above 0 if all rows
            are wanted, or another delivery than "full" and "delta".
    """
    if rows is None:
        return None
    if isinstance(rows.keys, str) or not 1 <= len(rows.keys) <= MAX_ROW_KEYS:
        raise InvalidRequest("rows.keys", repr(rows.keys)[:80], f"a list of 1 to {MAX_ROW_KEYS} keys")
    checked_keys(rows.keys, "rows.keys")
    if rows.delivery not in ("full", "delta"):
        raise InvalidRequest("rows.delivery", repr(rows.delivery)[:80], '"full" or "delta"')
    if not isinstance(rows.first, int):
        raise InvalidRequest("rows.first", repr(rows.first)[:80], "a position in the prompt")
    if not 0 <= rows.first < MAX_POSITION:
        raise InvalidRequest("rows.first", rows.first, "a position in the prompt, 0 or above")
    if rows.first and rows.delivery == "full":
        raise InvalidRequest("rows.first", rows.first, '0 if all rows are wanted (delivery "full")')
    return rows


def _is_unicode(text: str) -> bool:
    """Return whether it can be sent: a lone surrogate cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


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
