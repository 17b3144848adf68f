"""Encodes typed messages as frames, and back: `[version][MessagePack body][payload frame]*`.

A frame set that does not validate is a `RemoteProtocolError` with the path of the field, and changes nothing.
Independent of sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.version import PROTOCOL_VERSION, mismatch

SEND_HIGH_WATER_MARK = 4096
"""Messages queued per peer before `ChannelFull`. A step plan or an answer is small; tensor bytes are in the ring."""
MAX_FRAME_BYTES = 4 << 30
"""A peer that announces a larger frame is disconnected: no tensor, image or record is larger."""

_VERSION_FRAME = b"mmc" + bytes([PROTOCOL_VERSION])
_encoder = msgspec.msgpack.Encoder()

Frame = bytes | bytearray | memoryview
ReceivesT = TypeVar("ReceivesT")


def encode_frames(message: object, payload: Sequence[Frame] = ()) -> list[Frame]:
    return [_VERSION_FRAME, _encoder.encode(message), *payload]


def make_decoder(receives: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder for a union of messages; build it once per channel."""
    return msgspec.msgpack.Decoder(receives)


def decode_frames(
    frames: Sequence[Frame], decoder: msgspec.msgpack.Decoder[ReceivesT]
) -> tuple[ReceivesT, list[Frame]]:
    """Validate the frames of one message; return the message and its payload frames.

    Raises:
        RemoteProtocolError: Wrong version, truncated, not MessagePack, or not a message that this end accepts.
    """
    if len(frames) < 2:
        raise RemoteProtocolError(f"{len(frames)} frame(s), a message has at least 2", "frames")
    if frames[0] != _VERSION_FRAME:
        # The length first, because the frame may be a large one.
        version = bytes(frames[0]) if len(frames[0]) == len(_VERSION_FRAME) else b""
        if version[:3] != _VERSION_FRAME[:3]:
            raise RemoteProtocolError("the first frame is not an mmcached version", "version")
        raise RemoteProtocolError(mismatch(version[3]), "version")
    try:
        message = decoder.decode(frames[1])
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise RemoteProtocolError(reason, path.rstrip("`") or "$") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"not MessagePack: {error}", "body") from error
    return message, list(frames[2:])
