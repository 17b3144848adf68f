"""Defines the messages between a frontend and its decoder: one message at a time, each in one packet of a socket.

    frontend                decoder
                  <------   Ready
    Decode        ------>                    the file lies in the file descriptor that both have
                  <------   Opened           all limits are checked; nothing is decoded
    GoOn          ------>                    there is room for so many pixels now
                  <------   Made | Processed  the pixels, or tensors, lie in the other descriptor
    Decode        ------>
                  <------   Refused | OutOfMemory | Failed      at any time instead; after OutOfMemory it ends

A decoder reads what anybody sends, so what it says is checked as if a stranger said it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.messages.parts import TensorForm

MAX_MESSAGE_BYTES = 1 << 14
MAX_TENSORS = 16
"""That an image processor makes of one picture."""


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode and scale the file that lies there, of so many bytes."""

    num_bytes: int


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Decode now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All that is needed is imported, and the limits are set."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The picture has so many pixels."""

    pixels: Annotated[int, msgspec.Meta(gt=0)]


class Made(msgspec.Struct, frozen=True, tag=True):
    """The scaled picture lies there: rows of pixels, 3 bytes each."""

    width: Annotated[int, msgspec.Meta(gt=0)]
    height: Annotated[int, msgspec.Meta(gt=0)]


class Processed(msgspec.Struct, frozen=True, tag=True):
    """The tensors that an image processor has made lie there, one after the other: C order, little-endian."""

    tensors: Annotated[list[TensorForm], msgspec.Meta(max_length=MAX_TENSORS)]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The file cannot be taken, and why."""

    error: ErrorInfo


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """There was no memory left; the decoder ends."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The decoder has a bug."""

    text: str


ToDecoder = Decode | GoOn
FromDecoder = Ready | Opened | Made | Processed | Refused | OutOfMemory | Failed
