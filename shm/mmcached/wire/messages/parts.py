"""Parts of messages to several receivers, and the bases of messages and parts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mmcached.wire.handle import Count
from mmcached.wire.vocabulary import Modality

MAX_ROW_KEYS = 64
Text = Annotated[str, msgspec.Meta(max_length=256)]
ClientId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Timeout = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
VERSION_NAME = r"^([A-Za-z0-9][A-Za-z0-9._+-]{0,63})?\Z"
VersionName = Annotated[str, msgspec.Meta(pattern=VERSION_NAME)]
Priority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Traceparent = Annotated[str, msgspec.Meta(pattern=r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")]
"""The W3C trace context of a message; "" without one."""
MAX_SECONDS = 1e9
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
MAX_FPS = 1000
MAX_CLIP_FRAMES = 1 << 16


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages: an array that starts with the class name."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all parts of messages."""


class MessageLimits(Part, frozen=True):
    """Limits on one message of a client.

    Attributes:
        max_frames, max_bytes: Limits of a message as it is sent, its version and body included.
        max_body_bytes: Limit of its body, without the payload.
    """

    max_frames: Count
    max_bytes: Count
    max_body_bytes: Count


class Tensor(Part, frozen=True):
    """A dense tensor whose bytes, C order and little-endian, are payload frame `frame` of the message.

    `dtype` is numpy's name, as `int32`.
    """

    frame: Count
    dtype: Text
    shape: tuple[Count, ...]


EncoderOutput = dict[Text, Tensor] | Text
"""Outputs of the encoder for an item, by name; or the key under which the store has them."""


class TensorForm(Part, frozen=True):
    """The name, dtype and shape of a tensor that every item has; a size of -1 varies between items."""

    name: Text
    dtype: Text
    shape: tuple[int, ...]


class EncoderForm(Part, frozen=True):
    """The encoder's input tensors, and its output tensors."""

    kind: Text
    inputs: dict[Modality, list[TensorForm]]
    outputs: list[TensorForm]


class ServiceForms(EncoderForm, frozen=True):
    """Tensors that a service takes and returns.

    Attributes:
        rows: Those of `generate` that have a row per token, `hidden_states` first; the size -1 is the number of rows.
    """

    rows: list[TensorForm] = []


class Inline(Part, frozen=True, tag="inline"):
    """An encoded record (see `mmcached.shm.store.codec`) in frames `first_frame … first_frame + num_frames - 1`."""

    first_frame: Count
    num_frames: Count


class StoredItem(Part, frozen=True, tag="item"):
    """A processed item in the store; a process that opens `token` takes its own lease."""

    token: Text


class StoredOutput(Part, frozen=True, tag="stored"):
    """An item's encoder output in the store: `token` names the engine's lease."""

    token: Text


MIN_PLACED_BYTES = 64 << 10
"""The smallest record for a nursery; smaller ones cost less inline. Measured: see docs/decisions/080."""
PlacedBytes = Annotated[int, msgspec.Meta(ge=MIN_PLACED_BYTES, le=2**46)]
MAX_GRANTS = 64
"""Places in one answer."""


class NurseryPlace(Part, frozen=True):
    """An encoded record in its client's nursery: `nbytes` at byte `offset` of the file, followed by its note.

    Attributes:
        crc32: Checksum of the record, if the service has checksums.
    """

    nursery: Count
    offset: Count
    nbytes: PlacedBytes
    note_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**12)]
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None


Stretch = tuple[Count, Count]
"""Bytes of a nursery: start and end."""


class Grants(Part, frozen=True):
    """Places in a nursery that its client may use for records from now on; only the pages of `places` are populated."""

    nursery: Count
    places: list[Stretch]
    cold_places: list[Stretch]


class RowsWanted(Part, frozen=True):
    """The rows of a generation that its client wants: one row per computed token and key.

    Attributes:
        keys: Names of tensors, as `hidden_states`; see `ModelConfig.row_keys`.
        first: The client already has the rows before this position, for example from an earlier turn of a conversation.
        delivery: "full": all rows from position 0, with the answer. "delta": those from `first` on, each once; as they
            are computed if the generation is streamed.
    """

    keys: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MAX_ROW_KEYS)] = msgspec.field(
        default_factory=lambda: ["hidden_states"]
    )
    first: Count = 0
    delivery: Literal["full", "delta"] = "full"

    @property
    def first_wanted(self) -> int:
        return self.first if self.delivery == "delta" else 0


MAX_STOP_TOKENS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
MAX_LOGPROBS = 20
MAX_SEED = (1 << 63) - 1


class Sampling(Part, frozen=True):
    """How the tokens of a generation are chosen from a checkpoint's logits.

    Attributes:
        temperature: 0 takes the most likely token; then only the repetition penalty has an effect.
        top_k: Only the `top_k` most likely tokens; 0 for all.
        top_p: Only the most likely tokens that together have this probability.
        min_p: Only tokens with this share of the probability of the most likely one.
        repetition_penalty: Divides positive logits of tokens that the request has already, multiplies negative ones.
        seed: The same seed gives the same tokens; None (only at the client) for a random one.
        stop_token_ids: Tokens that end the generation, beside the checkpoint's own.
        stop: Strings that end the generation; the text of the answer ends before the first one.
        num_logprobs: Also return the logprob of each chosen token and of so many of the most likely ones; -1 for none.
    """

    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKENS)] = msgspec.field(
        default_factory=list
    )
    num_logprobs: Annotated[int, msgspec.Meta(ge=-1, le=MAX_LOGPROBS)] = -1
    stop: Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)] = msgspec.field(default_factory=list)


class ContentPart(Part, frozen=True):
    """A part of a chat message: a text, or an image, whose file is the next frame of the request."""

    kind: Literal["text", "image"]
    text: str = ""


class ChatMessage(Part, frozen=True):
    """A message of a conversation; a checkpoint's chat template makes the prompt of all."""

    role: Text
    content: str | list[ContentPart]


class TokenLogprob(Part, frozen=True):
    token_id: TokenId
    logprob: float


class Rows(Part, frozen=True):
    """Rows of one key from position `first` on, `(num_rows, width)`."""

    key: Text
    first: Count
    tensor: Tensor


class SavedRows(Part, frozen=True):
    """Rows of one key from position `first` on, of shape `shape`, that the store has, or soon will, under `name`."""

    key: Text
    first: Count
    name: Text
    dtype: Text
    shape: tuple[Count, ...]

    @property
    def end(self) -> int:
        """Position behind the last row."""
        return self.first + (self.shape or (0,))[0]


class RequestRows(Part, frozen=True):
    """Rows of one request and key; in a stream, they continue the earlier ones."""

    request_id: Count
    rows: Rows


class StreamedTokens(Part, frozen=True):
    """Tokens of one generation from output position `first` on.

    Attributes:
        text: To a client: the text that has become certain with them, which may end before their own.
    """

    request_id: Count
    first: Count
    token_ids: list[TokenId]
    text: str = ""


class ClipOptions(Part, frozen=True):
    """The wanted part of a clip (a video or a sound), and how it is sampled.

    Attributes:
        start_s, end_s: Start and end in seconds of the file; `end_s` None: to its end.
        fps: Frames of a video per second, taken at times `k / fps` of the file.
        num_frames: Number of frames at equal distances instead; a video has one of `fps` and `num_frames`, a sound
            neither.
    """

    modality: Literal["video", "audio"]
    start_s: Seconds = 0.0
    end_s: Seconds | None = None
    fps: Annotated[float, msgspec.Meta(gt=0, le=MAX_FPS)] | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIP_FRAMES)] | None = None


class Feature(Part, frozen=True):
    """One multimodal item of a request: `length` placeholder tokens of the prompt from `offset` on.

    Attributes:
        modality: Modality of the file; of a clip, each slice is an item.
        mm_hash: Content key of the processed item, 64 hex digits; of an item named by its client, the key of the name,
            ":" and `num_embeds`.
        num_embeds: Number of embeddings that the encoder makes of it.
        nbytes: Size of the encoded item; both ends of a mirrored cache count with it.
        payload: The processed item: in the store, inline, or (None) in the engine's cache.
        has_output: The store has its encoder output, and the item was not processed.
        num_bound: Tokens before `offset` that are computed in one piece with it: their results depend on its length.
    """

    mm_hash: Text
    modality: Modality
    offset: Count
    length: Count
    num_embeds: Count
    nbytes: Count
    payload: StoredItem | Inline | None
    has_output: bool = False
    num_bound: Count = 0
