"""Store keys of the encoder's outputs, made as the service makes them, to find outputs without a message.

    bytes of an image ──> key of its item ────────────────────────────────────┬──> keys of the encoder's outputs
    bytes of a clip, options ──> key of it ──the store──> keys of its slices ─┘

Fingerprints of the service's processor and encoder are part of the keys: a service with other results has other keys.
The store keeps no output of an image that its caller has named. The record of a clip can be put by any client of the
tenant: a record in another form than the service's counts as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from mmcached.cache.clip_keys import ListedSlices, clip_key, clip_record, file_key
from mmcached.cache.hasher import MultiModalHasher
from mmcached.cache.store_keys import output_key
from mmcached.wire.messages.client import Welcome
from mmcached.wire.messages.parts import ClipOptions


class KnownSlice(NamedTuple):
    """The key of a slice's encoder output, and the `(start_s, end_s)` of the slice in the file."""

    key: str
    time: tuple[float, float]


def contents_of(welcome: Welcome, files: Sequence[bytes], known: Sequence[str | None] = ()) -> list[str]:
    """Return the digests of files; empty if the service keeps no outputs. A file that occurs several times is hashed
    once.

    Args:
        known: One per file, or empty: the digest, if it is known.
    """
    if not welcome.encoder_fingerprint:
        return []
    hasher = _hasher(welcome.hasher_algorithm)
    digests: dict[int, str] = {}
    contents = []
    for index, file in enumerate(files):
        content = known[index] if known else None
        if content is None and id(file) not in digests:
            digests[id(file)] = hasher.content_digest(file)
        contents.append(content or digests[id(file)])
    return contents


def output_keys(
    welcome: Welcome, contents: Sequence[str], image_ids: Sequence[str | None], tenant: str
) -> dict[int, str]:
    """Return the keys of encoder outputs that may be in the store, by the index of the image.

    Args:
        welcome: Greeting of the service.
        contents: Digests of the image files.
        image_ids: One per image, or empty.
    """
    fingerprint = welcome.item_fingerprints.get("image")
    if not (welcome.encoder_fingerprint and fingerprint):
        return {}
    hasher, keys = _hasher(welcome.hasher_algorithm), {}
    for index, content in enumerate(contents):
        if not image_ids or image_ids[index] is None:
            key = hasher.item_key(content, modality="image", fingerprint=fingerprint, tenant=tenant)
            keys[index] = output_key(welcome.encoder_fingerprint, key)
    return keys


def clip_records(
    welcome: Welcome, clips: Sequence[ClipOptions], contents: Sequence[str], tenant: str
) -> dict[int, str]:
    """Return the keys of clips' lists of slices that may be in the store, by the index of the clip.

    Args:
        contents: Digests of the clips' files.
    """
    hasher, keys = _hasher(welcome.hasher_algorithm), {}
    for index, (options, content) in enumerate(zip(clips, contents, strict=True)):
        fingerprint = welcome.item_fingerprints.get(options.modality)
        if welcome.encoder_fingerprint and fingerprint:
            of_file = file_key(hasher, content, options, fingerprint=fingerprint, tenant=tenant)
            keys[index] = clip_record(clip_key(hasher, of_file, options))
    return keys


def slices_in(record: Any, welcome: Welcome) -> list[KnownSlice]:
    """Return the slices that the record of a clip lists; empty if it has another form."""
    try:
        listed = msgspec.convert(record, ListedSlices).slices
    except msgspec.ValidationError:
        return []
    fingerprint = welcome.encoder_fingerprint
    return [KnownSlice(output_key(fingerprint, key), (start_s, end_s)) for key, _, start_s, end_s in listed]


@lru_cache(maxsize=2)
def _hasher(algorithm: Literal["blake3", "sha256"]) -> MultiModalHasher:
    return MultiModalHasher(algorithm)
