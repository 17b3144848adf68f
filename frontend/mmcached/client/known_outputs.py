"""Names what the encoder says of an image as the service does: a client finds it in the store without asking.

    bytes of the file ──> key of the item ──> key of the encoder's output

A fingerprint of the service's processor and one of its encoder are part of the keys: a service that would say something
else has other keys. Of an image that has the name that its caller gave it, the store keeps no output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from mmcached.cache.hasher import MultiModalHasher
from mmcached.cache.store_keys import output_key
from mmcached.wire.messages.client import Welcome


def output_keys(
    welcome: Welcome, files: Sequence[bytes], image_ids: Sequence[str | None], tenant: str
) -> dict[int, str]:
    """Return the keys of the encoder's outputs by the index of the image, of those whose output may be in the store.

    Args:
        welcome: what the service has said of itself.
        files: encoded image files.
        image_ids: one per image, or none at all.
    """
    if not welcome.encoder_fingerprint:
        return {}
    hasher, keys = _hasher(welcome.hasher_algorithm), {}
    for index, file in enumerate(files):
        if not image_ids or image_ids[index] is None:
            key = hasher.item_key(file, modality="image", fingerprint=welcome.item_fingerprint, tenant=tenant)
            keys[index] = output_key(welcome.encoder_fingerprint, key)
    return keys


@lru_cache(maxsize=2)
def _hasher(algorithm: Literal["blake3", "sha256"]) -> MultiModalHasher:
    return MultiModalHasher(algorithm)
