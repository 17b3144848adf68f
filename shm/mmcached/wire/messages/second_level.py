"""Messages between the frontend and the process of its second level, which is one of the frontend's clients."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.handle import Count, Handle
from mmcached.wire.messages.parts import ClientId, Message, Part, Text, Timeout, VersionName

MAX_REPORTED = 256
"""Ends of fetches in one message."""


class Fetch(Part, frozen=True):
    """A record to fetch from the second level; the first level lacks it.

    Attributes:
        number: Id of this fetch.
        store_epoch: Epoch in which the record is to be put.
        claims: A waiting client would compute the record: claim it if no other host has.
        timeout_ms: Time in which the record is useful to waiting clients.
        is_ahead: No client waits for it: other fetches go first.
    """

    number: Count
    tenant: Text
    key: Text
    store_epoch: Count
    claims: bool
    timeout_ms: Count
    is_ahead: bool = False


class FetchEnd(Part, frozen=True):
    """The outcome of a fetch. "elsewhere": another host computes the record; the fetch goes on, and ends once more."""

    number: Count
    outcome: Literal["hit", "miss", "elsewhere", "late", "failed"]


class ClaimState(Part, frozen=True):
    """Whether this host still computes a record that it has claimed among all hosts; `name` is its `store_key`."""

    name: Text
    is_held: bool


class Save(Part, frozen=True):
    """A record of the first level to save in the second level; it may be gone from `place` meanwhile.

    Attributes:
        expires_at: Nanoseconds since boot; 0: it does not expire.
        cost_s: Seconds that computing it took; 0.0: unknown.
    """

    tenant: Text
    key: Text
    place: Handle
    expires_at: Count = 0
    cost_s: float = 0.0


class Drop(Part, frozen=True):
    """A record to drop on all hosts; `name` is its `store_key`, `number` the id of this drop."""

    number: Count
    name: Text


class Orders(Message, frozen=True):
    """Answer to `TakeOrders`: the second level's orders; empty if none came in time.

    Attributes:
        flush: Token of a flush to be done first, and confirmed; 0 for none.
        claims: States of claims: held ones are renewed, the others dropped.
        version: Version of that flush; "" without one.
        store_epoch: Epoch of the records to be saved.
        drops: Records to be dropped before anything else, each to be confirmed.
        recent_names: Names of the records found last on this host, to tell other hosts; empty: nothing new.
        asks_names: The names that other hosts have told are wanted, as `RecentNames`.
    """

    request_id: Count
    fetches: list[Fetch]
    saves: list[Save]
    flush: Count = 0
    claims: list[ClaimState] = msgspec.field(default_factory=list)
    version: VersionName = ""
    store_epoch: Count = 0
    drops: list[Drop] = msgspec.field(default_factory=list)
    recent_names: list[Text] = msgspec.field(default_factory=list)
    asks_names: bool = False


class TakeOrders(Message, frozen=True):
    """A long poll, answered with `Orders` as soon as there are some, or after `timeout_s`.

    The first client that sends it is the second level until its connection ends.
    """

    client_id: ClientId
    request_id: Count
    timeout_s: Timeout


class FetchesEnded(Message, frozen=True):
    """Report outcomes of fetches; found records were put before. No answer; unknown fetches change nothing."""

    client_id: ClientId
    fetches: Annotated[list[FetchEnd], msgspec.Meta(max_length=MAX_REPORTED)]


class SecondLevelFlushed(Message, frozen=True):
    """Confirm the flush with this token in `Orders`, or report its `error`. No answer."""

    client_id: ClientId
    token: Count
    error: Text = ""


class AnotherHostFlushed(Message, frozen=True):
    """Report that another host was flushed: drop fetched records, and fetch and save none until this host is flushed.

    No answer; `reason` is for the log.
    """

    client_id: ClientId
    reason: Text


class DropEnded(Message, frozen=True):
    """Confirm the drop with this number: no host finds an earlier record of the name; or report its `error`.

    No answer.
    """

    client_id: ClientId
    number: Count
    error: Text = ""


class RecordsDropped(Message, frozen=True):
    """Report that other hosts have dropped records: drop those of these names (`store_key`) here, too. No answer.

    Attributes:
        are_all: It is unknown which: drop all records.
    """

    client_id: ClientId
    names: Annotated[list[Text], msgspec.Meta(max_length=MAX_REPORTED)]
    are_all: bool = False


class RecentNames(Message, frozen=True):
    """Report names (`store_key`) of records that other hosts have found last, as `Orders` asked. No answer."""

    client_id: ClientId
    names: Annotated[list[Text], msgspec.Meta(max_length=MAX_REPORTED)]


SecondLevelNotice = FetchesEnded | SecondLevelFlushed | AnotherHostFlushed | DropEnded | RecordsDropped | RecentNames
"""Messages to the frontend without an answer."""
