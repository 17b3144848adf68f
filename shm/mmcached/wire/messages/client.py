"""Messages from the frontend to a client."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count, Handle, RingAnnouncement
from mmcached.wire.messages.parts import (
    EncoderOutput,
    Grants,
    Inline,
    Message,
    MessageLimits,
    RequestRows,
    Rows,
    SavedRows,
    Seconds,
    ServiceForms,
    StreamedTokens,
    Text,
    TokenId,
    TokenLogprob,
)
from mmcached.wire.messages.second_level import Orders
from mmcached.wire.messages.verification import Verification
from mmcached.wire.vocabulary import Modality


class Welcome(Message, frozen=True):
    """Answer to `ClientHello`: the service's properties.

    Attributes:
        store_ring: The ring of clients' records and processed items; None if there is none. A new ring means that the
            former frontend is dead, and its leases with it.
        takes_records: Whether clients' records are kept; otherwise the ring holds only processed items.
        store_epoch: Rises when everything derived from the old weights was made unreachable.
        limits: Limits on this client's messages; None for no limits.
        max_placed_bytes: The largest record, with its note, in a nursery; 0 if there are no nurseries.
        encoder_fingerprint: Names everything besides the item that an encoder output depends on; "" while no engine has
            been ready.
        has_second_level: A key that is not in the ring may be on another host: ask.
        item_fingerprints: By modality, what items' keys depend on besides their files and `hasher_algorithm`; "" or
            missing for a modality that is not accepted.
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
    """New tokens of this client's streamed generations; finished ones are answered by `Generated`.

    Attributes:
        rows: New rows, for generations whose rows are wanted as they are computed; to be read before the tokens. Rows
            of a step never come after its tokens.
    """

    streams: list[StreamedTokens]
    rows: list[RequestRows] = msgspec.field(default_factory=list)


class Generated(Message, frozen=True):
    """A finished generation.

    Attributes:
        token_ids: All tokens, including those already streamed.
        num_prompt_tokens: Tokens after each image marker was replaced by its placeholders.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
        rows: The wanted rows of each key, up to position `num_prompt_tokens + len(token_ids) - 1`, without those
            already streamed.
        saved_rows: Parts of them that are in the store, if the request takes keys. If one is gone since, ask again.
        logprobs: For each token, if they are wanted: its own, then those of the most likely tokens.
        text: Text of the tokens, up to a stop string; None if the checkpoint has no tokenizer.
        num_items: Images and slices of clips in the prompt.
    """

    request_id: Count
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length"]
    num_prompt_tokens: Count
    num_cached_tokens: Count
    rows: list[Rows] = msgspec.field(default_factory=list)
    saved_rows: list[SavedRows] = msgspec.field(default_factory=list)
    logprobs: list[list[TokenLogprob]] = msgspec.field(default_factory=list)
    text: str | None = None
    num_items: Count = 0


class Encoded(Message, frozen=True):
    """Outputs of the encoder by name, one set per item, in the order of the request.

    If the request takes keys, a set may be replaced by its key in the store; a record that is gone since can be
    requested again without keys.

    Attributes:
        clips: For each clip, start and end in seconds of each of its slices in the file; each slice is an item.
    """

    request_id: Count
    outputs: list[EncoderOutput]
    clips: list[list[tuple[Seconds, Seconds]]] = msgspec.field(default_factory=list)


class Stats(Message, frozen=True):
    """Answer to `GetStats`.

    Attributes:
        stats: The fields of `mmcached.wire.stats.ServiceStats` by name, nested alike. A new figure changes no message:
            receivers ignore names that they do not know, and take missing figures as 0.
    """

    request_id: Count
    stats: dict[str, Any]


class ProcessorInfo(Message, frozen=True):
    """The forms of the service's items, encoder outputs and rows."""

    request_id: Count
    forms: ServiceForms


class Probed(Message, frozen=True):
    """The data path works: these engines and workers have read the probe's item correctly, and returned all leases.

    Attributes:
        faults: Faults of other engines, as text.
    """

    request_id: Count
    engines: list[Count]
    num_workers: Count
    faults: list[str]


class Flushed(Message, frozen=True):
    request_id: Count


class ReaderRegistered(Message, frozen=True):
    """Answer to `RegisterReader`: whether the client may take leases; otherwise records come inline."""

    request_id: Count
    is_attached: bool


class NurseryOpened(Message, frozen=True):
    """Answer to `OpenNursery`: the nursery exists, and the client may use these places in addition to earlier ones.

    Attributes:
        has_checksums: Whether a put must have the checksum of its record.
    """

    request_id: Count
    grants: Grants
    has_checksums: bool = False


class Records(Message, frozen=True):
    """Answer to `GetRecords` and `ClaimRecord`, in the order of the keys.

    Attributes:
        records: A handle for clients that read the ring themselves, an inline record, or None.
    """

    request_id: Count
    store_epoch: Count
    records: list[Handle | Inline | None]


class Present(Message, frozen=True):
    """Answer to `HaveRecords` and `PinRecords`, in the order of the keys."""

    request_id: Count
    are_present: list[bool]


class Prefetching(Message, frozen=True):
    """Answer to `PrefetchRecords`: the number of fetches that it has begun."""

    request_id: Count
    num_begun: Count


class Claimed(Message, frozen=True):
    """Answer to `ClaimRecord`: compute the record and put it with token `claim`; other clients may be waiting."""

    request_id: Count
    store_epoch: Count
    claim: Count


class Claims(Message, frozen=True):
    """Answer to `ClaimRecords`, in the order of the keys.

    Attributes:
        found: A handle or inline record; or the token of a claim, 0 if it is not exclusive; or None if another client
            computes the record.
    """

    request_id: Count
    store_epoch: Count
    found: list[Handle | Inline | Count | None]


DROPPED = "dropped"
"""Reason in the answer to a `DropRecord` whose key had a record."""
EXISTED = "it had one"
"""Reason in the answer to a `PutRecord` whose key has kept its record."""


class Stored(Message, frozen=True):
    """Answer to `PutRecord` and `DropRecord`: whether the key has a record now, and if not, why."""

    request_id: Count
    store_epoch: Count
    is_stored: bool
    reason: Text = ""
    grants: Grants | None = None


class Failed(Message, frozen=True):
    """A request ended with an error.

    Attributes:
        request_id: None if unknown: the message could not be read, which cannot happen within `Welcome.limits`; or the
            client was refused a connection, because too many are open.
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
    | Prefetching
    | Claimed
    | Claims
    | Stored
    | Orders
    | Verification
    | Failed
)
