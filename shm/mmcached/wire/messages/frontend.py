"""The frontend receives these messages: from clients on one socket, from engines on another."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.handle import Count
from mmcached.wire.messages.parts import (
    ClipOptions,
    EncoderForm,
    EncoderOutput,
    FetchEnd,
    Message,
    NurseryPlace,
    Priority,
    RequestRows,
    Rows,
    RowsWanted,
    SavedRows,
    StreamedTokens,
    Text,
    TokenId,
    Traceparent,
)

CLIENT_NAME = r"^[a-z0-9][a-z0-9._-]{0,31}\Z"
ClientName = Annotated[str, msgspec.Meta(pattern=CLIENT_NAME)]
ANY_CLIENT: ClientName = "client"
"""The name of clients that give themselves none."""
ClientId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Timeout = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
MAX_TTL_S = 1e9
MAX_KEYS = 256
"""Of one message: more come in several, between which others have their turn."""
Keys = Annotated[list[Text], msgspec.Meta(max_length=MAX_KEYS)]
MAX_CLIPS = 1024
Clips = Annotated[list[ClipOptions], msgspec.Meta(max_length=MAX_CLIPS)]

ROW_WINDOW_BYTES = 1 << 20
"""So many bytes of rows of a stream may be on the way to its client before it says that it has taken them. Receipts
come for half of it, so both ends must know it."""

# ---- from clients


class ClientHello(Message, frozen=True):
    """Ask who is there. A client holds the lock of `clients/<client_id>.lock` for its life; free = it is dead.

    Every request repeats the `client_id`, so a restarted frontend needs no second hello. The first connection that
    names it speaks for this client until it is closed: what another says in its name is refused.

    Attributes:
        name: of its kind, under which its figures are shown; a restarted frontend learns it with the next hello.
    """

    client_id: ClientId
    name: ClientName = ANY_CLIENT


class Generate(Message, frozen=True):
    """Continue a prompt; the files are the further frames: the images, one per `<image>` marker, then the clips.

    Attributes:
        prompt: text (markers spelled `<image>`, `<video>`, `<audio>`), or token ids (markers are the tokens of these).
        timeout_s: the frontend abandons the request after it.
        image_ids: one per image, or none at all. Under its id an image is cached and looked for; an empty frame asks
            for what is cached under it, and if nothing is, the answer is a `CacheMiss` that names the ids.
        stream_window: tokens that may be on the way to the client before it says that it has taken them, see
            `TokensTaken`; 0: none, they all come with the answer.
        priority: the lower, the earlier it is served, if the service looks at it (`scheduling_policy`).
        takes_keys: the client reads the store: it finds large parts of the rows there, as the answer names them.
        clips: what is wanted of each clip; those of one modality in the order of their markers.
        traceparent: of the client's span.
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


class Encode(Message, frozen=True):
    """Embed images and clips; their files are the further frames. Fields not named here are as in `Generate`.

    Attributes:
        takes_keys: the client reads the store: what is large it finds there, under the key that the answer names.
    """

    client_id: ClientId
    request_id: Count
    timeout_s: Timeout
    tenant: Text = ""
    image_ids: list[Text | None] = msgspec.field(default_factory=list)
    takes_keys: bool = False
    clips: Clips = msgspec.field(default_factory=list)
    traceparent: Traceparent = ""


class TokensTaken(Message, frozen=True):
    """What has been taken of a streamed generation: more may be sent. No answer.

    Unknown or finished ids change nothing, nor do numbers that were said before.

    Attributes:
        num_tokens: the first so many tokens.
        num_row_bytes: so many bytes of its rows, all keys together, as they came.
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
    """Ask what the service makes of an item."""

    request_id: Count


class Probe(Message, frozen=True):
    """Ask whether the data path works: an item goes through ring, engines and every worker, and its leases return.

    Where the service has no workers, the answer alone says it.
    """

    request_id: Count
    timeout_s: Timeout


class Flush(Message, frozen=True):
    """Forget everything cached, in all roles; requests that run go on.

    Attributes:
        new_epoch: also what clients compute for the store now: it comes from weights that are no more.
    """

    request_id: Count
    new_epoch: bool = False


class RegisterReader(Message, frozen=True):
    """The client has taken entry `reader_id` of the store's ring and written `incarnation` into it: leases may come.

    Sent again over a new connection: what was under way over the old one is lost.
    """

    client_id: ClientId
    request_id: Count
    ring_epoch: Count
    reader_id: Count
    incarnation: Count


class GetRecords(Message, frozen=True):
    """Which records do these keys have?

    Attributes:
        incarnation: the client as a reader; 0: it is none, the records come inline.
        is_local: what this host has not is not fetched from the second level.
    """

    client_id: ClientId
    request_id: Count
    keys: Keys
    tenant: Text = ""
    incarnation: Count = 0
    is_local: bool = False


class HaveRecords(Message, frozen=True):
    """Which of these keys have a record? Changes nothing, not even what is evicted next."""

    request_id: Count
    keys: Keys
    tenant: Text = ""


class OpenNursery(Message, frozen=True):
    """Make a nursery for this client, in place of a former one, or room in the one that it has. A nursery lives as long
    as this connection.

    Attributes:
        nbytes: of the record that is to be laid there next, with its note.
        nursery: that the client has; 0: none.
    """

    client_id: ClientId
    request_id: Count
    nbytes: Count
    nursery: Count = 0


class PutRecord(Message, frozen=True):
    """Keep a record under a key; its frames follow, or it has a `place`. A key that has one keeps it, unless this one
    overwrites it. The frames are the head and one for each tensor, or one with the whole record: see
    `mmcached.shm.store.codec`.

    Attributes:
        store_epoch: the epoch in which it was computed; a record of an earlier one is not kept.
        claim: the token with which the key was claimed; 0 if it was not.
        place: in the client's nursery, out of what was granted. The client writes there no more, until it is granted
            anew.
        overwrites: it takes the place of the record that the key has; if it is not kept, that one stays.
        ttl_s: seconds from the moment that it is kept until it is missing for everybody; 0.0: no limit.
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


class ClaimRecord(Message, frozen=True):
    """As `GetRecords` of one key; if it has none, the first who asks is told to compute it, and the others wait.

    Attributes:
        timeout_s: how long the client would wait for somebody else's computation.
    """

    client_id: ClientId
    request_id: Count
    key: Text
    timeout_s: Timeout
    tenant: Text = ""
    incarnation: Count = 0


class ClaimRecords(Message, frozen=True):
    """As `ClaimRecord` of each key, but nobody waits: what somebody else computes is said to be pending."""

    client_id: ClientId
    request_id: Count
    keys: Keys
    tenant: Text = ""
    incarnation: Count = 0


class DropClaim(Message, frozen=True):
    """The client will not compute what it has claimed: the next who waits shall. Unknown tokens change nothing."""

    client_id: ClientId
    claim: Count


class DropRecord(Message, frozen=True):
    """Forget the record of a key; who holds a lease reads on."""

    request_id: Count
    key: Text
    tenant: Text = ""


class TakeOrders(Message, frozen=True):
    """The second level asks what to fetch and to save: answered with `Orders` as soon as there is something, and after
    `timeout_s` at the latest. Whoever asks first is the second level until its connection ends.
    """

    client_id: ClientId
    request_id: Count
    timeout_s: Timeout


class FetchesEnded(Message, frozen=True):
    """What became of fetches; those that have brought a record were put before. No answer; unknown ones change
    nothing.
    """

    client_id: ClientId
    fetches: Annotated[list[FetchEnd], msgspec.Meta(max_length=MAX_KEYS)]


class SecondLevelFlushed(Message, frozen=True):
    """Nothing of before is found in the second level any more, or `error` says why not. No answer.

    Attributes:
        token: of the flush, as `Orders` named it.
    """

    client_id: ClientId
    token: Count
    error: Text = ""


class AnotherHostFlushed(Message, frozen=True):
    """Another host has been flushed: forget what was fetched, and fetch and save nothing until this one is. No answer.

    Attributes:
        reason: for the log.
    """

    client_id: ClientId
    reason: Text


class ClientBye(Message, frozen=True):
    """The client closes: its open requests are cancelled. No answer."""

    client_id: ClientId


FromClient = (
    ClientHello
    | Generate
    | Encode
    | TokensTaken
    | Cancel
    | GetStats
    | GetProcessorInfo
    | Probe
    | Flush
    | RegisterReader
    | OpenNursery
    | GetRecords
    | HaveRecords
    | PutRecord
    | ClaimRecord
    | ClaimRecords
    | DropClaim
    | DropRecord
    | TakeOrders
    | FetchesEnded
    | SecondLevelFlushed
    | AnotherHostFlushed
    | ClientBye
)

# ---- from engines


class EngineHello(Message, frozen=True):
    """First message of an engine over each connection. `incarnation` is new for each process."""

    engine_index: Count
    incarnation: Count
    config_digest: Text


class EngineReady(Message, frozen=True):
    """All workers are attached: requests may come. `encoder_fingerprint` and `encoder`: see `WorkerAttached`."""

    num_workers: Count
    encoder_fingerprint: Text = ""
    encoder: EncoderForm | None = None


class TokensCommitted(Message, frozen=True):
    """What a step has added to the generations that are streamed and go on; one that is finished is answered.

    Attributes:
        rows: of those whose rows are wanted as they are computed: the rows of all steps of which the tokens are here,
            or they came before.
    """

    streams: list[StreamedTokens]
    rows: list[RequestRows] = msgspec.field(default_factory=list)


class RequestGenerated(Message, frozen=True):
    """A finished generation, with all its tokens and with the rows that were not told before, those of a key in order.

    Attributes:
        saved_rows: as in `Generated`; of a key, they lie before, between and behind `rows`.
    """

    request_id: Count
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length"]
    num_cached_tokens: Count
    rows: list[Rows] = msgspec.field(default_factory=list)
    saved_rows: list[SavedRows] = msgspec.field(default_factory=list)


class RequestEncoded(Message, frozen=True):
    """Of each item the outputs of the encoder, by name, in the encoder's order; or, if the request takes keys, the key
    under which the store has them, or soon will.
    """

    request_id: Count
    outputs: list[EncoderOutput]


class RequestFailed(Message, frozen=True):
    request_id: Count
    error: ErrorInfo


class RequestMissed(Message, frozen=True):
    """The engine cannot use what was sent for these items, or an output that is not named has gone from the store; the
    request waits nowhere: send it again with all data.
    """

    request_id: Count
    mm_hashes: list[Text]


class EngineProbed(Message, frozen=True):
    """Every worker's checksum of the probe's item, by rank; none if a worker is missing, or was replaced meanwhile."""

    token: Count
    checksums: list[Text]


class EngineFlushed(Message, frozen=True):
    token: Count


class CacheChanged(Message, frozen=True):
    """What the engine's caches have taken in, and given up, since it last said so; sent before the answers that follow.

    Attributes:
        is_all: what was said before is void: this is all that they hold.
        blocks, dropped_blocks: digests of KV blocks.
        items, dropped_items: `mm_hash` of items whose encoder output is there.
    """

    is_all: bool
    blocks: list[bytes] = msgspec.field(default_factory=list)
    dropped_blocks: list[bytes] = msgspec.field(default_factory=list)
    items: list[Text] = msgspec.field(default_factory=list)
    dropped_items: list[Text] = msgspec.field(default_factory=list)


FromEngine = (
    EngineHello
    | EngineReady
    | TokensCommitted
    | RequestGenerated
    | RequestEncoded
    | RequestFailed
    | RequestMissed
    | EngineProbed
    | EngineFlushed
    | CacheChanged
)
