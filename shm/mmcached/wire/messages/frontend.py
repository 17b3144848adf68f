"""Messages from clients to the frontend; those from engines, on another socket, are in `frontend_from_engines`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import (
    ChatMessage,
    ClientId,
    ClipOptions,
    Message,
    NurseryPlace,
    PlacedBytes,
    Priority,
    RowsWanted,
    Sampling,
    Text,
    Timeout,
    TokenId,
    Traceparent,
    VersionName,
)
from mmcached.wire.messages.second_level import SecondLevelNotice, TakeOrders
from mmcached.wire.messages.verification import Verified, Verify

CLIENT_NAME = r"^[a-z0-9][a-z0-9._-]{0,31}\Z"
ClientName = Annotated[str, msgspec.Meta(pattern=CLIENT_NAME)]
ANY_CLIENT: ClientName = "client"
"""The name of clients without a name of their own."""
MAX_TTL_S, MAX_COST_S = 1e9, 42_000.0
MAX_PIN_S = 86_400
MAX_KEYS = 256
"""Keys in one message: more are sent in several messages, between which other clients have their turn."""
Keys = Annotated[list[Text], msgspec.Meta(max_length=MAX_KEYS)]
MAX_CLIPS = 1024
Clips = Annotated[list[ClipOptions], msgspec.Meta(max_length=MAX_CLIPS)]
ContentDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32,128}\Z")]
MAX_MESSAGES = 4096

ROW_WINDOW_BYTES = 1 << 20
"""The most bytes of a stream's rows on their way to its client before it confirms them. The client confirms every half
of it, so both ends must agree on the value.
"""


class ClientHello(Message, frozen=True):
    """First message of a client, which holds the lock of `clients/<client_id>.lock` for its life; a free lock means it
    is dead.

    Every request repeats the `client_id`, so a restarted frontend needs no second hello. The first connection that
    names it belongs to this client until it is closed: other connections that use the id are refused.

    Attributes:
        name: Name of the kind of client, for its figures; a restarted frontend learns it with the next hello.
    """

    client_id: ClientId
    name: ClientName = ANY_CLIENT


class Generate(Message, frozen=True):
    """Continue a prompt; the files are the further frames: the images, one per `<image>` marker, then the clips.

    Attributes:
        prompt: Text (markers spelled `<image>`, `<video>`, `<audio>`), or token ids (markers are the tokens of these).
        timeout_s: Time after which the frontend abandons the request.
        image_ids: One per image, or empty. An image is cached and looked up under its id; an empty frame requests the
            cached image, and if there is none, the answer is a `CacheMiss` that names the ids.
        stream_window: The most tokens on their way to the client before it confirms them, see `TokensTaken`; 0: no
            stream, all tokens come with the answer.
        priority: Lower is served earlier, if the service uses priorities (`scheduling_policy`).
        takes_keys: The client reads the store: large parts of the rows may be sent as keys of records there.
        clips: Options of each clip; those of one modality in the order of their markers.
        traceparent: Trace context of the client's span.
        sampling: How tokens are chosen; None: the most likely ones.
        messages: A conversation instead of a prompt, which is empty then; its images are the first frames, in order.
        contents: One per frame, or empty: the digest of a file whose frame is empty, None for a file that is sent. If
            the frontend needs such a file, the answer is a `CacheMiss` that names the digests.
    """

    client_id: ClientId
    request_id: Count
    prompt: str | list[TokenId]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    rows: RowsWanted | None
    timeout_s: Timeout
    tenant: Text = ""
    image_ids: list[Text | None] = msgspec.field(default_factory=list)
    stream_window: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    priority: Priority = 0
    takes_keys: bool = False
    clips: Clips = msgspec.field(default_factory=list)
    traceparent: Traceparent = ""
    sampling: Sampling | None = None
    messages: Annotated[list[ChatMessage], msgspec.Meta(max_length=MAX_MESSAGES)] = msgspec.field(default_factory=list)
    contents: list[ContentDigest | None] = msgspec.field(default_factory=list)


class Encode(Message, frozen=True):
    """Embed images and clips; their files are the further frames. Fields not named here are as in `Generate`.

    Attributes:
        takes_keys: The client reads the store: large outputs may be sent as keys of records there.
    """

    client_id: ClientId
    request_id: Count
    timeout_s: Timeout
    tenant: Text = ""
    image_ids: list[Text | None] = msgspec.field(default_factory=list)
    takes_keys: bool = False
    clips: Clips = msgspec.field(default_factory=list)
    traceparent: Traceparent = ""
    contents: list[ContentDigest | None] = msgspec.field(default_factory=list)


class TokensTaken(Message, frozen=True):
    """Confirm tokens and rows of a streamed generation, so that more may be sent. No answer.

    Unknown or finished ids change nothing, nor do numbers that were confirmed before.

    Attributes:
        num_tokens: Number of tokens received since the start of the stream.
        num_row_bytes: Bytes of rows received since the start, all keys together.
    """

    client_id: ClientId
    request_id: Count
    num_tokens: Count
    num_row_bytes: Count = 0


class Cancel(Message, frozen=True):
    """End a request of the same client; unknown or finished ids change nothing. No answer."""

    client_id: ClientId
    request_id: Count


class GetStats(Message, frozen=True):
    request_id: Count


class GetProcessorInfo(Message, frozen=True):
    """Ask for the form of the service's items and encoder outputs."""

    request_id: Count


class Probe(Message, frozen=True):
    """Check the data path: an item goes through ring, engines and every worker, and its leases return.

    A service without workers only answers.
    """

    request_id: Count
    timeout_s: Timeout


class Flush(Message, frozen=True):
    """Drop all cached content, in all roles; running requests go on.

    Attributes:
        new_epoch: Also drop records that clients are computing for the store now: they come from old weights.
        version: Name of what is computed from now on; "" for none. Implies `new_epoch`.
    """

    request_id: Count
    new_epoch: bool = False
    version: VersionName = ""


class RegisterReader(Message, frozen=True):
    """The client has taken entry `reader_id` of the store's ring and written `incarnation` into it: it may take leases.

    Sent again over a new connection; answers under way over the old one are lost.
    """

    client_id: ClientId
    request_id: Count
    ring_epoch: Count
    reader_id: Count
    incarnation: Count


class GetRecords(Message, frozen=True):
    """Look up the records of some keys.

    Attributes:
        incarnation: The client's incarnation as a reader; 0: it is not a reader, and records come inline.
        is_local: Do not fetch missing records from the second level.
    """

    client_id: ClientId
    request_id: Count
    keys: Keys
    tenant: Text = ""
    incarnation: Count = 0
    is_local: bool = False


class PrefetchRecords(Message, frozen=True):
    """Fetch the records of some keys from the second level, for later calls; records that the store has are skipped."""

    client_id: ClientId
    request_id: Count
    keys: Keys
    tenant: Text = ""


class HaveRecords(Message, frozen=True):
    """Look up which keys have a record, without any effect on the eviction order."""

    request_id: Count
    keys: Keys
    tenant: Text = ""


class PinRecords(Message, frozen=True):
    """Keep the records of some keys from eviction for `ttl_s`, or, with 0.0, no longer.

    The answer is `Present`: which keys have a record, and are pinned, or with 0.0 were pinned.
    """

    request_id: Count
    keys: Keys
    ttl_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_PIN_S)]
    tenant: Text = ""


class OpenNursery(Message, frozen=True):
    """Create a nursery for this client, in place of a former one, or grant space in its present one."""

    client_id: ClientId
    request_id: Count
    nbytes: PlacedBytes
    nursery: Count = 0


class PutRecord(Message, frozen=True):
    """Put a record; its frames follow, or it has a `place`. A key with a record keeps it, unless `overwrites` is set.

    The frames are the head and one for each tensor, or one with the whole record: see `mmcached.shm.store.codec`.

    Attributes:
        store_epoch: Epoch in which the record was computed; a record of an earlier epoch is not kept.
        claim: Token of the claim on the key; 0 without a claim.
        place: Place in the client's nursery, out of its grants. The client must not write there until it is granted
            again.
        overwrites: Replace the key's record; if the new one is not kept, the old one stays.
        ttl_s: Seconds from the put until the record expires; 0.0: no limit.
        cost_s: Seconds that computing it took; 0.0: unknown.
    """

    client_id: ClientId
    request_id: Count
    key: Text
    store_epoch: Count
    tenant: Text = ""
    claim: Count = 0
    place: NurseryPlace | None = None
    overwrites: bool = False
    ttl_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_TTL_S)] = 0.0
    cost_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_COST_S)] = 0.0


class ClaimRecord(Message, frozen=True):
    """Look up one key as `GetRecords`; if it has no record, the first client computes it, and the others wait for at
    most `timeout_s`.
    """

    client_id: ClientId
    request_id: Count
    key: Text
    timeout_s: Timeout
    tenant: Text = ""
    incarnation: Count = 0


class ClaimRecords(Message, frozen=True):
    """Claim each key as `ClaimRecord`, without waiting: keys that another client computes are reported as pending."""

    client_id: ClientId
    request_id: Count
    keys: Keys
    tenant: Text = ""
    incarnation: Count = 0


class DropClaim(Message, frozen=True):
    """Give up a claim without a put, so that the next waiting client gets it. Unknown tokens change nothing."""

    client_id: ClientId
    claim: Count


class DropRecord(Message, frozen=True):
    """Drop the record of a key on all hosts of the second level; existing leases remain valid.

    Attributes:
        is_local: Drop it on this host alone.
    """

    request_id: Count
    key: Text
    tenant: Text = ""
    is_local: bool = False


class ClientBye(Message, frozen=True):
    """The client closes: its open requests are cancelled. No answer."""

    client_id: ClientId


StoreRequest = (
    PutRecord  # first: it is the most frequent message, and unions are searched in their order
    | GetRecords
    | HaveRecords
    | ClaimRecord
    | ClaimRecords
    | DropRecord
    | RegisterReader
    | OpenNursery
    | PrefetchRecords
    | PinRecords
    | TakeOrders
    | Verify
)
"""Requests to the store."""
Request = StoreRequest | Generate | Encode | GetProcessorInfo | GetStats | Probe | Flush
"""Messages that have one answer each, under their `request_id`."""
StoreNotice = DropClaim | SecondLevelNotice | Verified
"""Messages to the store without an answer."""
Notice = StoreNotice | TokensTaken | Cancel | ClientBye
"""Messages without an answer."""
StoreMessage = StoreRequest | StoreNotice
GatewayMessage = Generate | Encode | TokensTaken | Cancel | GetProcessorInfo | Probe
"""Messages that concern requests for computed results, or the engines."""
FromClient = ClientHello | Request | Notice
