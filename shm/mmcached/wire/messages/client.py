"""The frontend says these messages to a client."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count, Handle, RingAnnouncement
from mmcached.wire.messages.parts import (
    ClaimState,
    EncoderForm,
    EncoderOutput,
    Fetch,
    Grants,
    Inline,
    Message,
    MessageLimits,
    RequestRows,
    Rows,
    Save,
    SavedRows,
    Seconds,
    StreamedTokens,
    Text,
    TokenId,
)
from mmcached.wire.stats import ServiceStats
from mmcached.wire.vocabulary import Modality


class Welcome(Message, frozen=True):
    """Answer to `ClientHello`: what a client must know of the service.

    Attributes:
        store_ring: the ring of the records that clients put, and of processed items; None if there is none. Another one
            than before: the former frontend is dead, and its leases with it.
        takes_records: whether records of clients are kept; their processed items may be all that lies in the ring.
        store_epoch: rises when everything derived from the old weights was made unreachable.
        limits: on what this client sends; None: there are none.
        max_placed_bytes: of a record, with its note, that is laid into a nursery; 0: there are no nurseries.
        encoder_fingerprint: names all that the output of the engines' encoder depends on beside the item; "" while no
            engine has been ready.
        has_second_level: a key that is not in the ring may be elsewhere: ask.
        item_fingerprints: by modality, what the service makes the keys of items with, beside their files and
            `hasher_algorithm`; "", or nothing, of a modality that it does not take.
    """

    service_id: Text
    image_token_id: TokenId
    eos_token_id: TokenId
    hidden_size: Count
    max_model_len: Count
    store_ring: RingAnnouncement | None = None
    store_epoch: Count = 0
    limits: MessageLimits | None = None
    max_placed_bytes: Count = 0
    encoder_fingerprint: Text = ""
    item_fingerprints: dict[Modality, Text] = msgspec.field(default_factory=dict)
    hasher_algorithm: Literal["blake3", "sha256"] = "blake3"
    has_second_level: bool = False
    takes_records: bool = True


class Tokens(Message, frozen=True):
    """What streamed generations of this client have come to since; those that are finished are answered by `Generated`.

    Attributes:
        rows: of those whose rows are wanted as they are computed; read them before the tokens. Rows of a step never
            come after its tokens.
    """

    streams: list[StreamedTokens]
    rows: list[RequestRows] = msgspec.field(default_factory=list)


class Generated(Message, frozen=True):
    """A finished generation.

    Attributes:
        token_ids: all of them, also those that a stream has brought.
        num_prompt_tokens: after each image marker was replaced by its placeholders.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        rows: the wanted ones of each key, up to position `num_prompt_tokens + len(token_ids) - 1`, less what a
            stream has brought.
        saved_rows: parts of them that the store has, if the request takes keys. One that has gone since: ask again.
    """

    request_id: Count
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length"]
    num_prompt_tokens: Count
    num_cached_tokens: Count
    rows: list[Rows] = msgspec.field(default_factory=list)
    saved_rows: list[SavedRows] = msgspec.field(default_factory=list)


class Encoded(Message, frozen=True):
    """The outputs of the encoder by name, one set per item, in the order of the request; in place of a set its key in
    the store, if the request takes keys. It may have gone from there since: then ask for what is not named.

    Attributes:
        clips: of each clip, the seconds of the file that each of its slices is made of; each slice is an item.
    """

    request_id: Count
    outputs: list[EncoderOutput]
    clips: list[list[tuple[Seconds, Seconds]]] = msgspec.field(default_factory=list)


class Stats(Message, frozen=True):
    request_id: Count
    stats: ServiceStats


class ProcessorInfo(Message, frozen=True):
    """What the service makes of an item."""

    request_id: Count
    encoder: EncoderForm


class Probed(Message, frozen=True):
    """The data path works: these engines and so many workers have read the probe's item right, and all leases are back.

    Attributes:
        faults: what is wrong with other engines, in words.
    """

    request_id: Count
    engines: list[Count]
    num_workers: Count
    faults: list[str]


class Flushed(Message, frozen=True):
    request_id: Count


class ReaderRegistered(Message, frozen=True):
    """Answer to `RegisterReader`: whether leases will come; if not, records come inline."""

    request_id: Count
    is_attached: bool


class NurseryOpened(Message, frozen=True):
    """Answer to `OpenNursery`: the nursery is there, and this room in it is the client's beside what it has.

    Attributes:
        has_checksums: a put has the checksum of its record.
    """

    request_id: Count
    grants: Grants
    has_checksums: bool = False


class Records(Message, frozen=True):
    """Answer to `GetRecords` and `ClaimRecord`, in the order of the keys: where it lies for those who read the ring by
    themselves, inline, or None.
    """

    request_id: Count
    store_epoch: Count
    records: list[Handle | Inline | None]


class Present(Message, frozen=True):
    """Answer to `HaveRecords`, in the order of the keys."""

    request_id: Count
    are_present: list[bool]


class Claimed(Message, frozen=True):
    """Answer to `ClaimRecord`: compute it and put it under token `claim`; others may be waiting for it."""

    request_id: Count
    store_epoch: Count
    claim: Count


class Claims(Message, frozen=True):
    """Answer to `ClaimRecords`, in the order of the keys.

    Attributes:
        found: where the record lies, or inline; or the token of a claim, 0 if others are not kept from computing it; or
            None: somebody computes it.
    """

    request_id: Count
    store_epoch: Count
    found: list[Handle | Inline | Count | None]


DROPPED = "dropped"
"""Reason of the answer to a `DropRecord` whose key had a record."""
EXISTED = "it had one"
"""Reason of the answer to a `PutRecord` whose key has kept its record."""


class Stored(Message, frozen=True):
    """Answer to `PutRecord`: whether the key has a record now; if not, why. Answer to `DropRecord` too.

    Attributes:
        grants: what the client may use of its nursery beside what it has.
    """

    request_id: Count
    store_epoch: Count
    is_stored: bool
    reason: Text = ""
    grants: Grants | None = None


class Orders(Message, frozen=True):
    """Answer to `TakeOrders`: what the second level shall do; nothing of it, if nothing came in time.

    Attributes:
        flush: token of a flush that comes before all else, and is to be confirmed; 0: none.
        claims: what has become of claims: those that are held are renewed, the others are dropped.
    """

    request_id: Count
    fetches: list[Fetch]
    saves: list[Save]
    flush: Count = 0
    claims: list[ClaimState] = msgspec.field(default_factory=list)


class Failed(Message, frozen=True):
    """The request ended with an error. `request_id` is None if that is not known: the message could not be read, which
    no client sends that keeps to `Welcome.limits`; or if the client has no connection: there are too many.
    """

    request_id: Count | None
    error: ErrorInfo


ToClient = (
    Welcome
    | Tokens
    | Generated
    | Encoded
    | Stats
    | ProcessorInfo
    | Probed
    | Flushed
    | ReaderRegistered
    | NurseryOpened
    | Records
    | Present
    | Claimed
    | Claims
    | Stored
    | Orders
    | Failed
)
