"""Defines the messages between a frontend and its decoder: one message at a time, each in one packet of a socket.

    frontend                decoder
                  <------   Ready
    Decode        ------>                    the file lies in the file descriptor that both have
                  <------   ImageOpened      all limits are checked; nothing is decoded
    GoOn          ------>                    there is room for these pixels now
                  <------   ImageScaled | ImageProcessed    the pixels, or tensors, lie in the other descriptor
    Decode        ------>
                  <------   FileRefused | OutOfMemory | DecoderFailed    at any time instead; after OutOfMemory it ends

A decoder reads untrusted files, so its messages are validated like untrusted input.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.wire.errors import ErrorInfo
from mmcached.wire.messages.parts import TensorForm

MAX_MESSAGE_BYTES = 1 << 14
MAX_TENSORS = 16
"""The most tensors that an image processor returns for one image."""


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode and scale the file of `num_bytes` in the shared descriptor."""

    num_bytes: int


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Decode now."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All modules are imported, and the limits are set."""


class ImageOpened(msgspec.Struct, frozen=True, tag=True):
    """The number of pixels of the image."""

    pixels: Annotated[int, msgspec.Meta(gt=0)]


class ImageScaled(msgspec.Struct, frozen=True, tag=True):
    """The scaled image is in the descriptor: rows of pixels, 3 bytes each."""

    width: Annotated[int, msgspec.Meta(gt=0)]
    height: Annotated[int, msgspec.Meta(gt=0)]


class ImageProcessed(msgspec.Struct, frozen=True, tag=True):
    """The image processor's tensors are in the descriptor, consecutive: C order, little-endian."""

    tensors: Annotated[list[TensorForm], msgspec.Meta(max_length=MAX_TENSORS)]


class FileRefused(msgspec.Struct, frozen=True, tag=True):
    """The file is refused."""

    error: ErrorInfo


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """There was no memory left; the decoder ends."""


class DecoderFailed(msgspec.Struct, frozen=True, tag=True):
    """The decoder has a bug."""

    text: str


ToDecoder = Decode | GoOn
FromDecoder = Ready | ImageOpened | ImageScaled | ImageProcessed | FileRefused | OutOfMemory | DecoderFailed
