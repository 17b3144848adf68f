"""Pieces that occur inside messages of several receivers, and the messages that several receive."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.handle import Count, Handle
from mmcached.wire.vocabulary import Modality

MAX_ROW_KEYS = 64
Text = Annotated[str, msgspec.Meta(max_length=256)]
Priority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Traceparent = Annotated[str, msgspec.Meta(pattern=r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")]
"""The W3C trace context of what a message belongs to; "": none."""
MAX_SECONDS = 1e9
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
MAX_FPS = 1000
MAX_CLIP_FRAMES = 1 << 16


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages: an array that starts with the class name."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what occurs inside a message."""


class MessageLimits(Part, frozen=True):
    """The largest message that the frontend reads of a client.

    Attributes:
        max_frames, max_bytes: of a message as it is sent, its version and body included.
        max_body_bytes: of its body: what is no payload.
    """

    max_frames: Count
    max_bytes: Count
    max_body_bytes: Count


class Tensor(Part, frozen=True):
    """A dense tensor whose bytes, C order and little-endian, are one further frame of the message, counted from 0.

    `dtype` is numpy's name, as `int32`.
    """

    frame: Count
    dtype: Text
    shape: tuple[Count, ...]


EncoderOutput = dict[Text, Tensor] | Text
"""What the encoder says of an item, by name; or the key under which the store has it."""


class TensorForm(Part, frozen=True):
    """The name, dtype and shape of a tensor that every item has; a size of -1 differs from item to item."""

    name: Text
    dtype: Text
    shape: tuple[int, ...]


class EncoderForm(Part, frozen=True):
    """The tensors that a service makes of an item for its encoder, and those that the encoder makes of them.

    Attributes:
        inputs: by the modality of the item.
    """

    kind: Text
    inputs: dict[Modality, list[TensorForm]]
    outputs: list[TensorForm]


class Inline(Part, frozen=True, tag="inline"):
    """An encoded record (see `mmcached.shm.store.codec`) in frames `first_frame … first_frame + num_frames - 1`."""

    first_frame: Count
    num_frames: Count


class StoredItem(Part, frozen=True, tag="item"):
    """A processed item in the store; whoever opens `token` takes a lease of its own."""

    token: Text


class StoredOutput(Part, frozen=True, tag="stored"):
    """What the encoder has said of an item, in the store: `token` names the engine's lease."""

    token: Text


MIN_PLACED_BYTES = 64 << 10
"""Of a record that is laid into a nursery; smaller ones cost less inline. See docs/decisions/080."""
MAX_GRANTS = 64
"""Places in one answer."""


class NurseryPlace(Part, frozen=True):
    """An encoded record in its client's nursery: `nbytes` at byte `offset` of the file, and behind them its note.

    Attributes:
        crc32: of the record, if the service has checksums.
    """

    nursery: Count
    offset: Count
    nbytes: Annotated[int, msgspec.Meta(ge=MIN_PLACED_BYTES, le=2**46)]
    note_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**12)]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None


Stretch = tuple[Count, Count]
"""Bytes of a nursery: where they begin, and where they end."""


class Grants(Part, frozen=True):
    """Places in a nursery that are its client's from now on, to lay records there.

    Attributes:
        places: whose pages have memory.
        cold_places: whose pages have none yet.
    """

    nursery: Count
    places: list[Stretch]
    cold_places: list[Stretch]


class Fetch(Part, frozen=True):
    """A record that is wanted from the second level; the first level has none.

    Attributes:
        number: names this fetch.
        store_epoch: in which the record is to be put.
        claims: whoever waits for it would compute it: if no host does so, this one shall.
        timeout_ms: the time in which the record is of use to those who wait.
    """

    number: Count
    tenant: Text
    key: Text
    store_epoch: Count
    claims: bool
    timeout_ms: Count


class FetchEnd(Part, frozen=True):
    """What became of a fetch. "elsewhere": another host computes the record; the fetch goes on, and ends once more."""

    number: Count
    outcome: Literal["hit", "miss", "elsewhere", "late", "failed"]


class ClaimState(Part, frozen=True):
    """Whether this host still computes a record that it has claimed among all hosts; `name` is its `store_key`."""

    name: Text
    is_held: bool


class Save(Part, frozen=True):
    """A record of the first level that the second level shall have too; it may have gone from `place` meanwhile.

    Attributes:
        expires_at: nanoseconds since the host was booted; 0: it does not expire.
    """

    tenant: Text
    key: Text
    place: Handle
    expires_at: Count = 0


class RowsWanted(Part, frozen=True):
    """The rows of a generation that its client wants: one row per computed token and key.

    Attributes:
        keys: names of tensors, as `hidden_states`; see `ModelConfig.row_keys`.
        first: the client has the rows before this position, from an earlier turn of the same conversation, say.
        delivery: "full": all rows from position 0 on, with the answer. "delta": those from `first` on, each once; if
            the generation is streamed, as they are computed.
    """

    keys: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_ROW_KEYS)] = msgspec.field(
        default_factory=lambda: ["hidden_states"]
    )
    first: Count = 0
    delivery: Literal["full", "delta"] = "full"

    @property
    def first_wanted(self) -> int:
        """The position of the first row that is wanted."""
        return self.first if self.delivery == "delta" else 0


class Rows(Part, frozen=True):
    """Rows of one key: those of positions `first …`, `(num_rows, width)`."""

    key: Text
    first: Count
    tensor: Tensor


class SavedRows(Part, frozen=True):
    """Rows of one key, those of positions `first …`, `shape`, that the store has, or soon will, under `name`."""

    key: Text
    first: Count
    name: Text
    dtype: Text
    shape: tuple[Count, ...]

    @property
    def end(self) -> int:
        """The position behind the last of them."""
        return self.first + (self.shape or (0,))[0]


class RequestRows(Part, frozen=True):
    """Rows of one request and key; in a stream, they go on where those end that came before."""

    request_id: Count
    rows: Rows


class StreamedTokens(Part, frozen=True):
    """Tokens of one generation from output position `first` on."""

    request_id: Count
    first: Count
    token_ids: list[TokenId]


class ClipOptions(Part, frozen=True):
    """What is wanted of a clip: a video, or a sound, of which the encoder is given slices.

    Attributes:
        start_s, end_s: the part that is wanted, seconds from the file's beginning; `end_s` None: to its end.
        fps: frames of a video for each second, taken where `k / fps` seconds have passed since the file's beginning.
        num_frames: frames of a video at equal distances instead; of `fps` and this one, a video has one and a sound
            none.
    """

    modality: Literal["video", "audio"]
    start_s: Seconds = 0.0
    end_s: Seconds | None = None
    fps: Annotated[float, msgspec.Meta(gt=0, le=MAX_FPS)] | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIP_FRAMES)] | None = None


class Feature(Part, frozen=True):
    """One multimodal item of a request: `length` placeholder tokens of the prompt from `offset` on.

    Attributes:
        modality: of the file; of a clip, each slice is an item.
        mm_hash: content key of the processed item, 64 hex digits; of one that its client has named, the key of the
            name, ":" and `num_embeds`.
        num_embeds: embeddings that the encoder makes of it.
        nbytes: size of the encoded item; both ends of a mirrored cache count with it.
        payload: the processed item: in the store, inline, or (None) in the engine's cache.
        has_output: nothing of it was processed: what the encoder says of it is in the store.
    """

    mm_hash: Text
    modality: Modality
    offset: Count
    length: Count
    num_embeds: Count
    nbytes: Count
    payload: StoredItem | Inline | None
    has_output: bool = False
