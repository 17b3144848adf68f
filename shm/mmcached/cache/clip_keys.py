"""Computes the keys of a clip: of its file, of its options, and of the list of its slices in the store.

    bytes of the file ──> key of the file ──┬── options ────> key of the clip ──> `clip_record`: its slices
                                            └── place in it ──> `slice_record`: key of the slice's content

The file is hashed once for all clips cut from it. All options are in the key of a clip, so that a changed default does
not find old records. Both sides compute it: a client finds a known clip without a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from mmcached.wire.messages.parts import ClipOptions, Seconds

if TYPE_CHECKING:  # a store does not use hashes
    from mmcached.cache.hasher import MultiModalHasher

ListedSlice = tuple[
    Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")], Annotated[int, msgspec.Meta(ge=1)], Seconds, Seconds
]
"""A slice in the store: the content key of its item, its embeddings, and its start and end in seconds of the file."""


class ListedSlices(msgspec.Struct):
    """The record of a clip: its slices in order."""

    slices: Annotated[list[ListedSlice], msgspec.Meta(min_length=1)]


def file_key(hasher: MultiModalHasher, content: str, options: ClipOptions, *, fingerprint: str, tenant: str) -> str:
    """Return the key of a clip's file, 64 hex digits.

    Args:
        content: `content_digest` of the file.
        fingerprint: Fingerprint of the processing of this modality, its decoder included.
    """
    return hasher.item_key(content, modality=f"{options.modality} file", fingerprint=fingerprint, tenant=tenant)


def clip_key(hasher: MultiModalHasher, key_of_file: str, options: ClipOptions) -> str:
    """Return the key of a clip of a file, 64 hex digits."""
    return hasher.hash_kwargs(
        file=key_of_file,
        start_s=float(options.start_s),
        end_s=None if options.end_s is None else float(options.end_s),
        fps=None if options.fps is None else float(options.fps),
        num_frames=options.num_frames,
    )


def clip_record(key_of_clip: str) -> str:
    return f"clip/{key_of_clip}"


def slice_record(hasher: MultiModalHasher, key_of_file: str, place: tuple[int, ...]) -> str:
    """Return the store's key of the content key of a slice.

    Args:
        place: Its place in the file, and its size.
    """
    return f"slice/{hasher.hash_kwargs(file=key_of_file, place=list(place))}"
