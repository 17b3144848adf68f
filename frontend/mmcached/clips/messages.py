"""Defines the messages between a frontend and its decoder of clips: one at a time, each in one packet of a socket.

    frontend                decoder
                  <------   Ready
    Plan          ------>                    the file lies in the file descriptor that both have, and is read in place:
                                             it stays as it is until the last answer about it
                  <------   Planned          where its slices lie, in the other descriptor
    Open          ------>                    a file, as for Plan
                  <------   Opened           all limits are checked; nothing is decoded
    Next          ------>                    a slice that is wanted
                  <------   Made             it lies in the other descriptor
    Next          ------>                    only now is another one made
                  <------   Made
    Enough        ------>                    what is open is closed; no answer
    Plan          ------>
                  <------   Refused | OutOfMemory | Failed      at any time instead, and the end of that file

A decoder reads what anybody sends, so what it says is checked as if a stranger said it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmcached.clips.sampling import Count, Piece, Seconds
from mmcached.pictures.messages import Failed, OutOfMemory, Ready, Refused
from mmcached.wire.errors import ClipTooLarge
from mmcached.wire.messages.parts import ClipOptions

MAX_SLICES = 4096
"""Of one clip: their list has to fit into a record of the store, and they into a request of an engine."""

MAX_LIST_BYTES = 1 << 20
"""Of that list: the longest has less than half as many."""


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Say where the slices lie of the file that lies there, of so many bytes."""

    num_bytes: int
    options: ClipOptions


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open the file that lies there, of so many bytes; slices of it will be wanted."""

    num_bytes: int
    options: ClipOptions


class Next(msgspec.Struct, frozen=True, tag=True):
    """Decode the slice with this index; they come in order."""

    index: int


class Enough(msgspec.Struct, frozen=True, tag=True):
    """No more slices are wanted."""


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The list of all `Piece`s lies there, so many bytes of msgpack."""

    num_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_LIST_BYTES)]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A frame of the clip has so many pixels; none, if it is a sound."""

    pixels: Count


class Made(msgspec.Struct, frozen=True, tag=True):
    """A slice lies there: two frames as rows of pixels, 3 bytes each, or samples, float32."""

    shape: Annotated[tuple[Annotated[int, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1, max_length=4)]
    start_s: Seconds
    end_s: Seconds


ToDecoder = Plan | Open | Next | Enough
FromDecoder = Ready | Planned | Opened | Made | Refused | OutOfMemory | Failed

PIECES = msgspec.msgpack.Decoder(Annotated[list[Piece], msgspec.Meta(min_length=1, max_length=MAX_SLICES)])
"""Reads what `Planned` is about."""


def check_num_slices(modality: str, num: int) -> None:
    """Refuse a clip of too many slices, or of none."""
    if not 1 <= num <= MAX_SLICES:
        raise ClipTooLarge(modality, f"{num} slices", f"1 to {MAX_SLICES} of one clip")
