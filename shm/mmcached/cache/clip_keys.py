"""Names a clip: its file, what is wanted of it, and where the store has the list of its slices.

    bytes of the file ──> key of the file ──┬── options ────> key of the clip ──> `clip_record`: its slices
                                            └── place in it ──> `slice_record`: what a slice there is called

The file is hashed once, however many clips are cut from it. All options are in the key of a clip, so that another
default never finds what was made with a former one. Both sides compute it: a client finds a known clip without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from mmcached.wire.messages.parts import ClipOptions, Seconds

if TYPE_CHECKING:  # a store has no use for hashes
    from mmcached.cache.hasher import MultiModalHasher, Piece

ListedSlice = tuple[
    Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")], Annotated[int, msgspec.Meta(ge=1)], Seconds, Seconds
]
"""A slice in the store: the content key of its item, its embeddings, and the seconds of the file that it is made of."""


class ListedSlices(msgspec.Struct):
    """The record of a clip: its slices in order."""

    slices: Annotated[list[ListedSlice], msgspec.Meta(min_length=1)]


def file_key(hasher: MultiModalHasher, data: Piece, options: ClipOptions, *, fingerprint: str, tenant: str) -> str:
    """Return the key of a clip's file, 64 hex digits.

    Args:
        fingerprint: of what makes items of this modality, its decoder included.
    """
    return hasher.item_key(data, modality=f"{options.modality} file", fingerprint=fingerprint, tenant=tenant)


def clip_key(hasher: MultiModalHasher, key_of_file: str, options: ClipOptions) -> str:
    """Return the key of what is wanted of a file, 64 hex digits."""
    return hasher.hash_kwargs(
        file=key_of_file,
        start_s=float(options.start_s),
        end_s=None if options.end_s is None else float(options.end_s),
        fps=None if options.fps is None else float(options.fps),
        num_frames=options.num_frames,
    )


def clip_record(key_of_clip: str) -> str:
    """Return the key under which the store has the slices of a clip."""
    return f"clip/{key_of_clip}"


def slice_record(hasher: MultiModalHasher, key_of_file: str, place: tuple[int, ...]) -> str:
    """Return the key under which the store has what the content of a slice is called.

    Args:
        place: where it lies in its file, and its size.
    """
    return f"slice/{hasher.hash_kwargs(file=key_of_file, place=list(place))}"
