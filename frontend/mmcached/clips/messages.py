"""Defines the messages between a frontend and its decoder of clips: one at a time, each in one packet of a socket.

    frontend                decoder
                  <------   Ready
    PlanClip      ------>                    the file lies in the shared file descriptor, and is read in place: it
                                             must not change until the last answer about it
                  <------   ClipPlanned      the places of its slices, in the other descriptor
    OpenFile      ------>                    a file, as for PlanClip
                  <------   ClipOpened       all limits are checked; nothing is decoded
    DecodeSlice   ------>                    a wanted slice
                  <------   SliceMade        it lies in the other descriptor
    DecodeSlice   ------>                    only now is another one made
                  <------   SliceMade
    CloseFile     ------>                    the open file is closed; no answer
    PlanClip      ------>
                  <------   FileRefused | OutOfMemory | DecoderFailed    at any time instead, and the end of that file

A decoder reads untrusted files, so its messages are validated like untrusted input.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.clips.sampling import Count, Piece, Seconds
from mmcached.pictures.messages import DecoderFailed, FileRefused, OutOfMemory, Ready
from mmcached.wire.errors import ClipTooLarge
from mmcached.wire.messages.parts import ClipOptions

MAX_SLICES = 4096
"""The most slices of a clip: their list must fit into a record of the store, and they into a request of an engine."""

MAX_LIST_BYTES = 1 << 20
"""The largest size of that list; a valid one takes less than half of it."""


class PlanClip(msgspec.Struct, frozen=True, tag=True):
    """Report the places of the slices of the file in the shared descriptor, of `num_bytes`."""

    num_bytes: int
    options: ClipOptions


class OpenFile(msgspec.Struct, frozen=True, tag=True):
    """Open the file in the shared descriptor, of `num_bytes`; slices of it will be requested."""

    num_bytes: int
    options: ClipOptions


class DecodeSlice(msgspec.Struct, frozen=True, tag=True):
    """Decode the slice with this index; indices come in order."""

    index: int


class CloseFile(msgspec.Struct, frozen=True, tag=True):
    """No more slices are wanted."""


class ClipPlanned(msgspec.Struct, frozen=True, tag=True):
    """The list of all `Piece`s is in the other descriptor, as `num_bytes` of msgpack."""

    num_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_LIST_BYTES)]


class ClipOpened(msgspec.Struct, frozen=True, tag=True):
    """The number of pixels of a frame; 0 for a sound."""

    pixels: Count


class SliceMade(msgspec.Struct, frozen=True, tag=True):
    """A slice is in the other descriptor: two frames as rows of pixels, 3 bytes each, or samples, float32."""

    shape: Annotated[tuple[Annotated[int, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1, max_length=4)]
    start_s: Seconds
    end_s: Seconds


ToDecoder = PlanClip | OpenFile | DecodeSlice | CloseFile
FromDecoder = Ready | ClipPlanned | ClipOpened | SliceMade | FileRefused | OutOfMemory | DecoderFailed

PIECES = msgspec.msgpack.Decoder(Annotated[list[Piece], msgspec.Meta(min_length=1, max_length=MAX_SLICES)])
"""Decodes the list that `ClipPlanned` announces."""


def check_num_slices(modality: str, num: int) -> None:
    """Refuse a clip with too many slices, or without any."""
    if not 1 <= num <= MAX_SLICES:
        raise ClipTooLarge(modality, f"{num} slices", f"1 to {MAX_SLICES} of one clip")
